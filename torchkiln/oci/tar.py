"""Tar headers (POSIX pax): who a file is, in blocks of 512 bytes, the same on every machine.

The standard library writes them; this module fixes what may vary: owner root, no names, one time.
A long or non-ASCII path takes a pax record before its header.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable

from torchkiln.nouns import OverlayFile

BLOCK = 512
END = b"\0" * (2 * BLOCK)  # two empty blocks close an archive


def header(path: str, *, mode: int, size: int = 0, mtime: int, directory: bool = False) -> bytes:
    """The header of a regular file of *size* bytes (or of a directory) at *path*, relative to the root."""
    info = tarfile.TarInfo(path + "/" if directory else path)
    info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
    info.mode, info.size, info.mtime = mode, size, mtime
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def padding(size: int) -> bytes:
    """What fills the last block of a file of *size* bytes."""
    return b"\0" * (-size % BLOCK)


def parents(path: str) -> list[str]:
    """The folders above *path*, outermost first: `a/b/c` → `["a", "a/b"]`."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def archive(files: Iterable[OverlayFile], *, mtime: int) -> bytes:
    """A whole tar of *files* by path, each folder before what is in it."""
    out: list[bytes] = []
    folders: set[str] = set()
    for file in sorted(files, key=lambda file: file.path):
        for folder in parents(file.path):
            if folder not in folders:
                folders.add(folder)
                out.append(header(folder, mode=0o755, mtime=mtime, directory=True))
        out += (
            header(file.path, mode=file.mode, size=len(file.data), mtime=mtime),
            file.data,
            padding(len(file.data)),
        )
    return b"".join((*out, END))
