"""What is in the cache and who needs it → why each thing is kept, and what may go.

A tag needs its layers; with them it is whole. Wheels, byte-code and the base's Python are only needed to
make layers again, so they stay while there is room (`--all`, `--older-than` and `--max-size` take them). A
base is kept as long as a lock names it, for the distribution's archive may not give it a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from torchkiln.errors import ConfigError

Kind = Literal[
    "layers",
    "bases",
    "other blobs",
    "wheels",
    "partial wheels",
    "toolkit parts",
    "byte-code",
    "interpreters",
    "unpacked images",
    "pytest",
    "index pages",
    "layer texts",
    "leftovers",
    "not ours",
]
KINDS: tuple[Kind, ...] = get_args(Kind)  # in the order of a listing
DAY = 86400.0
# Made again at little cost, and large, or of little use when old: days without use after which they go.
SHORT_LIVED: dict[Kind, float] = {"unpacked images": 7, "index pages": 30, "layer texts": 30, "pytest": 30}
_NAMED = 2  # names in a reason, before it counts

Sort = Literal["process", "tag", "lock"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing in the cache: a file or a folder, with the records that go with it."""

    kind: Kind
    path: str  # relative to the cache
    size: int  # bytes
    used: float  # seconds since the epoch
    title: str = ""
    along: tuple[str, ...] = ()  # records that mean nothing without it
    shared: bool = False  # by hard link: deleting it would free nothing
    busy: str = ""  # who works on it now


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """Who needs what. `name` says it: a tag with its layout, a lock's tag, a process."""

    sort: Sort
    name: str
    needs: frozenset[str]  # paths: not whole without them
    sources: frozenset[str] = frozenset()  # paths: only to make the needed ones again


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemUsage:
    """An item and its users, by name."""

    item: Item
    users: dict[Sort, tuple[str, ...]] = field(hash=False)  # who needs it
    makers: tuple[str, ...]  # tags and locks that it would be needed for, to make something again

    @property
    def firm(self) -> bool:
        """Whether it stays whatever is asked for."""
        return bool(self.item.busy or self.users or self.item.shared or self.item.kind == "not ours")

    @property
    def reason(self) -> str:
        """Why it is kept or may go, in a word; things of one kind and reason are listed together."""
        for sort in ("tag", "process"):
            if sort in self.users:
                return sort
        if self.item.busy:
            return self.item.busy
        if "lock" in self.users:
            return "lock"
        if self.item.shared:
            return "shared"
        if self.item.kind == "not ours":
            return "not ours"
        if _rubbish(self):
            return "rubbish"
        if self.makers:
            return "makers"
        return "short-lived" if self.item.kind in SHORT_LIVED else "useless"

    @property
    def why(self) -> str:
        """The reason as a phrase."""
        match self.reason:
            case "tag":
                return f"needed by {_listed(self.users['tag'])}"
            case "process":
                return f"in use: {_listed(self.users['process'])}"
            case "lock":
                return f"locked by {_listed(self.users['lock'])}; the archive may not give it again"
            case "shared":
                return "an unknown layout has it too: deleting it would free nothing"
            case "not ours":
                return "not ours: never touched"
            case "rubbish":
                return "left by a process that ended"
            case "makers":
                return f"to make layers again, of {_listed(self.makers)}"
            case "short-lived":
                return f"goes after {SHORT_LIVED[self.item.kind]:.0f} days without use"
            case "useless":
                return "no tag and no lock needs it"
            case busy:
                return busy


def together(ones: Sequence[ItemUsage]) -> str:
    """The one phrase for things of one reason: whoever uses any of them is counted."""
    users: dict[Sort, tuple[str, ...]] = {}
    for one in ones:
        for sort, names in one.users.items():
            users[sort] = tuple(dict.fromkeys((*users.get(sort, ()), *names)))
    makers = tuple(dict.fromkeys(name for one in ones for name in one.makers))
    return replace(ones[0], users=users, makers=makers).why


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What to let go. Nothing set: only what neither a tag nor a lock has any use for."""

    everything: bool = False  # all that no tag needs
    older_than: float | None = None  # seconds: of all that no tag needs, what was not used for so long
    max_size: int | None = None  # bytes: of all that no tag needs, the least recently used, until it fits


def item_usages(items: Iterable[Item], roots: Sequence[Root]) -> tuple[ItemUsage, ...]:
    """Each item with those that need it, in the items' order."""
    needed: dict[str, dict[Sort, list[str]]] = {}
    wanted: dict[str, list[str]] = {}
    for root in roots:
        for path in root.needs:
            needed.setdefault(path, {}).setdefault(root.sort, []).append(root.name)
        for path in root.sources:
            wanted.setdefault(path, []).append(root.name)
    usages = []
    for item in items:
        users: dict[Sort, dict[str, None]] = {}
        makers: dict[str, None] = {}
        for path in (item.path, *item.along):
            for sort, names in needed.get(path, {}).items():
                users.setdefault(sort, {}).update(dict.fromkeys(names))
            makers.update(dict.fromkeys(wanted.get(path, ())))
        plain = {sort: tuple(names) for sort, names in users.items()}
        usages.append(ItemUsage(item=item, users=plain, makers=tuple(makers)))
    return tuple(usages)


def expendable(usages: Sequence[ItemUsage], policy: Policy, *, now: float) -> tuple[ItemUsage, ...]:
    """What may go by *policy*, the least recently used first; never what a tag or a process needs."""
    loose = sorted((one for one in usages if not one.firm), key=lambda one: (one.item.used, one.item.path))
    if policy.max_size is not None:
        return _until_it_fits(usages, loose, policy, now)
    if policy.older_than is not None:
        return tuple(one for one in loose if _rubbish(one) or now - one.item.used > policy.older_than)
    return tuple(one for one in loose if policy.everything or _rubbish(one) or _useless(one, now))


def parse_age(text: str) -> float:
    """`"30d"`, `"12h"`, `"2w"`, `"90m"` as seconds.

    :raises ConfigError: it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip().lower())
    if match is None:
        raise ConfigError(f"--older-than {text}: not a valid duration", hint="write 90m, 12h, 30d or 2w")
    return float(match[1]) * {"m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}[match[2]]


def parse_bytes(text: str) -> int:
    """`"20GB"`, `"500M"`, `"1.5GiB"`, `"0"` as bytes; GB is 10⁹, GiB 2³⁰.

    :raises ConfigError: it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?)B?|B)?", text.strip().upper())
    if match is None:
        raise ConfigError(f"--max-size {text}: not a valid size", hint="write 500MB, 20GB or 20GiB")
    step = 1024 if match[3] else 1000
    return int(float(match[1]) * step ** (" KMGT".index(match[2]) if match[2] else 0))


def _until_it_fits(
    usages: Sequence[ItemUsage], loose: Sequence[ItemUsage], policy: Policy, now: float
) -> tuple[ItemUsage, ...]:
    """What is of no use goes in any case, and first."""
    assert policy.max_size is not None
    left = sum(one.item.size for one in usages)
    chosen = []
    for one in sorted(loose, key=lambda one: not _rubbish(one)):
        old = policy.older_than is None or now - one.item.used > policy.older_than
        if _rubbish(one) or (left > policy.max_size and old):
            chosen.append(one)
            left -= one.item.size
    return tuple(chosen)


def _rubbish(one: ItemUsage) -> bool:
    return one.item.kind in ("leftovers", "partial wheels")


def _useless(one: ItemUsage, now: float) -> bool:
    if one.item.kind in SHORT_LIVED:
        return now - one.item.used > SHORT_LIVED[one.item.kind] * DAY
    return not one.makers


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return " and ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} others"
