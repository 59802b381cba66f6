"""`lock --diff`: added, removed, changed and replaced packages, as Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.checkouts import commit, put
from tests.planned import locked, wheel
from torchkiln.cli.lock import lock
from torchkiln.compare.layers import PackageChange
from torchkiln.compare.locks import kind_of, lock_change, lock_changes
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, OsPackage

TAG, OTHER = "2.7.1-cuda12.1-cudnn9-runtime", "2.8.0-cuda12.1-cudnn9-runtime"


def with_wheels(cell: LockedCell, *, removed: str = "", **moved: str) -> LockedCell:
    """*cell* without the wheel *removed*, and with the versions *moved*, which may also add wheels."""
    remaining = [item for item in cell.wheels if item.name not in (removed, *moved)]
    return replace(
        cell, wheels=(*remaining, *(wheel(name, version, megabytes=1) for name, version in moved.items()))
    )


def test_added_removed_and_changed_packages() -> None:
    found = lock_change(TAG, locked(), with_wheels(locked(), removed="uv", tqdm="9.9", attrs="1.0"))

    assert [(package.name, package.a, package.b, kind_of(package)) for package in found.packages] == [
        ("attrs", "", "1.0", "added"),
        ("tqdm", "4.67.1", "9.9", "moved"),
        ("uv", "0.9.11", "", "removed"),
    ]
    assert [found.count(kind) for kind in ("added", "removed", "moved")] == [1, 1, 1]
    assert found.base[0] == found.base[1]
    assert found.swapped == ()


def test_another_file_with_the_same_version_is_reported() -> None:
    """An index must never replace the file of a release."""
    cell = locked()
    replaced = replace(cell.wheels[0], sha256="5" * 64)
    found = lock_change(TAG, cell, replace(cell, wheels=(replaced, *cell.wheels[1:])))

    assert found.packages == ()
    assert not found.same
    name_and_version = f"{replaced.name} {replaced.version}"
    assert found.swapped == (
        PackageChange(system="python", place="", name=name_and_version, a=cell.wheels[0].sha256, b="5" * 64),
    )


def test_images_without_a_change_are_omitted() -> None:
    a = {TAG: locked(), OTHER: locked("2.8.0")}
    b = {TAG: locked(), OTHER: with_wheels(locked("2.8.0"), tqdm="9.9")}

    assert [change.tag for change in lock_changes(a, b, (TAG, OTHER))] == [OTHER]
    assert lock_changes(a, a, (TAG, OTHER)) == ()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A committed folder with the locks of two images."""
    for torch in ("2.7.1", "2.8.0"):
        put(tmp_path / "images", locked(torch))
    commit(tmp_path)
    return tmp_path / "images"


def diff_of(images: Path, *arguments: str) -> str:
    found = CliRunner().invoke(
        lock, ["--diff", "HEAD", "--images", str(images), *arguments], catch_exceptions=False
    )
    assert found.exit_code == 0, found.output
    return found.stdout


def change_both(images: Path) -> None:
    """Change tqdm in both images, numpy in one image, and the base in the other."""
    base = replace(
        locked().base,
        digest=Digest("sha256:" + "c" * 64),
        packages=(OsPackage(name="tini", version="0.20.0-1"),),
    )
    put(images, replace(with_wheels(locked(), tqdm="9.9", numpy="3.0"), base=base))
    put(images, with_wheels(locked("2.8.0"), tqdm="9.9"))


def test_markdown_has_a_row_for_each_image_and_one_for_each_change(images: Path) -> None:
    change_both(images)
    lines = diff_of(images).splitlines()

    (first,) = [line for line in lines if line.startswith(f"| {TAG} |") and "→" in line]
    assert [cell.strip() for cell in first.split("|")][3:6] == ["0", "0", "3"]
    assert first.endswith("| `aaaaaaaaaaaa` → `cccccccccccc` |")
    assert lines.count("| tqdm | 4.67.1 | 9.9 | all |") == 1
    assert lines.count(f"| numpy | 2.3.5 | 3.0 | {TAG} |") == 1
    assert lines.count(f"| tini | 0.19.0-1 | 0.20.0-1 | {TAG} |") == 1
    assert [line for line in lines if line.startswith("### ")] == ["### Python packages", "### OS packages"]


def test_json_is_by_image(images: Path) -> None:
    change_both(images)
    found: dict[str, Any] = json.loads(diff_of(images, "--json"))

    assert found["since"]["name"] == "HEAD"
    assert [image["tag"] for image in found["images"]] == [TAG, OTHER]
    assert found["images"][1]["packages"] == [
        {"kind": "moved", "system": "python", "place": "", "name": "tqdm", "a": "4.67.1", "b": "9.9"}
    ]


def test_added_and_removed_images(images: Path) -> None:
    """Packages of such images are not listed. A lock that this version cannot read counts as missing."""
    put(images, locked("2.6.0"))
    (images / OTHER / "lock.json").unlink()
    lines = diff_of(images).splitlines()

    assert [line.split(" | ")[:2] for line in lines if line.startswith("| 2.")] == [
        ["| 2.6.0-cuda12.1-cudnn9-runtime", "new"],
        [f"| {OTHER}", "removed"],
    ]
    assert not any("tqdm" in line for line in lines)


def test_a_lock_of_another_schema_is_reported_and_counts_as_new(images: Path) -> None:
    (images / TAG / "lock.json").write_text('{"schema": 99}')
    commit(images)
    put(images)
    found = CliRunner().invoke(
        lock, ["--diff", "HEAD", "--images", str(images), "--torch", "2.7", "--cuda", "12.1"]
    )

    assert "schema 99" in found.stderr
    assert f"| {TAG} | new |" in found.stdout


def test_no_changes_are_reported_as_such(images: Path) -> None:
    assert diff_of(images) == "No lock has changed packages.\n"
    assert json.loads(diff_of(images, "--json"))["images"] == []
