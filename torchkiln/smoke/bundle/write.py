"""Write a bundle as a folder, a tar file, or a tar file in parts, atomically.

The tar file is reproducible. Join its parts with `cat`; check them with `sha256sum --check SHA256SUMS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.oci.archive import Sink, write_member
from torchkiln.oci.tar import END
from torchkiln.smoke.bundle.contents import BLOBS, BundleFile
from torchkiln.util.files import replacing

TAR = "bundle.tar"
SUMS = "SHA256SUMS"
_CHUNK = 1 << 20


def write_tar(files: Sequence[BundleFile], target: Path) -> None:
    """Write the tar file *target*; an existing one is replaced.

    :raises VerificationFailed: a file does not match its digest.
    :raises BuildFailed: *target* cannot be written.
    """
    with _atomic(target) as temporary, temporary.open("wb") as out:
        _stream(files, out)


def write_folder(files: Sequence[BundleFile], target: Path) -> None:
    """Write the folder *target*. Raises as `write_tar`, and ConfigError if *target* exists."""
    with _atomic(target, folder=True) as temporary:
        for file in files:
            path = temporary / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out, _reading(file) as source:
                while chunk := source.read(_CHUNK):
                    out.write(chunk)
            path.chmod(file.mode)


def write_parts(files: Sequence[BundleFile], target: Path, part_size: int) -> None:
    """Write the folder *target* with the tar in parts of *part_size* bytes. Raises as `write_folder`."""
    with _atomic(target, folder=True) as temporary:
        with _PartWriter(temporary, part_size) as out:
            _stream(files, out)
        (temporary / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in out.sums))


@contextlib.contextmanager
def _atomic(target: Path, *, folder: bool = False) -> Iterator[Path]:
    if folder and target.exists():
        raise ConfigError(f"{target} already exists", hint="delete it, or choose another folder")
    try:
        with replacing(target, folder=folder) as temporary:
            yield temporary
    except OSError as error:
        raise BuildFailed(
            f"cannot write the bundle {target}: {error.strerror or error}",
            hint="free disk space, or choose another folder",
        ) from error


def _stream(files: Sequence[BundleFile], out: Sink) -> None:
    for file in files:
        with _reading(file) as source:
            write_member(out, file.path, source, size=file.size, mode=file.mode)
    out.write(END)


@contextlib.contextmanager
def _reading(file: BundleFile) -> Iterator[_Checked]:
    """A stream of the content of *file*; at its end the digest is verified."""
    try:
        raw: BinaryIO = io.BytesIO(file.source) if isinstance(file.source, bytes) else file.source.open("rb")
    except OSError as error:
        raise _damaged(file, str(error.strerror)) from error
    with raw:
        yield _Checked(file, raw)


class _Checked:
    """A stream that verifies the digest of a file at its end."""

    def __init__(self, file: BundleFile, raw: BinaryIO) -> None:
        self._file, self._raw, self._hash = file, raw, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._hash.update(data)
        if not data and self._hash.hexdigest() != self._file.sha256:
            raise _damaged(self._file, f"checksum mismatch: expected sha256 {self._file.sha256[:12]}…")
        return data


def _damaged(file: BundleFile, what: str) -> VerificationFailed:
    name = file.source if isinstance(file.source, Path) else file.path
    hint = "build the image again" if file.path.startswith(BLOBS) else "the file was changed; try again"
    return VerificationFailed(f"{name}: {what}", hint=hint)


class _PartWriter:
    """Writes a stream into parts: bundle.tar.0000, bundle.tar.0001 ..."""

    def __init__(self, folder: Path, part_size: int) -> None:
        self.sums: list[tuple[str, str]] = []
        self._folder, self._part_size = folder, part_size
        self._out: BinaryIO | None = None
        self._left, self._hash = 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if self._left == 0:
                self._next()
            assert self._out is not None
            chunk = view[: self._left]
            self._out.write(chunk)
            self._hash.update(chunk)
            self._left -= len(chunk)
            view = view[len(chunk) :]
        return len(data)

    def _next(self) -> None:
        self._end()
        self._out = (self._folder / f"{TAR}.{len(self.sums):04}").open("wb")
        self._left, self._hash = self._part_size, hashlib.sha256()

    def _end(self) -> None:
        if self._out is not None:
            self._out.close()
            self.sums.append((Path(self._out.name).name, self._hash.hexdigest()))
            self._out = None

    def __enter__(self) -> _PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
