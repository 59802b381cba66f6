"""Malformed and malicious wheels: torchkiln refuses each with a reason, or installs it like pip."""

from tests.hostile.bombs import BOMBS
from tests.hostile.installing import INSTALLING
from tests.hostile.making import SPEC, Kind
from tests.hostile.names import NAMES
from tests.hostile.zips import ZIPS

GROUPS: dict[str, dict[str, Kind]] = {
    "Names and types of entries": NAMES,
    "The zip's structure": ZIPS,
    "Bombs and smuggled bytes": BOMBS,
    "Metadata and RECORD": INSTALLING,
}
KINDS: dict[str, Kind] = {name: kind for group in GROUPS.values() for name, kind in group.items()}
REFUSED = {name: kind for name, kind in KINDS.items() if kind.reason}
TAKEN = {name: kind for name, kind in KINDS.items() if not kind.reason}
assert len(KINDS) == sum(len(group) for group in GROUPS.values()), "duplicate names of kinds"

__all__ = ["GROUPS", "KINDS", "REFUSED", "SPEC", "TAKEN", "Kind"]
