"""Device code in the libraries of torch 2.7.1: torchkiln, an independent reader and cuobjdump agree."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz import fatbin_target
from tests.needs import needs_cuobjdump, nightly
from torchkiln.engine.environment import Environment
from torchkiln.engine.prefetch import fetched
from torchkiln.index.package_index import open_index
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Silent
from torchkiln.store.store import Store, cache_root
from torchkiln.wheel.cut import dead_ranges

pytestmark = pytest.mark.proof

# MB of code in libtorch_cuda.so by architecture; a GPU of 9.0 needs only sm_90 and sm_90a.
TORCH = {
    "sm_50": 137,
    "sm_60": 137,
    "sm_70": 102,
    "sm_75": 97,
    "sm_80": 129,
    "sm_86": 127,
    "sm_89": 0,
    "sm_90": 139,
    "sm_90a": 1,
}
# MB of device code in each wheel's libraries that a GPU of 9.0 does not need, measured on 2026-11-25.
DEAD = {
    "torch": 790,
    "torchvision": 8,
    "torchaudio": 5,
    "nvidia-cudnn-cu12": 611,
    "nvidia-cublas-cu12": 207,
    "nvidia-cusparse-cu12": 239,
    "nvidia-nccl-cu12": 200,
    "nvidia-cusolver-cu12": 198,
    "nvidia-curand-cu12": 47,
    "nvidia-cusparselt-cu12": 7,
    "nvidia-cufft-cu12": 0,
}
DAILY = ("torch", "torchvision", "nvidia-cublas-cu12")


@pytest.fixture(scope="module")
def wheels(locked: LockedCell) -> dict[str, Path]:
    """The locked wheels, by the name of their project."""
    store = Store(cache_root())
    environment = Environment(store=store, fetcher=open_index(os.environ, store), observer=Silent())
    return {wheel.name: fetched(wheel, environment) for wheel in locked.wheels if wheel.name in DEAD}


@contextmanager
def mapped(wheel: Path, member: str, folder: Path) -> Iterator[mmap.mmap]:
    """The library *member* of *wheel*, unpacked as library.so in *folder*; it is deleted afterwards."""
    path = folder / "library.so"
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, path.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        yield library
    path.unlink()


def libraries(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if re.search(r"\.so(\.[0-9.]+)?$", name)]


def test_the_code_in_torch(wheels: dict[str, Path], tmp_path: Path) -> None:
    """torchkiln finds the known sizes by architecture. Reading a file of 985 MB needs little memory."""
    with mapped(wheels["torch"], "torch/lib/libtorch_cuda.so", tmp_path) as library:
        tracemalloc.start()
        entries = fatbin_target.entries_of(library)
        spans = dead_ranges(library, ["9.0"])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    sizes = Counter[str]()
    for name, start, stop in entries:
        sizes[name] += stop - start
    assert {name: round(size / 1e6) for name, size in sizes.items()} == TORCH
    assert sum(span.size for span in spans) == sizes.total() - sizes["sm_90"] - sizes["sm_90a"]
    assert peak < 20e6


# test_thin.py compares every library of a thin image with its wheel.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in DAILY else [nightly]) for name in DEAD]
)
def test_every_library_is_understood(name: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    """An independent reader finds the same unneeded bytes, also for other GPUs."""
    total = 0
    for member in libraries(wheels[name]):
        with mapped(wheels[name], member, tmp_path) as library:
            total += sum(span.size for span in dead_ranges(library, ["9.0"]))
            for gpus in (("9.0",), ("7.5",), ("8.0", "8.9"), ("12.0",)):
                assert fatbin_target.judge(library, gpus) == "accepted", member

    assert round(total / 1e6) == DEAD[name]


@needs_cuobjdump
@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("torch", "torch/lib/libtorch_cuda.so"),
        ("torchvision", "torchvision/_C.so"),
        ("nvidia-cublas-cu12", "nvidia/cublas/lib/libcublasLt.so.12"),
    ],
)
def test_nvidias_tool_finds_the_same_entries(
    name: str, member: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    with mapped(wheels[name], member, tmp_path) as library:
        entries = fatbin_target.entries_of(library)
        listed = cuobjdump(tmp_path, "--list-elf", "--list-ptx", "library.so")

    by_tool = Counter(
        f"{'sm' if kind == 'cubin' else 'compute'}_{arch}"
        for arch, kind in re.findall(r"\.sm_(\w+)\.(cubin|ptx)$", listed, re.MULTILINE)
    )
    assert by_tool == Counter(name for name, _, _ in entries)


@needs_cuobjdump
def test_nvidias_tool_extracts_the_same_code(wheels: dict[str, Path], tmp_path: Path) -> None:
    """cuobjdump finds all code for sm_90 in the cut library, unchanged, and none for other architectures."""
    member = "torch/lib/libtorch_cuda_linalg.so"
    with mapped(wheels["torch"], member, tmp_path) as library:
        thin = bytearray(library)
        whole = extracted(tmp_path, bytes(library), "sm_90")
    for span in dead_ranges(thin, ["9.0"]):
        thin[span.start : span.stop] = bytes(span.size)

    assert extracted(tmp_path, thin, "sm_90") == whole
    assert len(whole) == 107
    with pytest.raises(subprocess.CalledProcessError):
        extracted(tmp_path, thin, "sm_80")


def extracted(folder: Path, library: bytes | bytearray, architecture: str) -> dict[str, bytes]:
    """The machine code for *architecture*, by file name."""
    (folder / "code").mkdir()
    try:
        (folder / "code" / "library.so").write_bytes(library)
        cuobjdump(folder / "code", "--gpu-architecture", architecture, "--extract-elf", "all", "library.so")
        return {path.name: path.read_bytes() for path in (folder / "code").glob("*.cubin")}
    finally:
        shutil.rmtree(folder / "code")


def cuobjdump(folder: Path, *words: str) -> str:
    done = subprocess.run(["cuobjdump", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout
