"""Each image has its lock: `smoke`, `gate` and the others find it by the image if the base has moved."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.published import a_built_publisher, a_copied_publisher
from tests.publisher import Publisher
from tests.reports import TAG
from torchkiln.engine.image_lock import lock_of, remember_lock
from torchkiln.errors import Stale
from torchkiln.locks.file import from_json, lock_digest, to_json
from torchkiln.locks.lock import load_locked, on_base, save
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, OsPackage
from torchkiln.oci.labels import labels
from torchkiln.oci.layout import ImageOnDisk, open_layout

__all__ = ["a_built_publisher", "a_copied_publisher"]


@dataclass
class Moved:
    """An image whose base is not that of the committed lock: the archive moved between `lock` and `build`."""

    publisher: Publisher
    image: ImageOnDisk
    own: LockedCell  # the lock of the image

    @property
    def images(self) -> Path:
        return self.publisher.folder / "images"

    @property
    def kept(self) -> Path:
        return open_layout(self.publisher.layout).lock(self.image.manifest)

    def found(self) -> LockedCell:
        return lock_of(self.image, TAG, self.publisher.layout, self.images, self.publisher.store)

    def refused(self) -> None:
        with pytest.raises(Stale, match="was built from the lock sha256:") as caught:
            self.found()
        assert f"build the image again: torchkiln build {TAG}" in caught.value.hint


def with_base(locked: LockedCell, digit: str) -> LockedCell:
    """*locked* with a base before the archive moved."""
    digest = Digest(f"sha256:{digit * 64}")
    packages = (*locked.base.packages, OsPackage(name="zlib1g", version="1"))
    return on_base(locked, replace(locked.base, digest=digest, diff_id=digest, packages=packages), None)


@pytest.fixture
def moved(publisher: Publisher) -> Moved:
    own = load_locked(publisher.folder / "images", TAG)
    save(publisher.folder / "images", with_base(own, "1"))
    return Moved(publisher=publisher, image=open_layout(publisher.layout).image(TAG), own=own)


def test_the_layout_has_the_lock_of_each_image(moved: Moved) -> None:
    """The committed lock is used if it is that of the image."""
    own = from_json(moved.kept.read_bytes())

    assert lock_digest(own) == labels(moved.image)["torchkiln.lock"]
    assert moved.found() == moved.own
    assert moved.found().layers == moved.own.layers != ()

    save(moved.images, moved.own)
    moved.kept.unlink()
    assert moved.found() == moved.own


def test_the_cache_has_it_for_a_copy_of_the_image(moved: Moved) -> None:
    """Other tools copy an image to another layout without the folder of locks."""
    moved.kept.unlink()
    moved.refused()

    remember_lock(moved.own, moved.publisher.store)
    assert moved.found() == moved.own


@pytest.mark.parametrize("change", ["wheels", "base", "date"])
def test_a_strangers_lock_is_not_believed(moved: Moved, change: str) -> None:
    """Only base and tools are read from it, and the digest of the whole must be that of the image."""
    own = moved.own
    changed = {
        "wheels": replace(own, wheels=own.wheels[1:]),
        "base": with_base(own, "3"),
        "date": replace(own, as_of="2020-01-01", epoch=0),
    }
    moved.kept.write_bytes(to_json(changed[change]))

    if change == "base":
        moved.refused()
    else:
        assert moved.found() == own


def test_other_wheels_are_never_taken_from_a_layout(moved: Moved) -> None:
    """The image's own lock differs in a wheel from the committed one: no lock in the layout can hide that."""
    committed = load_locked(moved.images, TAG)
    wheel = replace(committed.wheels[0], sha256="f" * 64)
    save(moved.images, replace(committed, wheels=(wheel, *committed.wheels[1:]), layers=()))

    moved.refused()


SPOILT = {"text": b"{", "large": bytes(5 << 20), "edited": b"", "pipe": None}  # "edited": see the test


@pytest.mark.parametrize("data", SPOILT.values(), ids=SPOILT)
def test_a_damaged_lock_in_the_layout_is_ignored(moved: Moved, data: bytes | None) -> None:
    edited = moved.kept.read_bytes().replace(b'"epoch": 1', b'"epoch": 2')
    moved.kept.unlink()
    if data is None:
        os.mkfifo(moved.kept)
    else:
        moved.kept.write_bytes(data or edited)

    moved.refused()
    remember_lock(moved.own, moved.publisher.store)
    assert moved.found() == moved.own


def test_a_replaced_image_takes_its_lock_along(moved: Moved) -> None:
    before = moved.kept
    image = moved.publisher.build("2.0")

    names = [path.name for path in before.parent.iterdir()]
    assert names == [f"{image.manifest.removeprefix('sha256:')}.json"] != [before.name]


def test_a_link_in_place_of_the_folder_is_refused(moved: Moved, tmp_path: Path) -> None:
    shutil.rmtree(moved.kept.parent)
    (tmp_path / "elsewhere").mkdir()
    moved.kept.parent.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Exception, match="locks"):
        moved.publisher.build("2.0")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_commands_agree_on_the_image(moved: Moved) -> None:
    """`sbom` and `gate` use the lock of the image, not the committed one."""
    run, here = moved.publisher.run, moved.publisher.here
    sbom = run("sbom", TAG, *here[:4])
    assert sbom.exit_code == 0, sbom.output
    assert "was built from" not in str(run("gate", TAG, *here).exception)

    moved.kept.unlink()
    for command in (("sbom", TAG, *here[:4]), ("gate", TAG, *here)):
        assert "was built from the lock" in str(run(*command).exception)
