"""For a project with OS packages, the gate refuses all known changes of files that the parent has proved."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tests.os_layers import BASE, with_packages
from tests.os_mutants import MUTANTS
from tests.project_gate import Scene, scene
from torchkiln.projects import build as project_build


@pytest.fixture(scope="module", name="there")
def a_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with patch.object(project_build, "ensure_apt", lambda apt, *_, **_named: apt):
        yield scene(tmp_path_factory.mktemp("mutants"), change=with_packages, base=BASE)


def test_the_layer_itself_is_cleared(there: Scene) -> None:
    """The layer that the build made is accepted: the gate does not refuse every image."""
    code, _, messages = there.judged(there.image)

    assert code == 0, messages


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_refused(there: Scene, name: str) -> None:
    code, out, messages = there.judged(MUTANTS[name](there))

    assert (code, out) == (7, ""), messages
    assert "in the image that this machine built, it " in messages, messages
