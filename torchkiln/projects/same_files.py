"""Refuses packages of a project that install different modules at the same path."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations

from torchkiln.errors import Unresolvable
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import BIG_WHEEL
from torchkiln.projects.effect import files_of_wheel
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme

# Folders that packages install beside their own by mistake; nothing imports them.
_ASIDE = frozenset({"tests", "test", "docs", "doc", "examples", "example", "benchmarks", "scripts"})
_MODULE = re.compile(r"\.(py|so[.\d]*)$")
_SHOWN = 3  # files of a pair


def require_distinct(
    wheels: Iterable[LockedWheel], store: Store, scheme: Scheme, why: Mapping[str, str]
) -> tuple[str, ...]:
    """Check that no two of *wheels*, as far as *store* has them, install different modules at the same path.

    :param why: what requires each package: " (requirements.txt:3)".
    :return: a sentence for each two that have other files in common which differ.
    :raises Unresolvable: modules or libraries differ: one of the packages would be broken; or other files of
        small wheels, which share a layer.
    """
    there = {wheel.name: wheel for wheel in wheels if store.has_wheel(wheel)}
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for name, wheel in there.items():
        for path, digest in files_of_wheel(store.wheel(wheel), wheel, scheme).items():
            owners[path.removeprefix(f"{scheme.site}/")][name] = digest
    pairs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, digests in sorted(owners.items()):
        for one, other in combinations(digests, 2):
            same = digests[one] == digests[other] != ""
            if not same:
                pairs[one, other].append(path)
    broken, notes = list[str](), list[str]()
    for pair, paths in pairs.items():
        modules = [path for path in paths if _MODULE.search(path) and path.partition("/")[0] not in _ASIDE]
        together = all(there[name].size < BIG_WHEEL for name in pair)
        shown = modules or paths
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        names = " and ".join(f"{name} {there[name].version}{why.get(name, '')}" for name in pair)
        text = f"{names} have different files at the same paths: {', '.join(shown[:_SHOWN])}{more}"
        (broken if modules or together else notes).append(text)
    if broken:
        raise Unresolvable(
            "\n".join(broken),
            hint="keep one of them; if a package requires the other one, put an empty wheel with its name and"
            ' version into a folder (wheels = "wheels"): see docs/projects.md',
        )
    return tuple(notes)
