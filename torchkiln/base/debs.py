"""Keeps .deb files in the cache by their SHA-256, and makes folders of them from which apt installs."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

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
                if deb := wanted.get(_sha256(temporary)):
                    store.adopt(temporary, store.root / deb_path(deb))
        finally:
            temporary.unlink(missing_ok=True)


def write_repository(folder: Path, debs: Iterable[DebFile], store: Store) -> None:
    """Create *folder* with copies of the files of *debs* in *store*; apt can install the packages from it.

    :raises BuildFailed: a file in the cache was damaged; that file is deleted.
    :raises OSError: the disk is full.
    """
    folder.mkdir()
    folder.chmod(0o755)  # regardless of the umask: apt reads it as another user
    stanzas = []
    for deb in debs:
        kept, name = store.root / deb_path(deb), f"{deb.sha256}.deb"
        copy = Path(shutil.copyfile(kept, folder / name))
        copy.chmod(0o644)
        if _sha256(copy) != deb.sha256:
            kept.unlink(missing_ok=True)
            raise BuildFailed(
                f"{deb.filename}: checksum mismatch: the file in the cache was damaged, and is deleted",
                hint="run it again",
            )
        store.touch(kept)
        stanzas.append(f"{_control(copy)}\nFilename: ./{name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n")
    index = folder / _INDEX
    index.write_text("\n".join(stanzas))
    index.chmod(0o644)


def _control(path: Path) -> str:
    """The control fields of the package, from its .deb file."""
    done = subprocess.run(["dpkg-deb", "--field", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(
            f"{path.name} cannot be read: {done.stderr.strip()[:400]}",
            hint="the file in the archive is malformed; require another version of the package: NAME=VERSION",
        )
    return done.stdout.rstrip("\n")


def _sha256(path: Path) -> str:
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
