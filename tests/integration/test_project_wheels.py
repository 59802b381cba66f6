"""A project's wheel files in its image: found by hash in folder or cache, and not copied with the code."""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.planned import FACTS, MATRIX
from tests.projects import NAME, SITE, TAG, Bench, bench
from tests.sdists import sdist
from tests.unit.test_project_code import paths
from tests.unpublished import locked_wheel
from tests.wheels import make_wheel
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import inputs_digest as cell_inputs
from torchkiln.locks.lock import save
from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.progress import Transfer
from torchkiln.model.project import BuiltFrom, Origin, ProjectLock
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import LayerBlob, unpack
from torchkiln.projects import build as building
from torchkiln.projects import code
from torchkiln.projects.build import source_of
from torchkiln.projects.file import save_project
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.source import ProjectRequest, needs_of
from torchkiln.projects.sources.sdists import BuiltSdist, SourceCode
from torchkiln.projects.wheel_fetcher import OwnWheels
from torchkiln.store.store import Store

PATH = "wheels/own-1-py3-none-any.whl"


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    return bench(tmp_path)


def put(small: Bench, text: bytes = b"VALUE = 1\n", folder: str = "wheels") -> Path:
    """Write the wheel of own 1 to the project's folder; the index does not have it."""
    return make_wheel(small.project / folder, "own", "1", {"own/__init__.py": text})


def locked(small: Bench, wheel: Path) -> ProjectLock:
    """The lock of the project with *wheel*, a file of its folder."""
    found = small.lock(wheel)
    (one,) = found.wheels
    path = wheel.relative_to(small.project).as_posix()
    own = (replace(one, index=Source.PROJECT),)
    return replace(found, wheels=own, origins=(Origin(name="own", path=path),))


def root_of(small: Bench) -> Path:
    image = open_layout(small.layout).image(NAME)
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    unpack(layers, small.folder / "unpacked")
    return small.folder / "unpacked"


def forget(small: Bench) -> None:
    """Delete all wheels and their layers from the cache, as if it were another machine's."""
    for kind in ("wheels/*/*", "records/layers/*", "records/effects/*"):
        for path in small.store.root.glob(kind):
            path.unlink()


def test_the_folders_file_is_installed(small: Bench) -> None:
    built = small.build(locked(small, put(small)))

    root = root_of(small)
    assert (root / SITE / "own/__init__.py").read_text() == "VALUE = 1\n"
    assert small.index.fetched.count("own-1-py3-none-any.whl") == 0
    facts = json.loads((root / "etc/torchkiln/project.json").read_text())
    (wheel,) = facts["wheels"]
    assert (wheel["name"], wheel["from"]) == ("own", PATH)
    assert built.effect.removed == ()


def test_the_cache_has_it_when_the_folder_no_longer_has_it(small: Bench) -> None:
    wheel = put(small)
    lock = locked(small, wheel)
    first = small.build(lock).built.image.manifest
    wheel.unlink()
    for path in small.store.root.glob("records/layers/*"):
        path.unlink()
    assert small.build(lock).built.image.manifest == first


def test_new_code_is_built_when_the_cache_has_lost_the_wheel(small: Bench) -> None:
    """`rebuild`, which `build --watch` uses, takes the wheel from the project's folder again."""
    lock = locked(small, put(small))
    before = small.build(lock)
    forget(small)
    (small.project / "train.py").write_text("print('two')\n")

    small.rebuild(before, lock)
    root = root_of(small)
    assert (root / SITE / "own/__init__.py").read_text() == "VALUE = 1\n"
    assert (root / "app/train.py").read_text() == "print('two')\n"


def test_another_or_no_file_is_refused(small: Bench) -> None:
    """Each message says what to do; the image in the layout does not change."""
    wheel = put(small)
    lock = locked(small, wheel)
    small.build(lock)
    forget(small)
    wheel.unlink()
    with pytest.raises(BuildFailed) as missing:
        small.build(lock)
    assert (
        f"{PATH}: No such file or directory, and the cache does not have this wheel" in missing.value.message
    )
    assert "lock the project again" in missing.value.hint

    put(small, b"VALUE = 2\n")
    with pytest.raises(BuildFailed) as other:
        small.build(lock)
    assert f"{PATH}: checksum mismatch" in other.value.message
    assert "in the folder" in other.value.message


def test_a_file_that_changes_while_it_is_read_is_refused(small: Bench) -> None:
    """The build hashes the bytes that it installs, so it detects a change after an earlier read."""
    wheel = put(small)
    lock = locked(small, wheel)
    known = lock.wheels[0].sha256
    put(small, b"VALUE = 3\n")
    with (
        patch("torchkiln.projects.wheel_files.digest_of", lambda _path, _store: (known, 1)),
        pytest.raises(BadWheel) as caught,
    ):
        small.build(lock)
    assert "mismatch" in caught.value.reason
    assert NAME not in open_layout(small.layout).refs()


def test_a_link_out_of_the_folder_is_not_followed(small: Bench) -> None:
    wheel = put(small)
    lock = locked(small, wheel)
    wheel.rename(small.folder / "elsewhere.whl")
    wheel.symlink_to(small.folder / "elsewhere.whl")
    with pytest.raises(BuildFailed) as caught:
        small.build(lock)
    assert f"{PATH}: not a file in the project's folder" in caught.value.message


class Builder:
    """Used in place of `SandboxedBuilder`; it builds a wheel that contains *text*."""

    def __init__(self, small: Bench, text: bytes) -> None:
        self.small, self.text = small, text
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def again(self, code: SourceCode, cell: LockedCell, requires: tuple[LockedWheel, ...]) -> BuiltSdist:
        sdist, store = code.archive, self.small.store
        assert all(map(store.has_wheel, (sdist, *requires)))
        assert TAG in open_layout(self.small.layout).refs()  # the parent is built first, so the base is known
        self.asked.append((sdist.filename, tuple(wheel.name for wheel in requires)))
        made = make_wheel(self.small.folder / "made", "own", "1", {"own/__init__.py": self.text})
        wheel = replace(locked_wheel(made), index=Source.PROJECT)
        temporary = store.temporary("made")
        temporary.write_bytes(made.read_bytes())
        store.adopt(temporary, store.wheel(wheel))
        return BuiltSdist(wheel=wheel, metadata=b"", requires=requires)


def test_a_wheel_that_was_built_is_built_again_on_another_machine(
    small: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is built from the locked sdist with the locked build requirements. Other bytes are refused."""
    # Pretend that the wheel has libraries: these are checked before the project's image is built.
    monkeypatch.setattr(building, "is_unread", lambda wheel, store: not store.has_wheel(wheel))
    backend = small.wheel("backend", "1", "backend.py")
    filename, data = sdist({"pyproject.toml": ""}, "own", "1")
    small.index.files[filename] = data
    made = make_wheel(small.folder / "made", "own", "1", {"own/__init__.py": b"VALUE = 5\n"})
    lock = small.lock(made)
    built = BuiltFrom(
        sdist=filename,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        requires=(locked_wheel(backend),),
        reproducible=True,
    )
    lock = replace(
        lock,
        wheels=(replace(lock.wheels[0], index=Source.PROJECT),),
        origins=(Origin(name="own", built=built),),
    )
    other = Builder(small, b"VALUE = 6\n")
    with (
        patch("torchkiln.projects.sources.repositories.SandboxedBuilder", lambda **_: other),
        pytest.raises(BuildFailed) as caught,
    ):
        small.build(lock)
    assert "own-1.tar.gz: checksum mismatch: the wheel built now has sha256 " in caught.value.message

    builder, options = Builder(small, b"VALUE = 5\n"), list[dict[str, object]]()
    with patch(
        "torchkiln.projects.sources.repositories.SandboxedBuilder",
        lambda **given: options.append(given) or builder,
    ):
        small.build(lock)
        assert options[0]["locate"] == MATRIX.locate  # of the archive of a standalone Python
        assert builder.asked == [("own-1.tar.gz", ("backend",))]
        small.build(lock)
    assert len(builder.asked) == 1
    assert not list(small.store.root.glob("wheels/*/*.part"))
    assert (root_of(small) / SITE / "own/__init__.py").read_text() == "VALUE = 5\n"


def test_one_wheel_is_built_at_a_time(tmp_path: Path) -> None:
    """Two builds at a time could need too much memory, because each may use gigabytes."""
    names = ("one", "two", "three")
    made = [locked_wheel(make_wheel(tmp_path, name, "1", {f"{name}.py": b""})) for name in names]
    running, most = list[str](), list[int]()

    def rebuild(wheel: LockedWheel, _: Origin) -> Path:
        running.append(wheel.name)
        time.sleep(0.05)
        most.append(len(running))
        running.remove(wheel.name)
        return tmp_path / wheel.filename

    built = BuiltFrom(sdist="x-1.tar.gz", sha256="0" * 64, size=1)
    origins = [Origin(name=name, built=built) for name in names]
    fetcher = OwnWheels(tmp_path, origins, Store(tmp_path / "cache"), {}, rebuild)

    def fetch(wheel: LockedWheel) -> None:
        own = replace(wheel, index=Source.PROJECT)
        fetcher.fetch(own, tmp_path / wheel.name, Transfer())

    with ThreadPoolExecutor() as pool:
        list(pool.map(fetch, made))
    assert most == [1, 1, 1]
    assert all((tmp_path / name).is_file() for name in names)


def source(small: Bench, settings: str, requirements: str) -> code.ProjectCode:
    """The code of the project with these two files and a fresh lock."""
    (small.project / "torchkiln.toml").write_text(settings)
    (small.project / "requirements.txt").write_text(requirements)
    images = small.folder / "images"
    locks = LockFolder(images, MATRIX, FACTS)
    cell = replace(small.cell, inputs=cell_inputs(small.cell.resolution, locks.bound))
    save(images, cell)
    small.cell = cell
    (wheel,) = (
        path for folder in ("wheels", "vendor") for path in (small.project / folder).glob("own-*.whl")
    )
    needs = needs_of(small.project, cell, small.store)
    lock = replace(locked(small, wheel), name=needs.name, inputs=inputs_digest(needs, cell))
    save_project(small.project, lock)
    request = ProjectRequest(folder=small.project, cell=cell.resolution.cell)
    return source_of(request, locks, small.store, environ={}, made=lambda *_: None).code


@pytest.mark.parametrize(
    ("folder", "settings", "requirements"),
    [
        ("wheels", 'wheels = "wheels"\n', "own\n"),
        ("vendor", "", "./vendor/own-1-py3-none-any.whl\n"),
    ],
)
def test_the_code_does_not_have_the_wheels_again(
    small: Bench, monkeypatch: pytest.MonkeyPatch, folder: str, settings: str, requirements: str
) -> None:
    """Wheels do not count towards the size limit of the code."""
    put(small, folder=folder)
    if folder == "wheels":
        (small.project / folder / "big-1-py3-none-any.whl").write_bytes(b"0" * 5000)
    monkeypatch.setattr(code, "MOST_BYTES", 1500)
    found = paths(source(small, settings, requirements))
    assert found == ["requirements.txt", "torchkiln.lock.json", "torchkiln.toml", "train.py"]
