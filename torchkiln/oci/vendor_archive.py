"""Checks the entries of an archive with one top folder, of which some files are put into a layer.

The archive's hash is known, but the user may have the archive from any source. So every entry is checked, and
the archive is refused if an entry could lead out of the folder.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from torchkiln.errors import BadArchive, printable
from torchkiln.oci import tar
from torchkiln.oci.tar_reader import TarEntry


class ArchivePaths:
    """The paths of the entries so far, and whether each is a folder; folders above an entry are, too.

    :param refuse: makes the exception of a sentence.
    """

    def __init__(self, refuse: Callable[[str], Exception]) -> None:
        self._refuse, self._is_folder = refuse, dict[str, bool]()

    def add(self, path: str, *, folder: bool) -> None:
        """Add the next entry; raises the exception of *refuse* if it conflicts with an earlier one."""
        for above in tar.parents(path):
            if not self._is_folder.setdefault(above, True):
                raise self._refuse(f"{path!r} is below {above!r}, which is not a directory")
        if path in self._is_folder and not (folder and self._is_folder[path]):
            raise self._refuse(f"{path!r} is a duplicate")
        self._is_folder[path] = folder

    def has_file(self, path: str) -> bool:
        """Whether an earlier entry at *path* is not a folder."""
        return not self._is_folder.get(path, True)


class VendorArchive:
    """The checks of the entries of the archive *filename*, all of which are in the folder *top*.

    Each method raises *error*, which names the entry.
    """

    def __init__(self, filename: str, top: str, error: Callable[[str, str], BadArchive]) -> None:
        self._filename, self._top, self._error = filename, top, error
        self._paths = ArchivePaths(self.bad)

    def path(self, entry: TarEntry) -> str:
        """The path of the next *entry* below the top folder; empty for that folder, and for the root."""
        top, _, below = entry.path.partition("/")
        if printable(entry.path) != entry.path:
            raise self.refused(entry, "has non-printable characters in its name")
        if any(part.startswith(".wh.") for part in entry.path.split("/")):
            raise self.refused(entry, "is a whiteout: it would delete files in a layer")
        if entry.path and (top != self._top or (not below and entry.kind != "folder")):
            raise self.refused(entry, f"is outside of the folder {self._top}/")
        if below:
            self._paths.add(below, folder=entry.kind == "folder")
        return below

    def link_target(self, entry: TarEntry) -> str:
        """The path below the top folder to which the link *entry* leads."""
        path = entry.path.partition("/")[2]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.target))
        outside = entry.target.startswith("/") or target.split("/")[0] == ".."
        if outside or printable(entry.target) != entry.target:
            raise self.refused(entry, f"is a link to {entry.target!r}, outside of the archive")
        return target

    def hard_link_target(self, entry: TarEntry) -> str:
        """The path below the top folder of the earlier file to which the hard link *entry* refers."""
        top, _, target = entry.target.partition("/")
        if top != self._top or not self._paths.has_file(target):
            raise self.refused(entry, f"is a hard link to {entry.target!r}, which is not an earlier file")
        return target

    def refused(self, entry: TarEntry, why: str) -> BadArchive:
        return self.bad(f"{entry.path[:300]!r} {why}")

    def bad(self, reason: str) -> BadArchive:
        return self._error(self._filename, reason)
