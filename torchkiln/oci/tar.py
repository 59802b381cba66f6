"""Writes tar headers (POSIX pax), the same on every machine.

Everything that may vary is fixed: owner root, no user names, one time. For a short ASCII path,
this module writes the header itself, which is faster: an image has 50,000 files. For other paths, the
standard library writes a pax record and a header.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable

from torchkiln.model.plan import OverlayFile, OverlayLink
from torchkiln.oci.layer_index import IndexedEntry
from torchkiln.oci.tar_reader import TarEntry

BLOCK = 512
_NAME = 100  # bytes for the path, one of them for a folder's slash
_SIZE_LIMIT = 8**11  # bytes; smaller sizes have at most 11 octal digits
_REST = (bytes(100) + b"ustar\00000").ljust(BLOCK - 157, b"\0")
TYPES = {
    "file": tarfile.REGTYPE,
    "hard link": tarfile.LNKTYPE,
    "link": tarfile.SYMTYPE,
    "folder": tarfile.DIRTYPE,
}
END = b"\0" * (2 * BLOCK)  # two empty blocks close an archive


def header(path: str, *, mode: int, size: int = 0, mtime: int, directory: bool = False) -> bytes:
    """The header of a regular file of *size* bytes (or of a directory) at *path*, relative to the root."""
    if len(path) < _NAME and path.isascii() and size < _SIZE_LIMIT:
        return _plain(path, mode, size, mtime, directory)
    info = tarfile.TarInfo(path + "/" if directory else path)
    info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
    info.mode, info.size, info.mtime = mode, size, mtime
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _plain(path: str, mode: int, size: int, mtime: int, directory: bool) -> bytes:
    name, kind = (f"{path}/", 5) if directory else (path, 0)
    numbers = (mode & 0o7777, 0, 0, size, mtime)  # owner and group are 0
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.encode().ljust(_NAME, b"\0"), *numbers)
    rest = b"%d%b" % (kind, _REST)
    # The checksum is the sum of all bytes, with its own field as spaces.
    return b"%b%06o\0 %b" % (head, sum(head) + 8 * 0x20 + sum(rest), rest)


def padding(size: int) -> bytes:
    """The bytes that fill the last block of a file of *size* bytes."""
    return b"\0" * (-size % BLOCK)


def parents(path: str) -> list[str]:
    """The folders above *path*, outermost first: `a/b/c` → `["a", "a/b"]`."""
    found, at = [], path.find("/")
    while at >= 0:
        found.append(path[:at])
        at = path.find("/", at + 1)
    return found


def link(path: str, target: str, *, mtime: int) -> bytes:
    """A symbolic link at *path*."""
    info = tarfile.TarInfo(path)
    info.type, info.linkname, info.mode, info.mtime = tarfile.SYMTYPE, target, 0o777, mtime
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def entry_header(entry: TarEntry | IndexedEntry) -> bytes:
    """The header of *entry*, a file, folder or link."""
    info = tarfile.TarInfo(entry.path or ".")
    info.type, info.linkname = TYPES[entry.kind], entry.target
    info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.uid, entry.gid, entry.mtime or 0
    info.size = entry.size if entry.kind == "file" else 0
    xattrs = entry.xattrs if isinstance(entry, TarEntry) else ()
    info.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in xattrs}
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def archive(files: Iterable[OverlayFile | OverlayLink], *, mtime: int) -> bytes:
    """A tar of *files* sorted by path, each folder before its content."""
    out: list[bytes] = []
    written: set[str] = set()
    for file in sorted(files, key=lambda file: file.path):
        for folder in parents(file.path):
            if folder not in written:
                written.add(folder)
                out.append(header(folder, mode=0o755, mtime=mtime, directory=True))
        if isinstance(file, OverlayLink):
            out.append(link(file.path, file.target, mtime=mtime))
            continue
        out += (
            header(file.path, mode=file.mode, size=len(file.data), mtime=mtime),
            file.data,
            padding(len(file.data)),
        )
    return b"".join((*out, END))
