"""The kinds of wheels that are not as they should be: refused with a reason, or taken as pip takes them."""

from tests.hostile.bombs import BOMBS
from tests.hostile.installing import INSTALLING
from tests.hostile.making import SPEC, Kind
from tests.hostile.names import NAMES
from tests.hostile.zips import ZIPS

GROUPS: dict[str, dict[str, Kind]] = {
    "Names and kinds of entries": NAMES,
    "The zip's structure": ZIPS,
    "Bombs and smuggled bytes": BOMBS,
    "What an installer reads": INSTALLING,
}
KINDS: dict[str, Kind] = {name: kind for group in GROUPS.values() for name, kind in group.items()}
REFUSED = {name: kind for name, kind in KINDS.items() if kind.reason}
TAKEN = {name: kind for name, kind in KINDS.items() if not kind.reason}
assert len(KINDS) == sum(len(group) for group in GROUPS.values()), "two kinds of one name"

__all__ = ["GROUPS", "KINDS", "REFUSED", "SPEC", "TAKEN", "Kind"]
