"""`make bench`: one wheel to one layer, ours against the best simple rivals; JSON and a table on stdout.

Sides, each one process on one core, reading the same wheel from the page cache and writing a blob:
  splice   the wheel's deflate streams copied, hashed, checked (what torchkiln does; without byte-code)
  isal-1   inflate with isal, tar, recompress with isal level 1, hash both: the fastest ordinary way
  zlib-6   the same with zlib level 6, as `docker build` does (one round: it is slow)
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import statistics
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast
from unittest import mock

from isal import isal_zlib

from torchkiln.cli.options import cache_root
from torchkiln.index.download import open_downloads
from torchkiln.lock import load_locked
from torchkiln.nouns import LockedWheel
from torchkiln.oci.layer import LayerWriter
from torchkiln.places import ROOT
from torchkiln.recipe import PREFIX, WHEEL_EPOCH
from torchkiln.store import Store
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import splice

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
WHEELS = ("torch", "nvidia-nccl-cu12", "jupyterlab")  # much code, one big library, many small files
ROUNDS = 3


def spliced(path: Path, wheel: LockedWheel, out: BinaryIO) -> int:
    """Our way; returns the blob's size."""
    layer = LayerWriter(out, mtime=WHEEL_EPOCH)
    scheme = Scheme(prefix=PREFIX, python="3.11")
    with WheelFile(path, wheel.size) as file:
        splice(
            file,
            wheel.filename,
            wheel.sha256,
            layer,
            scheme,
            source=lambda *_: None,
            bytecode=lambda: iter(()),
        )
    return layer.finish().size


class Recompressed(io.RawIOBase):
    """A sink for tar bytes: compresses and hashes both sides, as any layer writer must."""

    def __init__(self, out: BinaryIO, compressor: Callable[[], object]) -> None:
        self._out, self._compressor = out, cast("zlib._Compress", compressor())
        self._tar, self._blob, self.size = hashlib.sha256(), hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self._tar.update(view)
        self._emit(self._compressor.compress(view))
        return len(view)

    def end(self) -> int:
        self._emit(self._compressor.flush())
        return self.size

    def _emit(self, data: bytes) -> None:
        self._blob.update(data)
        self._out.write(data)
        self.size += len(data)


def recompressed(
    compressor: Callable[[], object], zlib_like: ModuleType
) -> Callable[[Path, LockedWheel, BinaryIO], int]:
    """The ordinary way with *compressor*, inflating by *zlib_like*."""

    def side(path: Path, wheel: LockedWheel, out: BinaryIO) -> int:
        with path.open("rb") as file:  # an honest rival checks the wheel too
            assert hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256
        sink = Recompressed(out, compressor)
        with (
            mock.patch.object(zipfile, "zlib", zlib_like),
            zipfile.ZipFile(path) as archive,
            tarfile.open(fileobj=sink, mode="w|", bufsize=1 << 20) as tar,  # type: ignore[call-overload]
        ):
            for entry in archive.infolist():
                info = tarfile.TarInfo(entry.filename)
                info.size = entry.file_size
                with archive.open(entry) as content:
                    tar.addfile(info, content)
        return sink.end()

    return side


SIDES: dict[str, tuple[int, Callable[[Path, LockedWheel, BinaryIO], int]]] = {
    "splice": (ROUNDS, spliced),
    "isal-1": (ROUNDS, recompressed(lambda: isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31), isal_zlib)),
    "zlib-6": (1, recompressed(lambda: zlib.compressobj(6, zlib.DEFLATED, 31), zlib)),
}


def measure(wheel: LockedWheel, path: Path, folder: Path) -> dict[str, dict[str, object]]:
    """Seconds of each round and the blob's size, side by side."""
    path.read_bytes()  # into the page cache
    told: dict[str, dict[str, object]] = {name: {"seconds": [], "bytes": 0} for name in SIDES}
    for turn in range(ROUNDS):
        for name, (rounds, side) in SIDES.items():
            if turn >= rounds:
                continue
            with (folder / "blob").open("wb", buffering=1 << 20) as out:
                started = time.perf_counter()
                told[name]["bytes"] = side(path, wheel, out)
                cast("list[float]", told[name]["seconds"]).append(time.perf_counter() - started)
    return told


def main() -> None:
    store = Store(cache_root())
    locked = load_locked(ROOT / "images", TAG)
    downloads = open_downloads(os.environ, store)
    result: dict[str, object] = {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "wheels": {}}
    print("| wheel | side | seconds (median) | MB/s of wheel | size / wheel | time / splice |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=store.root) as folder:
        for wheel in (one for one in locked.wheels if one.name in WHEELS):
            told = measure(wheel, downloads.fetch_wheel(wheel, store), Path(folder))
            cast("dict[str, object]", result["wheels"])[wheel.filename] = told
            base = statistics.median(cast("list[float]", told["splice"]["seconds"]))
            for name, side in told.items():
                seconds = statistics.median(cast("list[float]", side["seconds"]))
                rate, share = wheel.size / seconds / 1e6, cast("int", side["bytes"]) / wheel.size
                cells = (f"{seconds:.2f}", f"{rate:.0f}", f"{share:.3f}", f"{seconds / base:.2f}")
                print(f"| {' | '.join((f'{wheel.name} {wheel.version}', name, *cells))} |")
    Path("bench/last.json").write_text(json.dumps(result, indent=2) + "\n")
    print("raw values: bench/last.json", file=sys.stderr)


if __name__ == "__main__":
    main()
