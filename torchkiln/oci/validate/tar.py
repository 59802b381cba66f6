"""Collects the faults of a layer's tar for `verify`.

The tar is read by the reader that unpacks, so what is checked is what is used.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchkiln.oci.tar_header import DamagedTar
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import TarEntry, TarReader

_FAULT_LIMIT = 20
_OWNER_LIMIT = 1 << 16  # rootless engines map 65,536 ids


class TarInspector:
    """Call `inspect` once; `paths` then has the paths of the tar."""

    def __init__(self) -> None:
        self.paths = LayerPaths()
        self._faults: list[str] = []
        self._more_faults = 0

    def faults(self) -> tuple[str, ...]:
        """The first twenty faults, and a line with the number of further ones."""
        more = (f"and {self._more_faults} more faults",) if self._more_faults else ()
        return (*self._faults, *more)

    def inspect(self, pieces: Iterable[bytes]) -> None:
        """Read *pieces* up to the first unreadable header; exceptions of *pieces* are not caught."""
        try:
            for entry in TarReader(pieces, report=self._fault):
                for text in self.paths.add(entry):
                    self._fault(text)
                self._check_rights(entry)
        except DamagedTar as error:
            self._fault(str(error))

    def _fault(self, text: str) -> None:
        if len(self._faults) < _FAULT_LIMIT:
            self._faults.append(text)
        else:
            self._more_faults += 1

    def _check_rights(self, entry: TarEntry) -> None:
        path = entry.path
        if entry.mode & ~0o7777:
            self._fault(f"{path}: mode {entry.mode:o} has more than permission bits")
        if entry.kind == "file" and entry.mode & 0o002:
            self._fault(f"{path}: mode {entry.mode:o} is world-writable")
        if max(entry.uid, entry.gid) >= _OWNER_LIMIT:
            self._fault(f"{path}: owner {entry.uid}:{entry.gid} is above the ids that rootless engines map")
