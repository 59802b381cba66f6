"""Each image has its lock: `smoke`, `gate` and the others find it by the image if the base has moved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.publisher import Publisher, new_publisher
from tests.reports import TAG
from tests.smoke_suites import suite_to_read
from torchkiln.build.image_lock import lock_of, remember_lock
from torchkiln.errors import Stale
from torchkiln.lock.file import from_json, lock_digest, to_json
from torchkiln.lock.lock import load_locked, on_base, save
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedBase, LockedCell, OsPackage
from torchkiln.oci.labels import labels
from torchkiln.oci.layout import ImageOnDisk, open_layout


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

    def keep(self, locked: LockedCell) -> None:
        self.kept.write_bytes(to_json(locked))


def other_base(base: LockedBase) -> LockedBase:
    """The base before the archive moved."""
    return replace(
        base,
        digest=Digest(f"sha256:{'1' * 64}"),
        diff_id=Digest(f"sha256:{'2' * 64}"),
        packages=(*base.packages, OsPackage(name="zlib1g", version="1")),
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    publisher = new_publisher(tmp_path_factory.mktemp("moved") / "publisher", suite_to_read)
    publisher.build()
    return publisher


@pytest.fixture
def moved(built: Publisher, tmp_path: Path) -> Moved:
    publisher = Publisher(folder=shutil.copytree(built.folder, tmp_path / "publisher", symlinks=True))
    own = load_locked(publisher.folder / "images", TAG)
    save(publisher.folder / "images", on_base(own, other_base(own.base), None))
    return Moved(publisher=publisher, image=open_layout(publisher.layout).image(TAG), own=own)


def test_the_layout_has_the_lock_of_each_image(moved: Moved) -> None:
    own = from_json(moved.kept.read_bytes())

    assert lock_digest(own) == labels(moved.image)["torchkiln.lock"]
    assert moved.found() == moved.own
    assert moved.found().layers == moved.own.layers != ()


def test_the_cache_has_it_for_a_copy_of_the_image(moved: Moved) -> None:
    """Other tools copy an image to another layout without the folder of locks."""
    moved.kept.unlink()
    with pytest.raises(Stale, match="was built from the lock sha256:") as caught:
        moved.found()
    assert f"build the image again: torchkiln build {TAG}" in caught.value.hint

    remember_lock(moved.own, moved.publisher.store)
    assert moved.found() == moved.own


def test_the_committed_lock_is_used_if_it_is_that_of_the_image(moved: Moved) -> None:
    save(moved.images, moved.own)
    moved.kept.unlink()

    assert moved.found() == moved.own


def fewer_wheels(locked: LockedCell) -> LockedCell:
    return replace(locked, wheels=locked.wheels[1:])


def another_base(locked: LockedCell) -> LockedCell:
    return replace(locked, base=replace(locked.base, digest=Digest(f"sha256:{'3' * 64}")))


def another_date(locked: LockedCell) -> LockedCell:
    return replace(locked, as_of="2020-01-01", epoch=0)


@pytest.mark.parametrize("change", [fewer_wheels, another_base, another_date])
def test_a_strangers_lock_is_not_believed(moved: Moved, change: Callable[[LockedCell], LockedCell]) -> None:
    """Only base and tools are read from it, and the digest of the whole must be that of the image."""
    moved.keep(change(moved.own))

    if change is another_base:
        with pytest.raises(Stale, match="was built from the lock"):
            moved.found()
    else:
        assert moved.found() == moved.own


def test_other_wheels_are_never_taken_from_a_layout(moved: Moved) -> None:
    """The image's own lock differs in a wheel from the committed one: no lock in the layout can hide that."""
    committed = load_locked(moved.images, TAG)
    wheel = replace(committed.wheels[0], sha256="f" * 64)
    save(moved.images, replace(committed, wheels=(wheel, *committed.wheels[1:]), layers=()))

    with pytest.raises(Stale, match="was built from the lock"):
        moved.found()


def text(path: Path) -> None:
    path.write_text("{")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def large(path: Path) -> None:
    path.write_bytes(bytes(5 << 20))


def edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"epoch": 1', b'"epoch": 2'))


@pytest.mark.parametrize("spoil", [text, pipe, large, edited])
def test_a_damaged_lock_in_the_layout_is_ignored(moved: Moved, spoil: Callable[[Path], None]) -> None:
    if spoil is not edited:
        moved.kept.unlink()
    spoil(moved.kept)

    with pytest.raises(Stale, match="was built from the lock"):
        moved.found()
    remember_lock(moved.own, moved.publisher.store)
    assert moved.found() == moved.own


def test_a_replaced_image_takes_its_lock_along(moved: Moved) -> None:
    before = moved.kept
    moved.publisher.build("2.0")

    assert [path.name for path in before.parent.iterdir()] == [
        f"{open_layout(moved.publisher.layout).image(TAG).manifest.removeprefix('sha256:')}.json"
    ]
    assert not before.exists()


def test_a_link_in_place_of_the_folder_is_refused(moved: Moved, tmp_path: Path) -> None:
    shutil.rmtree(moved.kept.parent)
    (tmp_path / "elsewhere").mkdir()
    moved.kept.parent.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Exception, match="locks"):
        moved.publisher.build("2.0")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_commands_agree_on_the_image(moved: Moved) -> None:
    """`sbom` and `gate` use the lock of the image, not the committed one."""
    sbom = moved.publisher.run("sbom", TAG, *moved.publisher.here[:4])
    assert sbom.exit_code == 0, sbom.output

    judged = moved.publisher.run("gate", TAG, *moved.publisher.here)
    assert "was built from" not in str(judged.exception)
    moved.kept.unlink()
    for command in (("sbom", TAG, *moved.publisher.here[:4]), ("gate", TAG, *moved.publisher.here)):
        assert "was built from the lock" in str(moved.publisher.run(*command).exception)
