"""Mistakes of users on the command line: exit code and complete message, from tests/mistakes.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes import Mistake, make, read

MISTAKES = read()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name or mistake.run[:60])
def test_a_mistake_gives_its_message_and_hint(mistake: Mistake, tmp_path: Path) -> None:
    """The output has no traceback, and stdout is empty."""
    ran = make(mistake, tmp_path)

    assert (ran.code, ran.err) == (mistake.code, mistake.says)
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert ran.code != 0


def test_there_are_many_and_they_differ() -> None:
    keys = {(m.run, m.name) for m in MISTAKES}

    assert len(keys) == len(MISTAKES) >= 130
