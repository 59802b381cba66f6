"""A file that no index has -> where the user says that it lies; it is known by its hash.

The place is an address, below which the file lies under its name, as on a project's release page or a mirror
of it, or a folder of this machine. The variable is named after the package: TORCHKILN_INDEX_FLASH_ATTN,
TORCHKILN_INDEX_MICROMAMBA.
"""

from __future__ import annotations

from urllib.parse import quote

from torchkiln.errors import Unresolvable
from torchkiln.index.settings import IndexSettings
from torchkiln.released import FileAt
from torchkiln.wanted import variable_of


def place_of(settings: IndexSettings, name: str, filename: str, sha256: str) -> FileAt:
    """Where the file *filename* of package *name* lies.

    :raises Unresolvable: the user does not say.
    """
    place = dict(settings.places).get(variable_of(name))
    if place is None:
        raise Unresolvable(
            f"{filename} is on no index, and nobody says where it lies",
            hint=f"set {variable_of(name)} to the address below which it lies, or to a folder that has it",
        )
    return FileAt(filename=filename, url=f"{place}/{quote(filename)}", size=None, sha256=sha256)
