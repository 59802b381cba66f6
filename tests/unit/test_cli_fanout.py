"""`ci matrix` prints the locked or the changed cells as one line of JSON for GitHub Actions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.checkouts import commit, git, put
from tests.planned import locked, wheel
from torchkiln.cli.ci import matrix
from torchkiln.cli.grid import list_command
from torchkiln.errors import ConfigError, Stale
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import parse_name
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedCell
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
MATRIX = ["--matrix", str(ROOT / "matrix.yaml")]


def rows(images: Path, *arguments: str) -> list[dict[str, Any]]:
    """The cells of the printed line."""
    result = CliRunner().invoke(
        matrix, [*MATRIX, "--images", str(images), *arguments], catch_exceptions=False
    )
    assert (result.exit_code, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    printed = json.loads(result.stdout)
    assert list(printed) == ["include"]
    found: list[dict[str, Any]] = printed["include"]
    return found


def tags(*arguments: Any) -> list[tuple[str, str]]:
    return [(row["tag"], row["changed"]) for row in rows(*arguments)]


def upgraded(cell: LockedCell) -> LockedCell:
    """The same cell with another version of tqdm."""
    moved = wheel("tqdm", "9.9", megabytes=1)
    return replace(
        cell,
        wheels=tuple(moved if locked_wheel.name == "tqdm" else locked_wheel for locked_wheel in cell.wheels),
    )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A committed folder, below the root of a git repository, with the locks of torch 2.7.1 and 2.8.0."""
    folder = tmp_path / "some where" / "images"
    for torch in ("2.7.1", "2.8.0"):
        put(folder, locked(torch))
    commit(tmp_path)
    return folder


def test_a_row_has_what_a_job_needs(images: Path) -> None:
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


def test_all_committed_locks_are_listed() -> None:
    """Cells without a lock are not listed. `--all` adds nothing: the matrix has no thin images."""
    found = {row["tag"] for row in rows(ROOT / "images", "--all")}
    committed = {path.parent.name for path in (ROOT / "images").glob("*/lock.json")}
    assert found == {tag for tag in committed if not (named := parse_name(tag)) or not named.gpus}
    assert len(found) > 5


def test_a_selection_is_respected(images: Path) -> None:
    assert [row["torch"] for row in rows(images, "--torch", "2.8")] == ["2.8.0"]
    assert rows(images, "--torch", "2.6") == []


def test_without_changes_the_matrix_is_empty(images: Path) -> None:
    assert rows(images, "--changed-since", "HEAD") == []


def test_changed_cells_have_a_reason(images: Path) -> None:
    """One cell has a changed package, one is new, one has another recipe; one lock is only reformatted."""
    put(images, upgraded(locked()))
    put(images, locked("2.6.0"))
    put(images, replace(locked("2.8.0"), inputs=Digest("sha256:" + "5" * 64)))  # other recipe
    was = commit(images)
    put(images, locked("2.5.1"))
    put(images, locked("2.8.0"))
    put(images, locked())

    assert tags(images, "--changed-since", was) == [
        ("2.5.1-cuda12.1-cudnn9-runtime", "new"),
        (TAG, "lock"),
        ("2.8.0-cuda12.1-cudnn9-runtime", "lock"),
    ]


def test_recorded_layers_do_not_count_as_a_change(images: Path) -> None:
    """The rest of the lock determines the layers, so recording them does not change the image."""
    digests = {"digest": Digest("sha256:" + "3" * 64), "diff_id": Digest("sha256:" + "4" * 64)}
    layer = ImageLayer(title="torch", blob=Blob(**digests, size=1, unpacked=1))
    put(images, replace(locked(), layers=(layer,)))

    assert git(images, "status", "--porcelain") != ""
    assert rows(images, "--changed-since", "HEAD") == []


@pytest.mark.parametrize("then", [b"{", b'{"digest": 7}'])
def test_an_unreadable_earlier_lock_counts_as_changed(images: Path, then: bytes) -> None:
    (images / TAG / "lock.json").write_bytes(then)
    was = commit(images)
    put(images)

    assert tags(images, "--changed-since", was) == [(TAG, "lock")]


@pytest.mark.parametrize("name", ["gone", "--all", ""])
def test_a_revision_that_git_does_not_know_is_an_error(images: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="unknown revision") as result:
        rows(images, f"--changed-since={name}")
    assert "--unshallow" in result.value.hint


def test_before_the_first_commit_all_cells_are_new(images: Path) -> None:
    """For a new branch, GitHub and others give a commit of forty zeros."""
    assert [reason for _, reason in tags(images, "--changed-since", "0" * 40)] == ["new", "new"]


def test_a_broken_current_lock_is_an_error(images: Path) -> None:
    (images / TAG / "lock.json").write_text("{")
    with pytest.raises(Stale):
        rows(images)


@pytest.mark.parametrize("wrong", [["--github", "--json"], ["--changed-since", "HEAD"]])
def test_conflicting_options(wrong: list[str]) -> None:
    assert CliRunner().invoke(list_command, [*MATRIX, *wrong]).exit_code == 2


def test_the_earlier_option_of_list_works(images: Path) -> None:
    """`list --github` is the earlier name of `ci matrix`; it works for one more release."""
    arguments = [*MATRIX, "--images", str(images), "--changed-since", "0" * 40]
    now = CliRunner().invoke(matrix, arguments)
    old = CliRunner().invoke(list_command, [*arguments, "--github"])
    assert (old.exit_code, old.stdout) == (0, now.stdout)
    assert "`list --github` is now `torchkiln ci matrix`" in old.stderr
    assert "--github" not in CliRunner().invoke(list_command, ["--help"]).stdout
