"""Reads a .deb file: its control files, and the tar of its other files.

Format: deb(5), an ar archive of debian-binary, control.tar and data.tar; the tars are compressed with gzip,
xz or zstd, or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.errors import BuildFailed
from torchkiln.model.lock import DebFile
from torchkiln.oci.opening import bounded
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.oci.tar_reader import TarEntry, TarReader, most_unpacked, pieces_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MAGIC = b"!<arch>\n"
_HEADER = 60  # bytes before each member: name, time, owner, group, mode, size, end
_OPEN: Mapping[str, Callable[[BinaryIO], object]] = {
    "": lambda file: file,
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
    ".zst": zstd.ZstdFile,
}


@dataclass(frozen=True, slots=True)
class ControlFile:
    """A file of the control archive, such as `postinst`."""

    entry: TarEntry
    data: bytes


@contextmanager
def open_deb(path: Path, deb: DebFile) -> Iterator[tuple[dict[str, ControlFile], BinaryIO]]:
    """The control files of *deb* at *path*, by name, and the tar of its other files.

    :raises BuildFailed: its hash differs, or it is not a valid .deb file, also while the tar is read.
    """
    try:
        data = path.read_bytes()
        if (found := hashlib.sha256(data).hexdigest()) != deb.sha256:
            raise ValueError(f"checksum mismatch: sha256 {found}, {deb.sha256} in the lock")
        members = dict(_members(data))
        control = _tar_of(members, "control.tar")
        files = {}
        reader = TarReader(pieces_of(control))
        for entry in reader:
            if entry.kind == "file":
                files[entry.path] = ControlFile(entry, b"".join(reader.content()))
        yield files, _tar_of(members, "data.tar")
    except (lzma.LZMAError, zstd.ZstdError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the file
            raise
        raise BuildFailed(
            f"{deb.filename}: not a valid .deb file: {error}", hint="run: torchkiln cache verify --repair"
        ) from error


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member of the ar archive *data*.

    :raises ValueError: it is malformed.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("not an ar archive")
    at = len(_MAGIC)
    while at < len(data):
        header = data[at : at + _HEADER]
        if len(header) < _HEADER or header[58:] != b"`\n" or not header[48:58].strip().isdigit():
            raise ValueError(f"malformed ar header at byte {at}")
        size, at = int(header[48:58]), at + _HEADER
        if at + size > len(data):
            raise ValueError("truncated")
        yield header[:16].decode("ascii", "replace").strip().rstrip("/"), data[at : at + size]
        at += size + size % 2


def _tar_of(members: Mapping[str, bytes], name: str) -> BinaryIO:
    """The tar *name*, "data.tar", uncompressed.

    :raises ValueError: there is no such member, or its compression is unknown.
    """
    for suffix, opened in _OPEN.items():
        if (data := members.get(name + suffix)) is not None:
            limit = most_unpacked(len(data))
            stream = cast(BinaryIO, opened(BytesIO(data)))
            return bounded(stream, limit, partial(ValueError, f"{name} unpacks to more than {limit} bytes"))
    raise ValueError(f"it has no {name}")
