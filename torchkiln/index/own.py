"""OwnFile -> LockedWheel: files that no index has, from the place that the user names; known by their hash.

The place is an address, below which the file lies under its name, as on a project's release page or a mirror
of it, or a folder of this machine. The variable is named after the package: TORCHKILN_INDEX_FLASH_ATTN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from torchkiln.components import variable_of
from torchkiln.errors import BadWheel, BuildFailed, Unresolvable
from torchkiln.index.settings import IndexSettings
from torchkiln.nouns import LockedWheel, OwnFile, Source
from torchkiln.released import FileAt

if TYPE_CHECKING:
    from torchkiln.index.pages import Pages


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


def own_file(pages: Pages, file: OwnFile) -> LockedWheel:
    """*file*, fetched into the store, so that size and hash are its own.

    :raises Unresolvable: nobody says where it lies, or it is not there, or another file is.
    """
    from torchkiln.index.download import Downloads

    at = place_of(pages.settings, file.name, file.filename, file.sha256)
    told = f"set {variable_of(file.name)} to a place that has it, with sha256 {file.sha256}"
    try:
        measured = pages.measure(at)
        wheel = LockedWheel(
            name=file.name,
            version=file.version,
            filename=file.filename,
            sha256=file.sha256,
            size=measured.size or 0,
            index=Source.OWN,
        )
        Downloads(pages).fetch_wheel(wheel, pages.store)
    except BadWheel as error:
        raise Unresolvable(f"what lies there is another file: {error.message}", hint=told) from error
    except BuildFailed as error:
        raise Unresolvable(f"{file.filename} cannot be had: {error.message}", hint=told) from error
    return wheel


def required_by(pages: Pages, wheel: LockedWheel) -> tuple[str, ...]:
    """What METADATA of *wheel*, which the store has, asks for; what belongs to extras does not count.

    :raises BuildFailed: it is no wheel.
    """
    from torchkiln.index.remote_wheel import metadata_of

    path = pages.store.wheel(wheel)
    at = FileAt(filename=wheel.filename, url=path.as_uri(), size=wheel.size, sha256=wheel.sha256)
    return tuple(text for text in metadata_of(pages.session, at).requires if "extra ==" not in text)
