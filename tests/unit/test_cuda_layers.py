"""The layers of the flavor devel for CUDA 12.1, made from small imitations of NVIDIA's archives."""

from __future__ import annotations

import gzip
import io
import math
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cells import HOME, HostPython, planned_devel, put_base, small_wheels
from tests.servers.cuda_archives import write_small
from torchkiln.cache.usage import cache_usage
from torchkiln.engine import image as image_build
from torchkiln.engine import wheel_layers
from torchkiln.engine.cache_claims import remember_image
from torchkiln.engine.cuda_layers import kept_path, lay_out, part_path, toolkit_layers
from torchkiln.engine.environment import Environment
from torchkiln.engine.known import forecast
from torchkiln.errors import BuildFailed
from torchkiln.index.archives import VARIABLE, CudaArchives
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedArchive
from torchkiln.model.plan import ImagePlan, ToolkitLayer
from torchkiln.model.progress import Silent
from torchkiln.oci.validate.validate import validate
from torchkiln.store.store import Store

INSTALLED = {
    "bin/cuda-gdb": 0o755,
    "bin/crt/link.stub": 0o644,
    "bin/nvcc": 0o755,
    "bin/nvcc.profile": 0o755,
    "licenses/cuda_cudart/LICENSE": 0o644,
    "licenses/cuda_gdb/LICENSE": 0o644,
    "licenses/cuda_nvcc/LICENSE": 0o644,
    "licenses/libcublas/LICENSE": 0o644,
    "nvvm/bin/cicc": 0o755,
    "nvvm/lib64/libnvvm.so": 0o777,
    "nvvm/lib64/libnvvm.so.4": 0o644,
    "nvvm/libdevice/libdevice.10.bc": 0o644,
    "pkgconfig/cudart-12.1.pc": 0o644,
    "targets/x86_64-linux/include/crt/host_config.h": 0o644,
    "targets/x86_64-linux/include/cublas_v2.h": 0o644,
    "targets/x86_64-linux/include/cuda.h": 0o644,
    "targets/x86_64-linux/lib/libcudadevrt.a": 0o644,
    "targets/x86_64-linux/lib/libcudart_static.a": 0o644,
    "targets/x86_64-linux/lib/stubs/libcublas.so": 0o644,
    "targets/x86_64-linux/lib/stubs/libcuda.so": 0o644,
}


class Place:
    """A folder of archives, the cell whose lock contains them, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archives = write_small(folder / "redist")
        self.plan = planned_devel(small_wheels(folder), self.archives)
        self.source = CudaArchives({VARIABLE: str(folder / "redist")})

    @property
    def specs(self) -> list[ToolkitLayer]:
        return [spec for spec in self.plan.made if isinstance(spec, ToolkitLayer)]

    def layers(self, cache: str = "cache", source: CudaArchives | None = None) -> tuple[Store, list[Blob]]:
        """Make the toolkit's layers in *cache*."""
        store = Store(self.folder / cache)
        made = toolkit_layers(self.specs, store, source or self.source, Silent())
        return store, [made[spec] for spec in self.specs]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def members(store: Store, layers: list[Blob]) -> dict[str, tarfile.TarInfo]:
    """The entries of the layers except for folders, read by Python's tarfile."""
    found = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(store.blob(layer.digest).read_bytes()))) as tar:
            found |= {member.name: member for member in tar if not member.isdir()}
    return found


def test_files_are_in_the_folders_of_nvidias_installer(place: Place) -> None:
    found = members(*place.layers())

    assert {name.removeprefix(f"{HOME}/"): member.mode for name, member in found.items()} == INSTALLED
    assert found[f"{HOME}/nvvm/lib64/libnvvm.so"].linkname == "libnvvm.so.4"
    assert {(item.uid, item.gid, item.uname, item.mtime) for item in found.values()} == {
        (0, 0, "", 315532800)
    }


def test_the_same_archives_give_the_same_layers(place: Place) -> None:
    """The cache, the layout of the archives' folder and the cell make no difference."""
    _, once = place.layers()
    flat = place.folder / "flat"
    flat.mkdir()
    for archive in place.archives:
        os.link(place.folder / "redist" / archive.path, flat / archive.filename)
    _, twice = place.layers("other", CudaArchives({VARIABLE: str(flat)}))

    assert once == twice


def test_the_archive_is_deleted_and_its_used_files_are_stored(place: Place) -> None:
    """The cache does not store an unused library of 200 kB; the user's folder of archives is not changed."""
    store, layers = place.layers()
    for layer in layers:
        store.blob(layer.digest).unlink()
    for archive in place.archives:
        (place.folder / "redist" / archive.path).unlink()
    _, again = place.layers()

    assert again == layers
    stored_bytes = sum(path.stat().st_size for path in (store.root / "toolkits").rglob("*") if path.is_file())
    assert stored_bytes < 60_000


def test_an_image_with_the_toolkit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers are the runtime image's, the toolkit's, and an overlay with links into the wheels."""
    monkeypatch.setattr(wheel_layers, "interpreter", lambda _base, _store: HostPython())
    store = Store(place.folder / "cache")
    put_base(place.plan.locked.base, store)
    built = _built(place.plan, store, place)

    titles = [layer.title for layer in built.image.layers]
    assert titles[-4:-1] == [
        "CUDA 12.1.1: parts of 2 archives",
        "CUDA 12.1.1: cuda_gdb 12.1.105",
        "CUDA 12.1.1: cuda_nvcc 12.1.105",
    ]
    assert [str(fault) for fault in validate(place.folder / "layout", None)] == []
    assert _built(place.plan, store, place).image.manifest == built.image.manifest
    assert forecast(place.plan, store)["downloads"] == 0


def _built(plan: ImagePlan, store: Store, place: Place) -> image_build.BuildResult:
    environment = Environment(
        store=store, fetcher=Shelf(place.folder), observer=Silent(), archives=place.source
    )
    return image_build.build(plan, place.folder / "layout", environment)


def test_the_cache_lists_stored_files_of_archives(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild of the toolkit's layers needs them; a partially downloaded archive can be removed."""
    monkeypatch.setattr(wheel_layers, "interpreter", lambda _base, _store: HostPython())
    store = Store(place.folder / "cache")
    put_base(place.plan.locked.base, store)
    built = _built(place.plan, store, place)
    remember_image(store, built.image, place.plan, built.reused)
    (store.root / part_path(place.archives[0])).write_bytes(b"half")

    usage = cache_usage(store, [place.folder / "layout"], place.folder / "images")
    entries = {entry.path: entry for entry in usage.entries}
    for archive in place.archives:
        kept = entries[kept_path(archive)]
        assert (kept.kind, kept.lifetime) == ("toolkits", math.inf)
    assert entries[part_path(place.archives[0])].kind == "leftovers"


class Shelf:
    """A fetcher of wheels in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def size(self, wheel):  # type: ignore[no-untyped-def]
        raise AssertionError

    def tail(self, wheel, count):  # type: ignore[no-untyped-def]
        return None

    def fetch(self, wheel, path, transfer):  # type: ignore[no-untyped-def]
        path.write_bytes((self.folder / wheel.filename).read_bytes())


def test_files_for_a_build_context(place: Place) -> None:
    store = Store(place.folder / "cache")
    into = lay_out(place.plan, store, place.folder / "tree", archives=place.source, observer=Silent())

    assert into is not None
    there = {
        str(path.relative_to(into / HOME)) for path in into.rglob("*") if path.is_symlink() or path.is_file()
    }
    assert there == set(INSTALLED)
    plain = replace(place.plan, layers=tuple(layer for layer in place.plan.layers if layer.kind != "toolkit"))
    assert lay_out(plain, store, place.folder / "none", archives=place.source, observer=Silent()) is None


def test_without_a_source_the_error_names_archive_and_setting(place: Place) -> None:
    with pytest.raises(BuildFailed) as caught:
        place.layers(source=CudaArchives({}))

    first = min(place.archives, key=lambda archive: archive.component)
    assert first.path in caught.value.message
    assert first.sha256 in caught.value.message
    assert "and 3 more archives" in caught.value.message
    assert VARIABLE in caught.value.hint
    assert caught.value.exit_code == 6


def test_a_missing_archive_is_named(place: Place) -> None:
    missing: LockedArchive = place.archives[0]
    (place.folder / "redist" / missing.path).unlink()

    with pytest.raises(BuildFailed, match=missing.path) as caught:
        place.layers()
    assert VARIABLE in caught.value.hint
