"""Copies an unpacked image by hard links, so that only the additional layers of another are unpacked.

Files of unpacked images are never changed: an entry of a layer replaces a file, and commands write elsewhere.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torchkiln.oci.tar_reader import TarEntry


def link_tree(source: Path, target: Path) -> tuple[TarEntry, ...]:
    """Fill the empty folder *target* with the folders of *source* and hard links to its files and links.

    Returns the folders, which the owner can write until `Extractor.finish` sets their modes and times.

    :raises OSError: a file cannot be linked, as on another file system or after 65,000 links.
    """
    folders = [_folder("", source.lstat())]
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(source / above) as found:
            for entry in found:
                path = f"{above}/{entry.name}" if above else entry.name
                if entry.is_dir(follow_symlinks=False):
                    (target / path).mkdir(mode=0o700)
                    folders.append(_folder(path, entry.stat(follow_symlinks=False)))
                    waiting.append(path)
                else:
                    os.link(source / path, target / path, follow_symlinks=False)
    return tuple(folders)


def _folder(path: str, found: os.stat_result) -> TarEntry:
    return TarEntry(
        path=path,
        kind="folder",
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        mtime=int(found.st_mtime),
        size=0,
        target="",
        device=(0, 0),
        xattrs=(),
    )
