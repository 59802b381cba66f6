"""`torchkiln cache`: shows what the cache holds and why, deletes what is not needed, and verifies it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from torchkiln.cache import prune as pruning
from torchkiln.cache.policy import (
    KINDS,
    ItemUsage,
    PrunePolicy,
    common_reason,
    expendable,
    item_usages,
    parse_age,
    parse_bytes,
)
from torchkiln.cache.usage import CacheUsage, cache_usage
from torchkiln.cli.shared import console
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import images_folder, json_option, options
from torchkiln.cli.shared.tables import table
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.index.download import open_downloads
from torchkiln.model.lock import LockedWheel
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store

_FEW = 3  # maximum of items with the same fault that are named; if there are more, they are only counted


@click.group("cache", cls=Group)
def cache() -> None:
    """Show, prune or verify the cache.

    The cache is $TORCHKILN_CACHE, by default in the user's cache folder. It can be deleted at any time: the
    next build downloads or builds the missing files again.
    """


_common = options(
    click.option(
        "--layout",
        "layouts",
        multiple=True,
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="also keep the files of this layout; the files of layouts built with this cache are always kept",
    ),
    images_folder,
    json_option,
)


@cache.command("show")
@_common
@click.option("--each", is_flag=True, help="print a line for each item, not for each kind and reason")
def show(layouts: tuple[Path, ...], images: Path, as_json: bool, each: bool) -> None:
    """Show what the cache holds, by kind: count, size, last use, and why it is kept."""
    store = _store()
    found = _read_cache(store, layouts, images)
    usages = sorted(item_usages(found.items, found.roots), key=lambda usage: KINDS.index(usage.item.kind))
    now = time.time()
    pruned = {usage.item.path for usage in expendable(usages, PrunePolicy(), now=now)}
    all_pruned = {usage.item.path for usage in expendable(usages, PrunePolicy(everything=True), now=now)}

    def deleted_by(usage: ItemUsage) -> str:
        path = usage.item.path
        return "prune" if path in pruned else "prune --all" if path in all_pruned else "–"

    if as_json:
        items = [{**_json(usage), "goes_with": deleted_by(usage).replace("–", "")} for usage in usages]
        click.echo(json.dumps({"cache": str(store.root), "items": items}, indent=2))
        return
    groups: dict[tuple[str, ...], list[ItemUsage]] = {}
    for usage in usages:
        key = (usage.item.kind, deleted_by(usage), usage.reason, usage.item.path if each else "")
        groups.setdefault(key, []).append(usage)
    rows = [
        (
            kind,
            str(len(group)),
            _size(group),
            _ago(now, group),
            command,
            _named(group, common_reason(group), each),
        )
        for (kind, command, _, _), group in groups.items()
    ]
    if rows:
        table(
            ("kind", "count", "size", "last use", "deleted by", "kept because"), rows, right=(1, 2), text=(5,)
        )
    shared = [usage for usage in usages if usage.item.shared]
    click.echo(f"{_size(usages)} in {store.root}; {_size(shared)} of it is shared with layouts by hard links")
    for command, paths in (("prune", pruned), ("prune --all", all_pruned)):
        freed = [usage for usage in usages if usage.item.path in paths and not usage.item.shared]
        click.echo(f"`cache {command}` would free {_size(freed)}")


@cache.command("prune")
@_common
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="also delete wheels and other files that are only needed to rebuild layers",
)
@click.option(
    "--older-than", metavar="AGE", help="as --all, but only files not used for this long: 12h, 30d or 2w"
)
@click.option(
    "--max-size",
    metavar="SIZE",
    help="as --all, but only the least recently used files, until the cache fits into this size: 20GB",
)
@click.option("--dry-run", is_flag=True, help="print what would be deleted; delete nothing")
def prune(
    layouts: tuple[Path, ...],
    images: Path,
    as_json: bool,
    everything: bool,
    older_than: str | None,
    max_size: str | None,
    dry_run: bool,
) -> None:
    """Delete the files that no tag of a known layout and no lock needs.

    These are layers, overlays, wheels and byte-code, and leftovers of interrupted runs. Unpacked images are
    deleted after 7 days without use, index pages and package lists of layers after 30 days, .deb files of
    projects after 90 days. Builds may run at the same time: the files that they need are kept.
    """
    policy = PrunePolicy(
        everything=everything,
        older_than=parse_age(older_than) if older_than else None,
        max_size=parse_bytes(max_size) if max_size else None,
    )
    store = _store()
    if not store.root.is_dir():
        done = pruning.Pruned(gone=(), left=())
    else:
        done = pruning.prune(store, lambda: _read_cache(store, layouts, images), policy, dry_run=dry_run)
    busy = [
        usage
        for usage in done.left
        if (usage.item.busy or "process" in usage.users) and "tag" not in usage.users
    ]
    if as_json:
        document = {
            "cache": str(store.root),
            "dry_run": dry_run,
            "freed_bytes": done.freed,
            "left_bytes": pruning.total(done.left),
            "gone": [_json(usage) for usage in done.gone],
            "left_in_use": [_json(usage) for usage in busy],
        }
        click.echo(json.dumps(document, indent=2))
    else:
        groups: dict[tuple[str, str], list[ItemUsage]] = {}
        for usage in sorted(done.gone, key=lambda usage: KINDS.index(usage.item.kind)):
            groups.setdefault((usage.item.kind, usage.reason), []).append(usage)
        rows = [
            (kind, str(len(group)), _size(group), common_reason(group)) for (kind, _), group in groups.items()
        ]
        if rows:
            table(("kind", "count", "size", "note"), rows, right=(1, 2), text=(3,))
        freed = f"{'would free' if dry_run else 'freed'} {console.size(done.freed)}"
        click.echo(f"{freed}; {_size(done.left)} stay in {store.root}")
    if busy:
        reasons = "; ".join(dict.fromkeys(usage.why for usage in busy))
        console.say(f"kept {_size(busy)}: {reasons}")
    left = pruning.total(done.left)
    if policy.max_size is not None and left > policy.max_size:
        console.say(
            f"the cache still has {console.size(left)}: the rest is needed; `torchkiln cache show` says why"
        )


@cache.command("verify")
@_common
@click.option("--repair", is_flag=True, help="delete damaged files; download locked wheels again")
def verify(layouts: tuple[Path, ...], images: Path, as_json: bool, repair: bool) -> None:
    """Hash every blob and wheel again, and check byte-code, records and unpacked images.

    Exits with 12 if faults remain. --repair deletes damaged files; the next build rebuilds them, and
    replaces them in the layouts.
    """
    store = _store()
    started = time.monotonic()
    read: list[int] = []
    found = _read_cache(store, layouts, images)
    with console.progress(quiet=False) as observer:
        observer.begin("verify", "cache", sum(item.size for item in found.items))

        def advanced(count: int) -> None:
            read.append(count)
            observer.advance("verify", "cache", count)

        faults = pruning.faults(store, found, advanced=advanced)
    seconds = time.monotonic() - started
    console.say(f"read {console.size(sum(read))} in {seconds:.1f} s")
    damaged_tags: dict[str, None] = {}
    groups: dict[tuple[str, str, str], list[ItemUsage]] = {}
    listed, remaining = [], 0
    for fault in faults:
        repaired, action = (
            pruning.repair(store, fault, found, lambda wheel: _fetch(wheel, store)) if repair else (False, "")
        )
        remaining += not repaired
        damaged_tags |= dict.fromkeys(fault.tags)
        listed.append({**_json(fault.subject), "fault": fault.what, "tags": fault.tags, "repaired": repaired})
        groups.setdefault((fault.subject.item.kind, fault.what, action), []).append(fault.subject)
    for (kind, what, action), group in [] if as_json else groups.items():
        text = f"{what}{': ' + action if action else ''}"
        click.echo(_named(group, text, True) if len(group) <= _FEW else f"{kind}: {len(group)} items: {text}")
    if as_json:
        document = {
            "cache": str(store.root),
            "checked_items": len(found.items),
            "bytes": sum(read),
            "faults": listed,
        }
        click.echo(json.dumps(document, indent=2))
    elif not faults:
        click.echo(f"{len(found.items)} items in {store.root}: no faults")
    if damaged_tags:
        raise VerificationFailed(
            "these tags use damaged files: " + "; ".join(damaged_tags),
            hint=f"{'' if repair else 'run: torchkiln cache verify --repair; then '}build these tags again",
        )
    if remaining:
        raise VerificationFailed(
            "1 fault remains" if remaining == 1 else f"{remaining} faults remain",
            hint="see the lines above" if repair else "run: torchkiln cache verify --repair",
        )


def _store() -> Store:
    root = cache_root()
    if root.exists() and not root.is_dir():
        raise ConfigError(f"cache {root}: not a directory", hint="set TORCHKILN_CACHE to a folder")
    if not root.exists():
        console.say(f"no cache in {root} yet; the first build creates it")
    return Store(root, on_wait=console.waiting)


def _read_cache(store: Store, layouts: Iterable[Path], images: Path) -> CacheUsage:
    found = cache_usage(store, layouts, images)
    for reason in found.unread:
        console.say(f"warning: {reason}")
    return found


def _fetch(wheel: LockedWheel, store: Store) -> object:
    return open_downloads(os.environ, store).fetch_wheel(wheel, store)


def _json(usage: ItemUsage) -> dict[str, Any]:
    item = usage.item
    return {
        "kind": item.kind,
        "path": item.path,
        "title": item.title,
        "bytes": item.size,
        "shared": item.shared,
        "last_use": int(item.used),
        "why": usage.why,
        "needed_by": [name for names in usage.users.values() for name in names],
        "to_make_again": list(usage.makers),
    }


def _named(usages: Sequence[ItemUsage], text: str, by_name: bool) -> str:
    return (
        f"{', '.join(usage.item.title or usage.item.path for usage in usages)}: {text}" if by_name else text
    )


def _size(usages: Sequence[ItemUsage]) -> str:
    return console.size(sum(usage.item.size for usage in usages))


def _ago(now: float, usages: Iterable[ItemUsage]) -> str:
    """The time since the last use of any of *usages*."""
    seconds = max(now - max(usage.item.used for usage in usages), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
