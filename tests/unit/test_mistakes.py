"""What users get wrong at the command line: exit code and whole message, from tests/mistakes.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes import Mistake, make, read

MISTAKES = read()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name or mistake.run[:60])
def test_a_mistake_is_answered_with_what_is_wrong_and_what_to_do(mistake: Mistake, tmp_path: Path) -> None:
    """No traceback, nothing on stdout."""
    said = make(mistake, tmp_path)

    assert (said.code, said.err) == (mistake.code, mistake.says)
    assert "Traceback" not in said.err
    assert said.out == ""
    assert said.code != 0


def test_there_are_many_and_they_differ() -> None:
    keys = {(m.run, m.name) for m in MISTAKES}

    assert len(keys) == len(MISTAKES) >= 130
