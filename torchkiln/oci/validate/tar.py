"""A layer's tar in pieces -> its faults, and the names in it: what `verify` says of it.

Read by the reader that unpacks, so that what is called sound here is what is used there.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchkiln.oci.tar_header import DamagedTar
from torchkiln.oci.tar_names import Names
from torchkiln.oci.tar_reader import Entry, TarReader

_FAULT_LIMIT = 20
_OWNER_LIMIT = 1 << 16  # a rootless engine has 65,536 ids to map to


class TarInspector:
    """`inspect` a tar, once. `names` is what was seen."""

    def __init__(self) -> None:
        self.names = Names()
        self._faults: list[str] = []
        self._more_faults = 0

    def faults(self) -> tuple[str, ...]:
        """What was wrong, the first twenty in words."""
        more = (f"and {self._more_faults} more faults",) if self._more_faults else ()
        return (*self._faults, *more)

    def inspect(self, pieces: Iterable[bytes]) -> None:
        """Read *pieces* as far as they make sense; what else *pieces* raises passes through."""
        try:
            for entry in TarReader(pieces, report=self._fault):
                for text in self.names.add(entry):
                    self._fault(text)
                self._rights(entry)
        except DamagedTar as error:
            self._fault(str(error))

    def _fault(self, text: str) -> None:
        if len(self._faults) < _FAULT_LIMIT:
            self._faults.append(text)
        else:
            self._more_faults += 1

    def _rights(self, entry: Entry) -> None:
        path = entry.path
        if entry.mode & ~0o7777:
            self._fault(f"{path}: mode {entry.mode:o} has more than permission bits")
        if entry.kind == "file" and entry.mode & 0o002:
            self._fault(f"{path}: mode {entry.mode:o} lets everybody write")
        if max(entry.uid, entry.gid) >= _OWNER_LIMIT:
            self._fault(f"{path}: owner {entry.uid}:{entry.gid} is beyond what rootless engines map")
