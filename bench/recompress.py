"""`python -m bench.recompress IMAGES TAG STORE OUT`: make layers simply, by inflate, tar and isal at level 1.

This program makes every layer of the plan from cached wheels, with a process per core, the largest first. It
verifies each wheel's hash, and hashes the tar and the blob. It installs nothing (no launchers, no RECORD, no
bytecode). Prints the bytes of its layers.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import BinaryIO
from unittest import mock

from isal import isal_zlib

from torchkiln.index.verified import verify
from torchkiln.locks.lock import load_locked
from torchkiln.model.plan import WheelLayer
from torchkiln.plan.layers import wheel_layers
from torchkiln.store.store import Store

_LEVEL = 1
_BUFFER = 1 << 20


class Recompressed(io.RawIOBase):
    """A sink for a tar: compresses it, and hashes both."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._compressor = out, isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, 31)
        self._tar, self._blob, self.size = hashlib.sha256(), hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self._tar.update(view)
        self._emit(self._compressor.compress(view))
        return len(view)

    def end(self) -> int:
        """Finish; return the size of the blob."""
        self._emit(self._compressor.flush())
        return self.size

    def _emit(self, data: bytes) -> None:
        self._blob.update(data)
        self._out.write(data)
        self.size += len(data)


def layer(spec: WheelLayer, wheels: tuple[Path, ...], out: Path) -> int:
    """Write the *wheels* of *spec* as one blob to *out*; return its size."""
    with out.open("wb", buffering=_BUFFER) as file:
        sink = Recompressed(file)
        with tarfile.open(fileobj=sink, mode="w|", bufsize=_BUFFER) as tar:
            for wheel, path in zip(spec.wheels, wheels, strict=True):
                verify(wheel, path)
                with mock.patch.object(zipfile, "zlib", isal_zlib), zipfile.ZipFile(path) as archive:
                    for entry in archive.infolist():
                        info = tarfile.TarInfo(entry.filename)
                        info.size = entry.file_size
                        with archive.open(entry) as content:
                            tar.addfile(info, content)
        return sink.end()


def main(images: Path, tag: str, store: Store, out: Path) -> None:
    """Write all layers into the folder *out*."""
    locked = load_locked(images, tag)
    specs = sorted(
        wheel_layers(locked.wheels, python=locked.python),
        key=lambda spec: -sum(wheel.size for wheel in spec.wheels),
    )
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = [
            pool.submit(layer, spec, tuple(map(store.wheel, spec.wheels)), out / str(slot))
            for slot, spec in enumerate(specs)
        ]
        print(sum(future.result() for future in made))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Store(Path(sys.argv[3])), Path(sys.argv[4]))
