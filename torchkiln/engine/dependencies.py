"""Checks that the METADATA of the wheels in the store agrees with the lock.

A lock is resolved from the metadata that an index serves, without the wheels. If that metadata differs from
the metadata in the wheels, packages of the image may be missing or have the wrong version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.store.store import Store

if TYPE_CHECKING:
    from torchkiln.model.index import WheelMetadata

_RECORDS = "agreed"
_RULES = 1  # raise it when the check changes
_SHOWN = 5


def check_metadata(locked: LockedCell, store: Store, further: Sequence[str] = ()) -> None:
    """Check name, version and requirements of each wheel of *locked* that is in *store*.

    A pruned wheel was checked when its layer was made.

    :param further: requirements in addition to those of *locked*; they may have extras.
    :raises BuildFailed: a requirement is not locked, or is locked in another version; the message names the
        wheel.
    :raises BadWheel: METADATA cannot be read.
    """
    present = [wheel for wheel in locked.wheels if store.has_wheel(wheel)]
    requested = (*locked.resolution.requirements, *further)
    inputs = {
        "rules": _RULES,
        "wheels": [(wheel.name, wheel.version, wheel.sha256) for wheel in locked.wheels],
        "there": [wheel.sha256 for wheel in present],
        "asked": requested,
        "python": locked.python.version,
    }
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    if store.record(_RECORDS, key):
        return
    from torchkiln.wheel.dependencies import faults  # imported here: not needed if nothing changed

    metadata = {wheel.sha256: _metadata(wheel, store) for wheel in present}
    if found := faults(locked.wheels, metadata, requested, locked.python.version):
        more = (f"and {len(found) - _SHOWN} more",) if len(found) > _SHOWN else ()
        raise BuildFailed(
            "\n".join(("the METADATA of the wheels conflicts with the lock:", *found[:_SHOWN], *more)),
            hint="the metadata that the index served differs from that in its wheels; lock again with an"
            " index that you trust",
        )
    store.put_record(_RECORDS, key, {"wheels": len(present)})


def _metadata(wheel: LockedWheel, store: Store) -> WheelMetadata:
    from torchkiln.model.index import read_metadata
    from torchkiln.wheel.metadata import metadata_in

    try:
        return read_metadata(metadata_in(store.wheel(wheel), wheel.filename))
    except ValueError as error:
        raise BadWheel(wheel.filename, f"METADATA cannot be read: {error}") from error
