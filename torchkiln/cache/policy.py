"""Decides why each item of the cache is kept and which may be deleted.

A tag needs its layers. Wheels, byte-code and the base's Python are only needed to rebuild layers, so they
are kept unless `--all`, `--older-than` or `--max-size` is given. A base is kept while a lock names it,
because the distribution's archive may no longer have its packages.
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
    "OS packages",
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
# Items that torchkiln can easily rebuild, and that are large or soon outdated. They are deleted after this
# number of days without use.
SHORT_LIVED: dict[Kind, float] = {
    "unpacked images": 7,
    "index pages": 30,
    "layer texts": 30,
    "pytest": 30,
    "OS packages": 90,  # kept longer, because an archive may no longer have them
}
_NAMED = 2  # maximum number of names in a reason; the others are only counted

Sort = Literal["process", "tag", "lock"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheItem:
    """A file or folder in the cache, with its records."""

    kind: Kind
    path: str  # relative to the cache
    size: int  # bytes
    used: float  # seconds since the epoch
    title: str = ""
    along: tuple[str, ...] = ()  # records that are useless without the item
    shared: bool = False  # the file has other hard links: its deletion frees no space
    busy: str = ""  # why it cannot be deleted now, such as a process that uses it


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A user of items; `name` is a tag with its layout, the tag of a lock, or a process."""

    sort: Sort
    name: str
    needs: frozenset[str]  # paths of required items
    sources: frozenset[str] = frozenset()  # paths that are only needed to rebuild the required items


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemUsage:
    """An item and its users, by name."""

    item: CacheItem
    users: dict[Sort, tuple[str, ...]] = field(hash=False)  # the users that require the item
    makers: tuple[str, ...]  # tags and locks that need it to rebuild layers

    @property
    def protected(self) -> bool:
        """Whether the item is kept with all options of `cache prune`."""
        return bool(self.item.busy or self.users or self.item.shared or self.item.kind == "not ours")

    @property
    def reason(self) -> str:
        """Why the item is kept or may be deleted, as a keyword; `cache show` groups items by it."""
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
        """The reason as text."""
        match self.reason:
            case "tag":
                return f"needed by {_listed(self.users['tag'])}"
            case "process":
                return f"in use: {_listed(self.users['process'])}"
            case "lock":
                return f"locked by {_listed(self.users['lock'])}; the archive may no longer have its packages"
            case "shared":
                return "hard-linked from an unknown layout: deleting it frees no space"
            case "not ours":
                return "not created by torchkiln: never deleted"
            case "rubbish":
                return "left behind by an ended process"
            case "makers":
                return f"needed to rebuild layers of {_listed(self.makers)}"
            case "short-lived":
                return f"deleted after {SHORT_LIVED[self.item.kind]:.0f} days without use"
            case "useless":
                return "not needed by any tag or lock"
            case busy:
                return busy


def common_reason(usages: Sequence[ItemUsage]) -> str:
    """The text of the one reason that all *usages* have; it names the users of all of them."""
    users: dict[Sort, tuple[str, ...]] = {}
    for usage in usages:
        for sort, names in usage.users.items():
            users[sort] = tuple(dict.fromkeys((*users.get(sort, ()), *names)))
    makers = tuple(dict.fromkeys(name for usage in usages for name in usage.makers))
    return replace(usages[0], users=users, makers=makers).why


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunePolicy:
    """The items to delete; by default only those that neither a tag nor a lock can use."""

    everything: bool = False  # delete all items that are not protected
    older_than: float | None = None  # delete unprotected items that were not used for so many seconds
    max_size: int | None = None  # delete the least recently used unprotected items, down to so many bytes


def item_usages(items: Iterable[CacheItem], roots: Sequence[Root]) -> tuple[ItemUsage, ...]:
    """Each item with its users, in the order of *items*."""
    needed: dict[str, dict[Sort, list[str]]] = {}
    sources: dict[str, list[str]] = {}
    for root in roots:
        for path in root.needs:
            needed.setdefault(path, {}).setdefault(root.sort, []).append(root.name)
        for path in root.sources:
            sources.setdefault(path, []).append(root.name)
    usages = []
    for item in items:
        users: dict[Sort, dict[str, None]] = {}
        makers: dict[str, None] = {}
        for path in (item.path, *item.along):
            for sort, names in needed.get(path, {}).items():
                users.setdefault(sort, {}).update(dict.fromkeys(names))
            makers.update(dict.fromkeys(sources.get(path, ())))
        frozen = {sort: tuple(names) for sort, names in users.items()}
        usages.append(ItemUsage(item=item, users=frozen, makers=tuple(makers)))
    return tuple(usages)


def expendable(usages: Sequence[ItemUsage], policy: PrunePolicy, *, now: float) -> tuple[ItemUsage, ...]:
    """The items that *policy* deletes, the least recently used first; never a protected one."""
    loose = sorted(
        (usage for usage in usages if not usage.protected),
        key=lambda usage: (usage.item.used, usage.item.path),
    )
    if policy.max_size is not None:
        return _until_it_fits(usages, loose, policy, now)
    if policy.older_than is not None:
        return tuple(usage for usage in loose if _rubbish(usage) or now - usage.item.used > policy.older_than)
    return tuple(usage for usage in loose if policy.everything or _rubbish(usage) or _useless(usage, now))


def parse_age(text: str) -> float:
    """`"30d"`, `"12h"`, `"2w"`, `"90m"` as seconds.

    :raises ConfigError: *text* is invalid.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip().lower())
    if match is None:
        raise ConfigError(f"--older-than {text}: not a valid duration", hint="write 90m, 12h, 30d or 2w")
    return float(match[1]) * {"m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}[match[2]]


def parse_bytes(text: str) -> int:
    """`"20GB"`, `"500M"`, `"1.5GiB"`, `"0"` as bytes; GB is 10⁹, GiB 2³⁰.

    :raises ConfigError: *text* is invalid.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?)B?|B)?", text.strip().upper())
    if match is None:
        raise ConfigError(f"--max-size {text}: not a valid size", hint="write 500MB, 20GB or 20GiB")
    step = 1024 if match[3] else 1000
    return int(float(match[1]) * step ** (" KMGT".index(match[2]) if match[2] else 0))


def _until_it_fits(
    usages: Sequence[ItemUsage], loose: Sequence[ItemUsage], policy: PrunePolicy, now: float
) -> tuple[ItemUsage, ...]:
    """The items to delete for `max_size`; partial wheels and leftovers come first, and are always deleted."""
    assert policy.max_size is not None
    left = sum(usage.item.size for usage in usages)
    chosen = []
    for usage in sorted(loose, key=lambda usage: not _rubbish(usage)):
        old = policy.older_than is None or now - usage.item.used > policy.older_than
        if _rubbish(usage) or (left > policy.max_size and old):
            chosen.append(usage)
            left -= usage.item.size
    return tuple(chosen)


def _rubbish(usage: ItemUsage) -> bool:
    return usage.item.kind in ("leftovers", "partial wheels")


def _useless(usage: ItemUsage, now: float) -> bool:
    if usage.item.kind in SHORT_LIVED:
        return now - usage.item.used > SHORT_LIVED[usage.item.kind] * DAY
    return not usage.makers


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return " and ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} others"
