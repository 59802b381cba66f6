"""Links to NVIDIA's libraries in the loader's folder: names in the lock, links in image and Dockerfile."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.allowed import LIST
from tests.layers import SCHEME, as_locked
from tests.planned import LOCK_DIGEST, locked, wheel
from tests.servers.index_server import IndexServer, wheel_bytes
from torchkiln.errors import BadWheel, Stale
from torchkiln.index.package_index import open_index
from torchkiln.locks.file import from_json, lock_digest, to_json
from torchkiln.locks.lock import same_files
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan
from torchkiln.model.recipe import WHEEL_EPOCH
from torchkiln.oci.layer import LayerWriter
from torchkiln.plan.plan import plan
from torchkiln.store.store import Store
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import splice

FILES = {
    "nvidia/cublas/lib/libcublasLt.so.12": b"",
    "nvidia/cublas/lib/libcublas.so.12": b"",
    "cusparselt/lib/libcusparseLt.so.0": b"",
    "nvidia/nvrtc/lib/libnvrtc-builtins.so.12.6": b"",
    "nvidia/cupti/lib/libnvperf_host.so": b"",
    "nvidia/nvshmem/lib/nvshmem_bootstrap_uid.so.3": b"",
    "nvidia/cuda_runtime/lib/libcudart_static.a": b"",
    "nvidia/cuda_runtime/lib/stubs/libcuda.so": b"",  # would hide the driver
    "nvidia/cublas/include/cublas.so": b"",
}
LIBRARIES = (
    "cusparselt/lib/libcusparseLt.so.0",
    "nvidia/cublas/lib/libcublas.so.12",
    "nvidia/cublas/lib/libcublasLt.so.12",
    "nvidia/cupti/lib/libnvperf_host.so",
    "nvidia/nvrtc/lib/libnvrtc-builtins.so.12.6",
    "nvidia/nvshmem/lib/nvshmem_bootstrap_uid.so.3",
)


@pytest.fixture(scope="module")
def server() -> Iterator[IndexServer]:
    """An index with one wheel of NVIDIA and one of another publisher; both have FILES."""
    with IndexServer() as found:
        for name in ("nvidia-all", "other"):
            found.add("default", name, "1.0", files=FILES)
        yield found


def libraries(server: IndexServer, cache: Path, *, image: bool = True) -> dict[str, tuple[str, ...]]:
    """The libraries of both wheels in a lock."""
    environ = {"UV_DEFAULT_INDEX": server.url("default"), "PIP_CONFIG_FILE": "/dev/null"}
    nothing: dict[str, Any] = dict.fromkeys(("constraints", "keep", "bound"), ())
    names = ("nvidia-all", "other")
    wanted = IndexRequest(requirements=names, python="3.11", glibc=(2, 36), as_of="2099-01-01", **nothing)
    found = open_index(environ, Store(cache)).wheels(replace(wanted, image=image))
    return {wheel.name: wheel.libraries for wheel in found}


def test_a_lock_of_an_image_lists_the_libraries_of_nvidias_wheels(
    server: IndexServer, tmp_path: Path
) -> None:
    """Those in a folder called lib, read by range requests or from the whole file."""
    found = {"nvidia-all": LIBRARIES, "other": ()}
    assert libraries(server, tmp_path / "a") == found
    assert libraries(server, tmp_path / "a") == found  # from the cache
    server.faults.no_ranges = True
    try:
        assert libraries(server, tmp_path / "b") == found
    finally:
        server.faults.no_ranges = False


def test_a_lock_of_a_project_lists_none(server: IndexServer, tmp_path: Path) -> None:
    """Their links are in the top layer of the image of a cell."""
    assert libraries(server, tmp_path, image=False) == {"nvidia-all": (), "other": ()}


def cell(*names: str) -> LockedCell:
    """The lock of a small cell, with a wheel of NVIDIA that has the libraries *names*."""
    made = locked()
    wheels = (
        replace(wheel("nvidia-all", "1.0", megabytes=1), libraries=names),
        wheel("pip", "25.3", megabytes=2),
    )
    return replace(made, wheels=wheels)


def planned(made: LockedCell) -> ImagePlan:
    return plan(made, (), aliases=(), lock_digest=LOCK_DIGEST)


def test_the_digest_of_a_lock_covers_the_libraries() -> None:
    with_links, without = cell(*LIBRARIES), cell()

    assert from_json(to_json(with_links)) == with_links
    assert b"libraries" not in to_json(without)  # earlier locks are read, and keep their digest
    assert lock_digest(with_links) != lock_digest(without)
    with pytest.raises(Stale, match="libraries"):
        from_json(to_json(cell("nvidia/lib/../../../etc/lib/x.so")))


def test_the_recorded_layers_do_not_depend_on_the_libraries() -> None:
    """The links are in the top layer, so the layers of an earlier lock are valid after it is locked again."""
    assert same_files(cell(*LIBRARIES), cell())


def test_a_lock_cannot_link_a_library_of_another_wheel() -> None:
    """Such a link could replace the OS's own libc, and the wheel is not part of the GPU stack."""
    made = cell()
    *others, pip = made.wheels
    hostile = replace(made, wheels=(*others, replace(pip, libraries=("pip/lib/libc.so.6",))))

    assert [link for link in planned(hostile).overlay.links if link.path.endswith("/libc.so.6")] == []


def test_the_smoke_suite_does_not_expect_that_a_linked_library_is_missing() -> None:
    """`linkage` fails if a library of the list is found; some images have links, others do not."""
    listed = json.loads(LIST.read_bytes())["entries"]
    sonames = {name for entry in listed for names in entry["files"].values() for name in names}

    assert {name for name in sonames if re.match("lib(cu|nv(rtc|Jit|Tools)|nccl)", name)} == set()


@pytest.mark.parametrize("missing", ["", "nvidia/cublas/lib/libcublas.so.13"])
def test_a_wheel_without_a_locked_library_is_refused(missing: str, tmp_path: Path) -> None:
    """Else the image would have a link to nothing."""
    name, data = wheel_bytes("some", "1.0", files=FILES)
    path = tmp_path / name
    path.write_bytes(data)
    listed = tuple(sorted(filter(None, (*LIBRARIES, missing))))
    entry = replace(as_locked(path), libraries=listed)

    def spliced() -> None:
        layer = LayerWriter(io.BytesIO(), mtime=WHEEL_EPOCH)
        with WheelFile(path, len(data)) as file:
            splice(file, entry, layer, SCHEME, source=None, bytecode=lambda: ())

    if missing:
        with pytest.raises(BadWheel, match=r"libcublas\.so\.13 is missing; the lock lists it"):
            spliced()
    else:
        spliced()
