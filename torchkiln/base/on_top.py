"""Installs packages on the unpacked layers of an OS, and writes the difference as the tar of a layer.

The layer contains what is new or differs in kind, mode, owner, content or attributes; times are not compared,
because each unpacking sets them. Deletions are refused: it only adds and replaces files.
"""

from __future__ import annotations

import hashlib
import posixpath
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from torchkiln.base.complaint import Unsolvable
from torchkiln.base.mmdebstrap import ExistingBase, Scratch
from torchkiln.base.tree_tar import dev_folder
from torchkiln.errors import BuildFailed
from torchkiln.model.contents import TreeEntry
from torchkiln.model.lock import LockedBase, LockedTools, OsPackage
from torchkiln.oci.compression import GZIP
from torchkiln.oci.read_tar import DAMAGED, apply_layer
from torchkiln.oci.tar import END, padding, parents
from torchkiln.store.store import Store

_PIN_PRIORITY = 1001  # from 1000 on, apt uses this version even if a newer one is available
_PIECE = 1 << 20
_LISTED = 8  # most faults in a message
_XATTR = "SCHILY.xattr."
_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


@dataclass(frozen=True, kw_only=True, slots=True)
class Addition:
    """Packages to install on layers, from the archive or from a folder of .deb files."""

    what: str  # "the tools", for messages
    packages: tuple[str, ...]
    lower: tuple[LockedBase | LockedTools, ...]  # the layers, lowest first
    misfit: str  # the start of the message if apt cannot install them: "the archive's packages no longer fit"
    hint: str  # the hint of that message
    debs: Path | None = None
    hard_links: bool = False  # whether the layer may have hard links


def layer_tar(addition: Addition, place: Scratch, store: Store) -> Path:
    """Install the packages, and write the layer with all new and changed files to the scratch folder.

    Takes half a minute, and temporarily two gigabytes of that folder.

    :raises BuildFailed: the packages do not fit, mmdebstrap failed, or its result cannot be a layer.
    """
    layer = place.folder / "layer.tar"
    try:
        whole = _installed(addition, place, store)
        with ExitStack() as opened:
            blobs = [store.blob(artefact.digest) for artefact in addition.lower]
            lower = [opened.enter_context(GZIP.open(blob)) for blob in blobs]
            upper = opened.enter_context(whole.open("rb"))
            out = opened.enter_context(layer.open("wb"))
            mtime, hard_links = place.recipe.epoch, addition.hard_links
            write_upper(lower, upper, out, mtime=mtime, hard_links=hard_links)
    except OSError as error:
        raise BuildFailed(
            f"{addition.what} cannot be built in {place.folder.parent}: {error.strerror}",
            hint="free disk space (2 GB are needed), or set TMPDIR to another folder",
        ) from error
    whole.unlink()
    return layer


def existing(
    lower: Iterable[LockedBase | LockedTools],
    place: Scratch,
    store: Store,
    *,
    packages: tuple[str, ...] = (),
    debs: Path | None = None,
    queries: tuple[str, ...] = (),
) -> ExistingBase:
    """The layers *lower*, copied to the scratch folder, with pins of their packages; or an empty root."""
    layers, pinned = list[Path](), list[OsPackage]()
    for artefact in lower:
        # A copy, because the root of a user namespace may have no access to the cache.
        copy = place.folder / f"{len(layers)}.tar.gz"
        layers.append(Path(shutil.copyfile(store.blob(artefact.digest), copy)))
        pinned += artefact.packages
    path = place.folder / "pins"
    path.write_text(pins(pinned))
    return ExistingBase(layers=tuple(layers), pins=path, packages=packages, debs=debs, queries=queries)


def pins(packages: Iterable[OsPackage]) -> str:
    """apt preferences that pin *packages* to their versions."""
    return "\n".join(
        f"Package: {package.name}\nPin: version {package.version}\nPin-Priority: {_PIN_PRIORITY}\n"
        for package in packages
    )


def _installed(addition: Addition, place: Scratch, store: Store) -> Path:
    onto = existing(addition.lower, place, store, packages=addition.packages, debs=addition.debs)
    whole = place.folder / "whole.tar"
    try:
        with place.running(onto) as tar, whole.open("wb") as out:
            out.write(dev_folder(place.recipe.epoch))
            shutil.copyfileobj(tar, out, 1 << 20)
    except Unsolvable as error:
        on = addition.lower[-1].digest[:19]
        raise BuildFailed(
            f"unmet dependencies: {addition.misfit} the base {on}:\n" + error.message.partition("\n")[2],
            hint=addition.hint,
        ) from error
    return whole


def write_upper(
    lower: Iterable[BinaryIO], whole: BinaryIO, out: BinaryIO, *, mtime: int, hard_links: bool = False
) -> None:
    """Write to *out* a tar of everything in *whole* that is not in *lower*, sorted by path.

    :param lower: layers, lowest first.
    :param whole: seekable; it is read three times.
    :param mtime: seconds; newer entries get this time.
    :param hard_links: write a new file that has several names once; else each hard link becomes a file.
    :raises BuildFailed: *whole* lacks files of *lower* or has entries that no layer may have, or is not a
        tar.
    :raises OSError: the disk is full.
    """
    below: dict[str, TreeEntry] = {}
    above: dict[str, TreeEntry] = {}
    try:
        for layer in lower:
            apply_layer(below, layer)
        apply_layer(above, whole)
        changed = sorted(path for path, thing in above.items() if below.get(path) != thing)
        whole.seek(0)
        tar = tarfile.open(fileobj=whole, mode="r:")  # noqa: SIM115 - the caller closes the stream
        members = {_path_of(member.name): member for member in tar}
        if faults := [*_faults(below, above, changed), *_whiteouts(members)]:
            more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
            raise BuildFailed(
                "\n".join(["the installed packages cannot be a separate layer:", *faults[:_LISTED], *more]),
                hint="remove the package that causes this",
            )
        folders = (folder for name in changed for folder in parents(name))
        first: dict[str, str] = {}  # the file of a hard link -> the path at which it was written
        for path in sorted({*changed, *folders}):
            member = members.get(path)
            file = _path_of(member.linkname) if member is not None and member.islnk() else path
            if member is not None and hard_links and file in first:
                out.write(_hard_link(member, path, first[file], mtime))
            else:
                _write(tar, member, path, above[path], out, mtime)
                first[file] = path
    except (tarfile.TarError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno:  # an error of the disk, not of the tar
            raise
        raise BuildFailed(
            f"the tar of the installed packages cannot be read: {error}", hint="build it again"
        ) from error
    out.write(END)


def _path_of(name: str) -> str:
    """The path of *name* relative to the root; empty for the root."""
    path = posixpath.normpath(name).lstrip("/")
    return "" if path == "." else path


def _hard_link(member: tarfile.TarInfo, path: str, target: str, mtime: int) -> bytes:
    info = tarfile.TarInfo(path)
    info.type, info.linkname, info.mode = tarfile.LNKTYPE, target, member.mode & 0o7777
    info.uid, info.gid, info.mtime = member.uid, member.gid, min(int(member.mtime), mtime)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _faults(
    below: Mapping[str, TreeEntry], above: Mapping[str, TreeEntry], changed: list[str]
) -> Iterator[str]:
    for path in sorted(below.keys() - above.keys()):
        yield f"  {path} was deleted"
    for path in changed:
        was, now = below.get(path), above[path]
        if now.kind not in _TYPES:
            yield f"  {path} is a {now.kind}"
        if was is not None and was.kind != now.kind and "folder" in (was.kind, now.kind):
            yield f"  {path} was a {was.kind} and is a {now.kind}"
        if through := next((folder for folder in parents(path) if above[folder].kind != "folder"), None):
            yield f"  {path} is below {through}, which is a {above[through].kind}"


def _whiteouts(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if posixpath.basename(name).startswith(".wh."):
            yield f"  {name} is a whiteout: it would delete files of other layers"


def _write(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo | None,
    path: str,
    thing: TreeEntry,
    out: BinaryIO,
    mtime: int,
) -> None:
    """Write one entry. A hard link becomes a regular file: its target may be in *lower*, or come later."""
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.size, info.linkname = _TYPES[thing.kind], thing.mode, thing.size, thing.link
    info.uid, info.gid = thing.owner
    info.mtime = min(int(member.mtime), mtime) if member else mtime
    info.pax_headers = {f"{_XATTR}{name}": value for name, value in thing.xattrs}
    out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
    if thing.kind == "file" and member is not None:
        content, digest = cast(BinaryIO, tar.extractfile(member)), hashlib.sha256()
        while piece := content.read(_PIECE):
            digest.update(piece)
            out.write(piece)
        if digest.hexdigest() != thing.sha256:
            raise tarfile.ReadError(f"{path} is in the tar twice, with different content")
        out.write(padding(thing.size))
