"""Keeps .deb files in the cache by their SHA-256, and makes folders of them from which apt installs."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from torchkiln.base.plain_tree import open_deb
from torchkiln.errors import BuildFailed
from torchkiln.model.lock import DebFile
from torchkiln.store.store import Store

FOLDER = "debs"  # of the cache
RECORDS = "apt"  # the cache's records of layers that were made from .deb files
_INDEX = "Packages"
_PIECE = 1 << 20


def deb_path(deb: DebFile) -> str:
    """The path of the file in the cache."""
    return f"{FOLDER}/{deb.sha256}/{deb.filename}"


def missing(debs: Iterable[DebFile], store: Store) -> tuple[DebFile, ...]:
    """The *debs* that *store* does not have."""
    return tuple(deb for deb in debs if _size(store.root / deb_path(deb)) != deb.size)


def keep(folder: Path, debs: Iterable[DebFile], store: Store) -> None:
    """Copy the .deb files in *folder* whose SHA-256 is that of one of *debs* into *store*."""
    wanted = {deb.sha256: deb for deb in missing(debs, store)}
    for path in sorted(folder.glob("*.deb")):
        temporary = store.temporary("deb")
        try:
            with store.writable():
                shutil.copyfile(path, temporary)
                if deb := wanted.get(sha256_of(temporary)):
                    store.adopt(temporary, store.root / deb_path(deb))
        finally:
            temporary.unlink(missing_ok=True)


def write_repository(folder: Path, debs: Iterable[DebFile], store: Store) -> None:
    """Create *folder* with copies of the files of *debs* in *store*; apt can install the packages from it.

    :raises BuildFailed: a file in the cache is damaged or malformed; that file is deleted.
    :raises OSError: the disk is full.
    """
    folder.mkdir()
    folder.chmod(0o755)  # regardless of the umask: apt reads it as another user
    stanzas = []
    for deb in debs:
        kept, name = store.root / deb_path(deb), f"{deb.sha256}.deb"
        copy = Path(shutil.copyfile(kept, folder / name))
        copy.chmod(0o644)
        try:
            with open_deb(copy, deb) as (control, _):
                fields = control["control"].data.decode(errors="replace").rstrip("\n")
        except BuildFailed as error:
            kept.unlink(missing_ok=True)
            raise BuildFailed(
                f"{error.message}; it is deleted from the cache", hint="run it again"
            ) from error
        store.touch(kept)
        stanzas.append(f"{fields}\nFilename: ./{name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n")
    index = folder / _INDEX
    index.write_text("\n".join(stanzas))
    index.chmod(0o644)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
