"""Files of a bundle -> a folder, a tar, or the tar in parts; whole or not at all.

The tar is the same bytes every time. Its parts are put together again by `cat`, and SHA256SUMS beside them is
for `sha256sum --check`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.oci.archive import Sink, write_member
from torchkiln.smoke.bundle.contents import BLOBS, Carried
from torchkiln.util.files import replacing

TAR = "bundle.tar"
SUMS = "SHA256SUMS"
_PIECE = 1 << 20


def write_tar(files: Sequence[Carried], target: Path) -> None:
    """One tar file *target*; an older one is replaced.

    :raises VerificationFailed: a file is not, or no longer, what its digest says.
    :raises BuildFailed: *target* cannot be written.
    """
    with _whole(target) as place, place.open("wb") as out:
        _stream(files, out)


def write_folder(files: Sequence[Carried], target: Path) -> None:
    """The folder *target*, which must not be there. Raises as `write_tar`, and ConfigError."""
    with _whole(target, folder=True) as place:
        for one in files:
            path = place / one.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out, _reading(one) as source:
                while piece := source.read(_PIECE):
                    out.write(piece)
            path.chmod(one.mode)


def write_parts(files: Sequence[Carried], target: Path, part_size: int) -> None:
    """The folder *target* with the tar in parts of *part_size* bytes. Raises as `write_folder`."""
    with _whole(target, folder=True) as place:
        with _Parts(place, part_size) as out:
            _stream(files, out)
        (place / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in out.sums))


@contextlib.contextmanager
def _whole(target: Path, *, folder: bool = False) -> Iterator[Path]:
    if folder and target.exists():
        raise ConfigError(f"{target} is there already", hint="delete it, or name another folder")
    try:
        with replacing(target, folder=folder) as temporary:
            yield temporary
    except OSError as error:
        raise BuildFailed(
            f"{target}: the bundle cannot be written: {error.strerror or error}",
            hint="make room, or name another folder",
        ) from error


def _stream(files: Sequence[Carried], out: Sink) -> None:
    for one in files:
        info = tarfile.TarInfo(one.path)
        info.size, info.mode = one.size, one.mode
        with _reading(one) as source:
            write_member(out, info, source)
    out.write(bytes(2 * tarfile.BLOCKSIZE))


@contextlib.contextmanager
def _reading(one: Carried) -> Iterator[_Checked]:
    """The file; whoever reads to its end has its bytes compared with its digest."""
    try:
        raw: BinaryIO = io.BytesIO(one.source) if isinstance(one.source, bytes) else one.source.open("rb")
    except OSError as error:
        raise _damaged(one, str(error.strerror)) from error
    with raw:
        yield _Checked(one, raw)


class _Checked:
    """A file whose bytes are hashed as they pass; its end comes only if they are the right ones."""

    def __init__(self, one: Carried, raw: BinaryIO) -> None:
        self._one, self._raw, self._seen = one, raw, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._seen.update(data)
        if not data and self._seen.hexdigest() != self._one.sha256:
            raise _damaged(self._one, f"not what its digest {self._one.sha256[:12]} says")
        return data


def _damaged(one: Carried, what: str) -> VerificationFailed:
    name = one.source if isinstance(one.source, Path) else one.path
    hint = "build the image again" if one.path.startswith(BLOBS) else "something writes there; try again"
    return VerificationFailed(f"{name}: {what}", hint=hint)


class _Parts:
    """A file to write to that is many: bundle.tar.0000, bundle.tar.0001 ..."""

    def __init__(self, folder: Path, part_size: int) -> None:
        self.sums: list[tuple[str, str]] = []
        self._folder, self._part_size = folder, part_size
        self._out: BinaryIO | None = None
        self._left, self._seen = 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if self._left == 0:
                self._next()
            assert self._out is not None
            piece = view[: self._left]
            self._out.write(piece)
            self._seen.update(piece)
            self._left -= len(piece)
            view = view[len(piece) :]
        return len(data)

    def _next(self) -> None:
        self._end()
        self._out = (self._folder / f"{TAR}.{len(self.sums):04}").open("wb")
        self._left, self._seen = self._part_size, hashlib.sha256()

    def _end(self) -> None:
        if self._out is not None:
            self._out.close()
            self.sums.append((Path(self._out.name).name, self._seen.hexdigest()))
            self._out = None

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
