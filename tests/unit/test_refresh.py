"""`refresh` moves locks to the present OS packages; wheels, their layers and other systems' locks stay."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.campaign.host import can_mount
from tests.planned import locked
from tests.unit.test_base_artefact import a_base
from tests.unit.test_lock import LAYER
from torchkiln.base import artefact
from torchkiln.cli.refresh import refresh
from torchkiln.errors import BuildFailed, NothingSelected
from torchkiln.locks.lock import load_locked, save
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedBase, LockedCell
from torchkiln.store.store import Store


def cell(torch: str = "2.7.1", os_name: str = "debian12") -> LockedCell:
    found = locked(torch, os_name=os_name)
    base = replace(a_base(None), os=os_name, python=found.base.python)
    return replace(found, base=base, layers=(LAYER,))


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The locks of two cells of debian12, and of one of debian13; the archive has a newer openssl."""
    folder = tmp_path / "images"
    for each in (cell(), cell("2.8.0"), cell(os_name="debian13")):
        save(folder, each)
        artefact.write_lock(folder, each.base)

    newer = Store(tmp_path / "cache")
    monkeypatch.setattr(artefact, "build", lambda *_, **__: a_base(newer, "3.0.19"))
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    return folder


def run(images: Path, *more: str) -> Result:
    return CliRunner().invoke(refresh, ["--images", str(images), "--os", "debian12", *more])


def test_only_the_base_moves(images: Path) -> None:
    """A second run changes nothing."""
    ran, newer, cells = run(images), a_base(None, "3.0.19"), (cell(), cell("2.8.0"))

    assert ran.exit_code == 0, ran.output
    tags = [tag_of(each.resolution) for each in cells]
    assert ran.stdout.splitlines() == tags
    assert "debian12: openssl 3.0.18 → 3.0.19\n" in ran.stderr
    for tag, before in zip(tags, cells, strict=True):
        assert load_locked(images, tag) == replace(before, base=newer)
        assert (images / tag / "Dockerfile").is_file()
    assert artefact.read_lock(images, "debian12") == newer
    assert load_locked(images, tag_of(cell(os_name="debian13").resolution)) == cell(os_name="debian13")
    assert run(images).stdout == ""


@pytest.mark.skipif(not can_mount(), reason="a read-only folder is a mount, which requires root")
def test_a_read_only_folder_is_found_before_the_base_is_made(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefact, "build", lambda *_, **__: pytest.fail("the base was made"))
    folder = images / tag_of(cell("2.8.0").resolution)
    subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], check=True)
    try:
        with pytest.raises(OSError, match="Read-only file system"):
            CliRunner().invoke(refresh, ["--images", str(images)], catch_exceptions=False)
    finally:
        subprocess.run(["umount", folder], check=True)


def test_layers_are_not_kept_for_another_python(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers contain byte-code of the base's Python."""
    newer = a_base(None, "3.0.19")
    moved = tuple(replace(each, version="9") if "python" in each.name else each for each in newer.packages)
    monkeypatch.setattr(artefact, "build", lambda *_, **__: replace(newer, packages=moved))
    run(images)

    assert load_locked(images, tag_of(cell().resolution)).layers == ()


def test_a_failed_base_changes_no_lock(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object, **__: object) -> LockedBase:
        raise BuildFailed("mmdebstrap failed")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in images.rglob("*") if path.is_file()}

    before = files()
    monkeypatch.setattr(artefact, "build", build)
    assert isinstance(run(images).exception, BuildFailed)
    assert files() == before


def test_a_folder_without_locks_is_an_error(tmp_path: Path) -> None:
    found = run(tmp_path).exception

    assert isinstance(found, NothingSelected)
    assert "torchkiln lock --all" in found.hint
