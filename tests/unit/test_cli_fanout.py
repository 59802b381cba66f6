"""`list --github`: the locked cells, or those of them that changed, as one line that GitHub takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.checkouts import commit, git, put
from tests.planned import locked, wheel
from torchkiln.cli.grid import list_command
from torchkiln.errors import ConfigError, Stale
from torchkiln.lock.lock import lock_digest
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedCell
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
MATRIX = ["--matrix", str(ROOT / "matrix.yaml")]


def rows(images: Path, *arguments: str) -> list[dict[str, Any]]:
    """The cells of the one line that is printed."""
    told = CliRunner().invoke(
        list_command, [*MATRIX, "--github", "--images", str(images), *arguments], catch_exceptions=False
    )
    assert (told.exit_code, told.stderr, told.stdout.count("\n")) == (0, "", 1)
    matrix = json.loads(told.stdout)
    assert list(matrix) == ["include"]
    found: list[dict[str, Any]] = matrix["include"]
    return found


def tags(*arguments: Any) -> list[tuple[str, str]]:
    """Tag and reason of each cell."""
    return [(row["tag"], row["changed"]) for row in rows(*arguments)]


def upgraded(cell: LockedCell) -> LockedCell:
    """The same with another tqdm."""
    moved = wheel("tqdm", "9.9", megabytes=1)
    return replace(cell, wheels=tuple(moved if one.name == "tqdm" else one for one in cell.wheels))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A committed folder with the locks of 2.7.1 and 2.8.0, deeper than the checkout's top."""
    folder = tmp_path / "some where" / "images"
    for torch in ("2.7.1", "2.8.0"):
        put(folder, locked(torch))
    commit(tmp_path)
    return folder


def test_a_row_says_what_a_job_needs(images: Path) -> None:
    cell = locked()
    assert rows(images)[0] == {
        "tag": TAG,
        "torch": "2.7.1",
        "cuda": "12.1",
        "flavor": "runtime",
        "os": "debian12",
        "lock": lock_digest(cell),
        "base": cell.base.digest,
        "status": "minor-compat",
    }


def test_the_committed_locks_are_all_there() -> None:
    """And no cell that has none."""
    found = {row["tag"] for row in rows(ROOT / "images", "--all")}
    assert found == {path.parent.name for path in (ROOT / "images").glob("*/lock.json")}
    assert len(found) > 5


def test_a_selection_holds(images: Path) -> None:
    assert [row["torch"] for row in rows(images, "--torch", "2.8")] == ["2.8.0"]
    assert rows(images, "--torch", "2.6") == []


def test_nothing_changed_is_an_empty_matrix(images: Path) -> None:
    assert rows(images, "--changed-since", "HEAD") == []


def test_what_changed_is_told_with_its_reason(images: Path) -> None:
    """One moved a package, one is new, one has another recipe; and one is only laid out anew."""
    put(images, upgraded(locked()))
    put(images, locked("2.6.0"))
    put(images, replace(locked("2.8.0"), inputs=Digest("sha256:" + "5" * 64)))  # as by another recipe
    was = commit(images)
    put(images, locked("2.5.1"))
    put(images, locked("2.8.0"))
    put(images, locked())

    assert tags(images, "--changed-since", was) == [
        ("2.5.1-cuda12.1-cudnn9-runtime", "new"),
        (TAG, "lock"),
        ("2.8.0-cuda12.1-cudnn9-runtime", "lock"),
    ]


def test_recorded_layers_change_no_image(images: Path) -> None:
    """They follow from the rest."""
    digests = {"digest": Digest("sha256:" + "3" * 64), "diff_id": Digest("sha256:" + "4" * 64)}
    layer = ImageLayer(title="torch", blob=Blob(**digests, size=1, unpacked=1))
    put(images, replace(locked(), layers=(layer,)))

    assert git(images, "status", "--porcelain") != ""
    assert rows(images, "--changed-since", "HEAD") == []


@pytest.mark.parametrize("then", [b"", b"{", b"[]", b'{"digest": 7}', b'{"schema": 0}'])
def test_a_lock_that_nobody_can_read_any_more_counts_as_changed(images: Path, then: bytes) -> None:
    (images / TAG / "lock.json").write_bytes(then)
    was = commit(images)
    put(images)

    assert tags(images, "--changed-since", was) == [(TAG, "lock")]


@pytest.mark.parametrize("name", ["gone", "f" * 40, "0" * 39, "--all", "HEAD:images", ""])
def test_a_revision_that_git_does_not_know_is_an_error(images: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="unknown revision") as told:
        rows(images, f"--changed-since={name}")
    assert "--unshallow" in told.value.hint


def test_before_the_first_commit_there_was_nothing(images: Path) -> None:
    """Forges write it so for a new branch."""
    assert [reason for _, reason in tags(images, "--changed-since", "0" * 40)] == ["new", "new"]


def test_outside_of_a_checkout_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    put(tmp_path / "images")
    with pytest.raises(ConfigError, match="not a git repository"):
        rows(tmp_path / "images", "--changed-since", "HEAD")


def test_a_broken_lock_of_today_is_an_error(images: Path) -> None:
    (images / TAG / "lock.json").write_text("{")
    with pytest.raises(Stale):
        rows(images)


@pytest.mark.parametrize("wrong", [["--github", "--json"], ["--changed-since", "HEAD"]])
def test_options_that_do_not_go_together(wrong: list[str]) -> None:
    assert CliRunner().invoke(list_command, [*MATRIX, *wrong]).exit_code == 2
