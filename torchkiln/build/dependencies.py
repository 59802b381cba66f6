"""A lock whose wheels are in the store → whether their METADATA agree with it.

A lock is resolved from metadata that an index serves; only here are the wheels at hand. An index that told
something else then than the wheel does would give an image in which packages are missing or too old.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from torchkiln.model.index import WheelMetadata

_RECORDS = "agreed"
_RULES = 1  # raise it when the same wheels could be judged otherwise
_SHOWN = 5


def demand_agreement(locked: LockedCell, store: Store) -> None:
    """Each wheel of *locked* in *store* has the locked name and version, and what it asks for is locked.

    Of a wheel that was pruned only its layer is left, which was made when it was looked at.

    :raises BuildFailed: the lock lacks something, or has another version of it; names the wheel.
    :raises BadWheel: METADATA cannot be read.
    """
    there = [wheel for wheel in locked.wheels if store.has_wheel(wheel)]
    resolution = locked.resolution
    asked = (
        *resolution.requirements,
        *(text for component in resolution.components for text in component.requires),
    )
    decides = {
        "rules": _RULES,
        "wheels": [(wheel.name, wheel.version, wheel.sha256) for wheel in locked.wheels],
        "there": [wheel.sha256 for wheel in there],
        "asked": asked,
        "python": locked.base.python,
    }
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    if store.record(_RECORDS, key):
        return
    from torchkiln.wheel.dependencies import faults  # only here: a build that changes nothing needs no parser

    metadata = {wheel.sha256: _metadata(wheel, store) for wheel in there}
    if found := faults(locked.wheels, metadata, asked, locked.base.python):
        more = (f"and {len(found) - _SHOWN} more",) if len(found) > _SHOWN else ()
        raise BuildFailed(
            "\n".join(("METADATA of the wheels does not agree with the lock:", *found[:_SHOWN], *more)),
            hint="the index told other metadata than its wheels have when this was locked; lock again, from"
            " an index that you trust",
        )
    store.put_record(_RECORDS, key, {"wheels": len(there)})


def _metadata(wheel: LockedWheel, store: Store) -> WheelMetadata:
    import zipfile
    import zlib

    from torchkiln.model.index import METADATA_LIMIT, read_metadata
    from torchkiln.wheel.entries import entries
    from torchkiln.wheel.source import WheelFile

    path = store.wheel(wheel)
    try:
        with WheelFile(path, path.stat().st_size) as file:  # its directory is within bounds
            (name,) = (
                one.name
                for one in entries(file, wheel.filename)
                if one.name.endswith(".dist-info/METADATA") and one.name.count("/") == 1
            )
        with zipfile.ZipFile(path) as archive, archive.open(name) as inside:
            return read_metadata(inside.read(METADATA_LIMIT + 1))
    except (OSError, ValueError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise BadWheel(wheel.filename, f"its METADATA cannot be read: {error}") from error
