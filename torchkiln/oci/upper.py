"""Two trees, a base and the same with more in it → the layer that makes the second of the first.

What is new or differs goes in, by kind, mode, owner, contents and attributes; times do not count, for each
unpacking sets them. What takes something away is refused: our layers only add and replace (`oci/unpack.py`).
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, cast

from torchkiln.errors import BuildFailed
from torchkiln.model.contents import TreeEntry
from torchkiln.oci.read_tar import DAMAGED, grow
from torchkiln.oci.tar import END, padding, parents

_PIECE = 1 << 20
_FIRST = 8  # faults that are told
_XATTR = "SCHILY.xattr."
_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def write_upper(lower: BinaryIO, whole: BinaryIO, out: BinaryIO, *, mtime: int) -> None:
    """Write to *out* the tar of what the tar *whole* has and the tar *lower* has not, sorted by path.

    :param whole: can be sought in; it is read three times.
    :param mtime: seconds; what is younger gets this time.
    :raises BuildFailed: *whole* lacks what *lower* has, or holds what no layer may hold; or one is no tar.
    :raises OSError: the disk is full.
    """
    below: dict[str, TreeEntry] = {}
    above: dict[str, TreeEntry] = {}
    try:
        grow(below, lower)
        grow(above, whole)
        changed = sorted(path for path, thing in above.items() if below.get(path) != thing)
        whole.seek(0)
        tar = tarfile.open(fileobj=whole, mode="r:")  # noqa: SIM115 - nothing to close: the stream is another's
        members = {_path_of(member): member for member in tar}
        if faults := [*_faults(below, above, changed), *_whiteouts(members)]:
            more = [f"and {len(faults) - _FIRST} more"] if len(faults) > _FIRST else []
            raise BuildFailed(
                "\n".join(["what was installed cannot be a layer of its own:", *faults[:_FIRST], *more]),
                hint="leave out the package that does this",
            )
        for path in sorted({*changed, *(folder for one in changed for folder in parents(one))}):
            _write(tar, members.get(path), path, above[path], out, mtime)
    except (tarfile.TarError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno:  # no word about a tar: the disk's
            raise
        raise BuildFailed(f"what was installed cannot be read: {error}", hint="build it again") from error
    out.write(END)


def _path_of(member: tarfile.TarInfo) -> str:
    """From the root; empty for the root."""
    path = posixpath.normpath(member.name).lstrip("/")
    return "" if path == "." else path


def _faults(
    below: Mapping[str, TreeEntry], above: Mapping[str, TreeEntry], changed: list[str]
) -> Iterator[str]:
    for path in sorted(below.keys() - above.keys()):
        yield f"  {path} was taken away"
    for path in changed:
        was, now = below.get(path), above[path]
        if now.kind not in _TYPES:
            yield f"  {path} is a {now.kind}"
        if was is not None and was.kind != now.kind and "folder" in (was.kind, now.kind):
            yield f"  {path} was a {was.kind} and is a {now.kind}"
        if through := next((one for one in parents(path) if above[one].kind != "folder"), None):
            yield f"  {path} lies below {through}, which is a {above[through].kind}"


def _whiteouts(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if posixpath.basename(name).startswith(".wh."):
            yield f"  {name} would delete files of other layers"


def _write(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo | None,
    path: str,
    thing: TreeEntry,
    out: BinaryIO,
    mtime: int,
) -> None:
    """One entry. A hard link becomes a file of its own: what it leads to may be in the layer below."""
    info = tarfile.TarInfo(path)
    info.type = _TYPES[thing.kind]
    info.mode = thing.mode
    info.uid, info.gid = thing.owner
    info.mtime = min(int(member.mtime), mtime) if member else mtime
    info.size = thing.size
    info.linkname = thing.link
    info.pax_headers = {f"{_XATTR}{name}": value for name, value in thing.xattrs}
    out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    if thing.kind == "file" and member is not None:
        content, digest = cast(BinaryIO, tar.extractfile(member)), hashlib.sha256()
        while piece := content.read(_PIECE):
            digest.update(piece)
            out.write(piece)
        if digest.hexdigest() != thing.sha256:
            raise tarfile.ReadError(f"{path} stands in it twice, and not alike")
        out.write(padding(thing.size))
