"""A project's lock records the chosen extras and dependency groups; they are checked and can be replaced."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.planned import locked as locked_cell
from tests.unit.test_project_file import LOCK
from tests.unit.test_project_lock import Workspace, locked_once, versions, workspace
from torchkiln.errors import Stale
from torchkiln.locks.file import lock_digest
from torchkiln.model.digest import digest_of_json
from torchkiln.projects.asked import Asked, ProjectNeeds
from torchkiln.projects.choice import NO_CHOICE, Choice, choice_of
from torchkiln.projects.file import from_json, load_project, to_json
from torchkiln.projects.freshness import inputs_digest

__all__ = ["locked_once", "workspace"]


def test_a_lock_without_a_choice_is_as_before() -> None:
    """Locks of versions without extras and groups can be read, and are fresh."""
    assert not {"extras", "groups", "origins"} & json.loads(to_json(LOCK)).keys()
    assert from_json(to_json(LOCK)) == LOCK
    chosen = replace(LOCK, extras=("gpu",), groups=("dev",))
    assert from_json(to_json(chosen)) == chosen
    with pytest.raises(Stale, match="extras"):
        from_json(to_json(replace(LOCK, extras=("not normal",))))
    needs = ProjectNeeds(name="x", source="pyproject.toml", requirements=(Asked(text="a", where="x"),))
    cell = locked_cell()
    digests = {
        inputs_digest(replace(needs, choice=choice), cell)
        for choice in (NO_CHOICE, choice_of(["a"], []), choice_of([], ["a"]), choice_of(["a"], ["a"]))
    }
    assert len(digests) == 4
    before = {  # the values that earlier versions hashed
        "rules": 1,
        "name": "x",
        "requirements": [["a", []]],
        "constraints": [],
        "requires_python": "",
        "parent": lock_digest(cell),
    }
    assert inputs_digest(needs, cell) == digest_of_json(before)


OWN = """\
[project]
name = "trial"
dependencies = ["attrs"]
[project.optional-dependencies]
old = ["datasets==2.14"]
new = ["datasets==4.0"]
[dependency-groups]
dev = ["strict; python_version < '3'", "trainer"]
"""


def test_the_choice_is_recorded_and_replaced(workspace: Workspace) -> None:
    """The lock's choice is used until an option replaces it."""
    (workspace.folder / "pyproject.toml").write_text(OWN)

    def locked(*words: str) -> tuple[Choice, dict[str, str]]:
        code, out, messages = workspace.lock(*words)
        assert (code, out) == (0, "trial\n"), messages
        found = load_project(workspace.folder)
        assert found is not None
        choice = choice_of(found.extras, found.groups)
        assert not choice.any or f"by pyproject.toml with {choice.options}: " in messages
        assert workspace.lock("--check", cell=False)[0] == 0
        return choice, versions(found)

    assert locked() == (NO_CHOICE, {})
    old = (choice_of(["old"], []), {"datasets": "2.14"})
    assert locked("--extra", "Old") == old
    assert locked() == old
    new = locked("--group", "dev", "--extra", "new", "--extra", "new")
    assert new[0] == choice_of(["new"], ["dev"])
    assert new[1] == {"datasets": "4.0", "fsspec": "2026.2", "peft": "0.9", "trainer": "1.0"}
    assert locked() == new
    assert locked("--extra", "") == (NO_CHOICE, {"fsspec": "2026.2"})  # versions are kept


def test_check_sees_another_choice(workspace: Workspace) -> None:
    (workspace.folder / "pyproject.toml").write_text(OWN)
    code, out, messages = workspace.lock("--json", "--extra", "old")
    assert code == 0, messages
    found = json.loads(out)
    assert (found["extras"], found["groups"]) == (["old"], [])
    assert {move["name"]: move.get("asked") for move in found["moves"]}["datasets"] == ["pyproject.toml:5"]
    assert workspace.lock("--check", "--extra", "old")[0] == 0
    for words, made, hint in (
        (("--group", "dev"), "made with --extra old, not with --group dev", "--group dev"),
        (("--extra", ""), "made with --extra old, not without extras and groups", "--extra ''"),
    ):
        code, _, messages = workspace.lock("--check", *words)
        assert code == 5
        assert made in messages
        assert messages.endswith(f"run: torchkiln project lock {workspace.folder} {hint}")
    # The project no longer has the recorded extra.
    (workspace.folder / "pyproject.toml").write_text(OWN.replace("old =", "older ="))
    code, _, messages = workspace.lock(cell=False)
    assert (code, "--extra old: pyproject.toml has no such extra; it has: new, older" in messages) == (
        2,
        True,
    )
