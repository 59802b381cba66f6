"""The real 2.7.1 for one GPU: independent code compares every byte of its libraries with the wheels."""

from __future__ import annotations

import gzip
import mmap
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from tests.engine.registry import RunningRegistry
from tests.needs import nightly
from tests.programs import run_program
from tests.proof.conftest import build
from tests.proof.headline import SITE
from torchkiln.locks.lock import save
from torchkiln.model.lock import LockedCell
from torchkiln.oci.validate.validate import validate
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof

MAGIC = b"\x50\xed\x55\xba\x01\x00\x10\x00"  # of a fatbin container, version 1, with a header of 16 bytes
PTX, MACHINE_CODE = 1, 2
CUT = ("torch", "nvidia-")  # names of wheels whose libraries are cut begin with one of these
EXACT = 0x100000  # a flag of code for exactly one capability, sm_90a
# Libraries that also have containers in .rodata, which they load themselves; these containers are not cut.
EMBEDDED = ("/cuda_cupti/", "/cusparselt/")
PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The code for one architecture, and the bytes of its payload."""

    kind: int
    architecture: int
    exact: bool
    payload: int
    end: int


@dataclass(frozen=True, kw_only=True)
class ThinImage:
    """The output of `build --json`, and the folder with its lock."""

    built: dict[str, Any]
    images: Path

    def again(self, output: Path, cache: Path) -> dict[str, Any]:
        return build(output, *options(self.images), cache=cache)


def options(images: Path) -> tuple[str, ...]:
    return ("--gpus", "9.0", "--own-use", "--images", str(images))


@pytest.fixture(scope="module")
def thin(locked: LockedCell, tmp_path_factory: pytest.TempPathFactory, room: None) -> Iterator[ThinImage]:
    """The thin image for capability 9.0, in which NVIDIA's libraries are also cut."""
    folder = tmp_path_factory.mktemp("thin")
    save(folder / "images", locked)
    yield ThinImage(built=build(folder / "dist", *options(folder / "images")), images=folder / "images")
    shutil.rmtree(folder)


def test_each_library_has_the_wanted_code_and_is_otherwise_zero_or_unchanged(
    thin: ThinImage, locked: LockedCell, tmp_path: Path
) -> None:
    """Every byte outside of a container's payloads is that of the wheel; triton is not cut."""
    wheels, store = {}, Store(cache_root())
    for wheel in locked.wheels:
        with zipfile.ZipFile(store.wheel(wheel)) as archive:
            wheels |= {f"{SITE}/{name}": wheel for name in archive.namelist()}
    changed = zeroed = 0
    for path, content in libraries(thin.built):
        wheel = wheels[path]
        with zipfile.ZipFile(store.wheel(wheel)) as archive:
            whole = mapped(archive.open(path.removeprefix(f"{SITE}/")), tmp_path)
        cut = mapped(content, tmp_path)
        assert len(whole) == len(cut), path
        if not wheel.name.startswith(CUT):
            unchanged(path, whole, cut, 0, len(whole))
            continue
        zeros = compare(path, whole, cut)
        changed, zeroed = changed + bool(zeros), zeroed + zeros
    assert changed >= 20
    assert 2.2e9 < zeroed < 2.4e9


def libraries(built: dict[str, Any]) -> Iterator[tuple[str, IO[bytes]]]:
    """Every shared library of more than 1 MB in the wheel layers."""
    for layer in built["layers"][:-2]:
        blob = Path(built["layout"]) / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:")
        with gzip.open(blob) as content, tarfile.open(fileobj=content, mode="r|") as tar:
            for member in tar:
                if ".so" in member.name and member.size > 1_000_000:
                    library = tar.extractfile(member)
                    assert library is not None
                    yield member.name, library


def mapped(content: IO[bytes], folder: Path) -> mmap.mmap:
    """The bytes of *content*, in a file without a name."""
    with content, tempfile.TemporaryFile(dir=folder) as file:
        shutil.copyfileobj(content, file, PIECE)
        file.flush()
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def compare(path: str, whole: mmap.mmap, cut: mmap.mmap) -> int:
    """The number of bytes that were replaced by zeros; fails if any other byte differs."""
    zeroed = position = 0
    while (start := whole.find(MAGIC, position)) >= 0:
        stop = start + 16 + number(whole, start + 8, 8)
        entries = list(entries_of(whole, start + 16, stop)) if start % 8 == 0 else []
        if not entries or entries[-1].end != stop:  # these bytes are no container
            unchanged(path, whole, cut, position, start + 8)
            position = start + 8
            continue
        needed = loaded(entries)
        if any(name in path for name in EMBEDDED) and whole[start:stop] == cut[start:stop]:
            needed = entries
        for entry in entries:
            unchanged(path, whole, cut, position, entry.payload)
            size = entry.end - entry.payload
            if entry in needed or not needed:
                unchanged(path, whole, cut, entry.payload, entry.end)
            elif size:
                assert cut[entry.payload : entry.end].count(0) == size, f"{path} at {entry.payload:#x}"
                zeroed += size
            position = entry.end
    unchanged(path, whole, cut, position, len(whole))
    return zeroed


def loaded(entries: list[Entry]) -> list[Entry]:
    """The entries that a GPU of capability 9.0 may load: code for sm_90; without such code, PTX."""
    if any(entry.kind not in (PTX, MACHINE_CODE) for entry in entries):  # with LTO code, nothing is cut
        return entries
    code = [entry for entry in entries if entry.kind == MACHINE_CODE and entry.architecture == 90]
    ptx = [entry for entry in entries if entry.kind == PTX and entry.architecture <= 90]
    if any(not entry.exact for entry in code):
        return code
    newest = max((entry.architecture for entry in ptx if not entry.exact), default=0)
    return code + [entry for entry in ptx if entry.architecture == (90 if entry.exact else newest)]


def entries_of(library: mmap.mmap, start: int, stop: int) -> Iterator[Entry]:
    while start + 64 <= stop <= len(library):
        payload = start + number(library, start + 4, 4)
        end = payload + number(library, start + 8, 8)
        yield Entry(
            kind=number(library, start, 2),
            architecture=number(library, start + 28, 4),
            exact=bool(number(library, start + 40, 8) & EXACT),
            payload=payload,
            end=end,
        )
        if end <= start:
            return
        start = end


def number(library: mmap.mmap, start: int, width: int) -> int:
    return int.from_bytes(library[start : start + width], "little")


def unchanged(path: str, whole: mmap.mmap, cut: mmap.mmap, start: int, stop: int) -> None:
    for at in range(start, stop, PIECE):
        same = whole[at : min(at + PIECE, stop)] == cut[at : min(at + PIECE, stop)]
        assert same, f"{path} differs within 1 MiB from byte {at:#x} on"


@nightly
def test_a_second_cache_gives_the_same_image(thin: ThinImage, locked: LockedCell, tmp_path: Path) -> None:
    """Wheels and base come from the first cache; layers and byte-code are rebuilt."""
    store, own = Store(cache_root()), Store(tmp_path / "cache")
    files = [(store.wheel(wheel), own.wheel(wheel)) for wheel in locked.wheels]
    for source, target in (*files, (store.blob(locked.base.digest), own.blob(locked.base.digest))):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copy(source, target)
    try:
        again = thin.again(tmp_path / "dist", tmp_path / "cache")
        assert (again["digest"], again["layers"]) == (thin.built["digest"], thin.built["layers"])
    finally:
        shutil.rmtree(tmp_path)


def test_only_layers_of_cut_libraries_differ_from_the_full_image(
    thin: ThinImage, image: dict[str, Any]
) -> None:
    """docs/thin.md has the right size."""
    full = {layer["digest"] for layer in image["layers"]}
    titles = [layer["what"] for layer in thin.built["layers"] if layer["digest"] not in full]
    assert all(" for 9.0" in title or title.startswith("torchkiln") for title in titles), titles
    assert thin.built["compressed_bytes"] < 1.85e9
    assert thin.built["unpacked_bytes"] - image["unpacked_bytes"] in range(-100_000, 100_000)


@nightly
def test_it_is_valid_and_has_the_files_of_its_records(thin: ThinImage, tmp_path: Path) -> None:
    """The layout is valid, and the smoke check `lock` passes in the image."""
    assert validate(Path(thin.built["layout"]), thin.built["tag"]) == ()
    command = [sys.executable, str(ROOT / "build.py"), "smoke", "--force", "--output", thin.built["layout"]]
    cache = tmp_path / "cache"  # a new cache: another process may delete images in the usual one
    try:
        done = run_program(
            [*command, "--images", str(thin.images), "--only", "lock", thin.built["ref"]],
            env={**os.environ, "TORCHKILN_CACHE": str(cache)},
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        root = cache / "rootfs" / thin.built["digest"].removeprefix("sha256:")
        allocated = sum(path.lstat().st_blocks * 512 for path in root.rglob("*") if path.is_file())
        assert 0 < allocated < thin.built["unpacked_bytes"] - 1.8e9, "the zeros are not holes"
    finally:
        shutil.rmtree(cache, ignore_errors=True)


@nightly
def test_docker_pulls_and_runs_it(
    thin: ThinImage, registry: RunningRegistry, engine: Mapping[str, str]
) -> None:
    """It starts without a GPU; pushing it requires a confirmation."""
    command = [sys.executable, str(ROOT / "build.py"), "push", "--output", thin.built["layout"], "--quiet"]
    to = ("--to", f"{registry.host}/team/thin", "--tag", "mine", thin.built["ref"])
    refused = run_program([*command, *to], cwd=ROOT)
    assert (refused.returncode, registry.tags("team/thin")) == (7, []), refused.stderr
    subprocess.run([*command, "--licence-confirmed", *to], cwd=ROOT, check=True, capture_output=True)
    reference = f"{registry.host}/team/thin@{thin.built['digest']}"

    def docker(*words: str) -> subprocess.CompletedProcess[str]:
        return run_program(["docker", *words], env=dict(engine))

    pulled = docker("pull", "--quiet", reference)
    assert pulled.returncode == 0, pulled.stderr
    try:
        ran = docker("run", "--rm", reference, "python", "-c", "import torch; print(torch.ones(3).sum())")
        assert ran.stdout.splitlines()[-1:] == ["tensor(3.)"], ran.stderr
    finally:
        docker("image", "rm", "--force", reference)
