"""Checks the libraries of the wheels that a project adds to an image, with files in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from torchkiln.model.lock import LockedBase, LockedStandalone, LockedWheel
from torchkiln.model.recipe import minor
from torchkiln.projects.symbols.fit import Fault, Fit, Unreadable, fit
from torchkiln.projects.symbols.known import RECORDS, CachedParent, has_platform, libraries_of
from torchkiln.projects.symbols.library import Library
from torchkiln.projects.symbols.modules import for_other_python
from torchkiln.store.store import Store

_RULES = 2  # raise it when `fit` gives other faults


def check_wheels(
    added: Sequence[LockedWheel],
    fixed: Sequence[LockedWheel],
    base: LockedBase,
    store: Store,
    standalone: LockedStandalone | None = None,
) -> Fit:
    """The faults of the libraries of *added* on an image with *fixed* packages, and what is not in *store*.

    If *store* lacks a wheel of *added*, no fault is returned: that wheel could have what another one needs.

    :param standalone: the image's Python; None: that of the base.
    :raises BadWheel: a wheel is malformed.
    """
    wheels = [wheel for wheel in added if has_platform(wheel)]
    inputs = [_RULES, base.digest, *(sorted(one.sha256 for one in each) for each in (wheels, fixed))]
    inputs += [standalone.digest] if standalone else []
    key = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    if (record := store.record(RECORDS, key)) is not None:
        return Fit(faults=tuple(Fault(**values) for values in record["faults"]))
    python = minor(standalone.version if standalone else base.python)
    libraries: list[Library] = []
    faults: list[Fault] = []
    missing: list[str] = []
    for wheel in wheels:
        try:
            found = libraries_of(wheel, store)
        except Unreadable as error:
            missing.append(str(error))
            continue
        paths = [library.path for library in found]
        if fault := for_other_python(wheel.name, wheel.filename, paths, python):
            faults.append(fault)
        libraries += found
    if missing:
        return Fit(unread=tuple(missing))
    result = fit(libraries, CachedParent(fixed, base, store, standalone), python)
    result = Fit(faults=(*faults, *result.faults), unread=result.unread)
    if not result.unread:
        store.put_record(RECORDS, key, {"faults": [asdict(fault) for fault in result.faults]})
    return result
