"""The trees of folders and tar streams, and their differences. This module imports nothing of torchkiln."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO, Literal

Kind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, kw_only=True)
class Thing:
    """A file, folder or link. Only files have `size` and `sha256`; `link` is a link's target."""

    kind: Kind
    mode: int
    mtime: int  # seconds since 1970
    size: int = 0
    sha256: str = ""
    link: str = ""


Tree = dict[str, Thing]


def file(data: bytes, *, mode: int, mtime: int) -> Thing:
    """A file of *data*."""
    return Thing(kind="file", mode=mode, mtime=mtime, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def folders_of(path: str, mtime: int) -> Iterator[tuple[str, Thing]]:
    """The folders above *path*, of mode 0755."""
    while path := path.rpartition("/")[0]:
        yield path, Thing(kind="folder", mode=0o755, mtime=mtime)


def tree_of_folder(root: Path) -> Tree:
    """Everything below *root*."""
    found: Tree = {}
    for folder, names, others in os.walk(root):
        for name in (*names, *others):
            path = Path(folder, name)
            found[str(path.relative_to(root))] = _on_disk(path)
    return found


def tree_of_tars(archives: Iterable[BinaryIO]) -> Tree:
    """The tree of *archives* that are unpacked one after the other, read with tarfile."""
    found: Tree = {}
    for archive in archives:
        with tarfile.open(fileobj=archive, mode="r|") as members:
            for member in members:
                name = member.name.removeprefix("./").rstrip("/")
                if member.islnk():
                    found[name] = found[member.linkname.removeprefix("./")]
                else:
                    found[name] = _in_tar(members, member)
    return found


def differences(want: Mapping[str, Thing], got: Mapping[str, Thing]) -> list[str]:
    """A sentence for each path that is missing, unexpected or different."""
    messages = [f"{path}: missing" for path in sorted(want.keys() - got.keys())]
    messages += [f"{path}: should not be there" for path in sorted(got.keys() - want.keys())]
    for path in sorted(want.keys() & got.keys()):
        for field in fields(Thing):
            expected, found = getattr(want[path], field.name), getattr(got[path], field.name)
            if expected != found:
                messages.append(f"{path}: {field.name} is {found!r}, should be {expected!r}")
    return messages


def _on_disk(path: Path) -> Thing:
    found = path.lstat()
    mode, mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
    if stat.S_ISLNK(found.st_mode):
        return Thing(kind="link", mode=0o777, mtime=mtime, link=os.readlink(path))
    if stat.S_ISDIR(found.st_mode):
        return Thing(kind="folder", mode=mode, mtime=mtime)
    if stat.S_ISREG(found.st_mode):
        return file(path.read_bytes(), mode=mode, mtime=mtime)
    return Thing(kind="other", mode=mode, mtime=mtime)


def _in_tar(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Thing:
    mode, mtime = member.mode, int(member.mtime)
    if member.issym():
        return Thing(kind="link", mode=0o777, mtime=mtime, link=member.linkname)
    if member.isdir():
        return Thing(kind="folder", mode=mode, mtime=mtime)
    if member.isfile():
        content = archive.extractfile(member)
        assert content is not None
        return file(content.read(), mode=mode, mtime=mtime)
    return Thing(kind="other", mode=mode, mtime=mtime)
