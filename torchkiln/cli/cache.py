"""`torchkiln cache`: shows what the cache holds, deletes what is not needed, and verifies it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from torchkiln.cache import prune as pruning
from torchkiln.cache.prune import PrunePolicy, expendable, freed, total
from torchkiln.cache.usage import DAY, KINDS, CacheUsage, Entry, cache_usage
from torchkiln.cli.shared import console
from torchkiln.cli.shared.cache_bound import parse_bytes
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import images_folder, json_option, options
from torchkiln.cli.shared.tables import table
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.index.download import open_downloads
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store, cache_root

_ALL = PrunePolicy(max_size=0)


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
def show(layouts: tuple[Path, ...], images: Path, as_json: bool) -> None:
    """Show what the cache holds, by kind: count, size, last use, and how much `prune` would free."""
    store = _store()
    entries, now = _read_cache(store, layouts, images).entries, time.time()
    pruned, loose = ({one.path for one in expendable(entries, of, now=now)} for of in (PrunePolicy(), _ALL))
    if as_json:
        items = [
            {**_json(entry), "pruned": entry.path in pruned, "needed": entry.path not in loose}
            for entry in entries
        ]
        click.echo(json.dumps({"cache": str(store.root), "items": items}, indent=2))
        return
    rows = []
    for kind in KINDS:
        if group := [entry for entry in entries if entry.kind == kind]:
            sums = (freed(entry for entry in group if entry.path in paths) for paths in (pruned, loose))
            sizes = map(console.size, (total(group), *sums))
            rows.append((kind, str(len(group)), _ago(now - max(entry.used for entry in group)), *sizes))
    if rows:
        table(("kind", "count", "last use", "size", "prune frees", "at most"), rows, right=(1, 3, 4, 5))
    shared = total(entry for entry in entries if entry.shared)
    console.echo(
        f"{console.size(total(entries))} in {store.root}; "
        f"{console.size(shared)} of it is shared with layouts by hard links"
    )


@cache.command("prune")
@_common
@click.option(
    "--older-than",
    metavar="AGE",
    help="delete the files that no tag needs and that were not used for this long: 12h, 30d or 2w",
)
@click.option(
    "--max-size",
    metavar="SIZE",
    help="delete the least recently used files that no tag needs, until the cache fits into this size: 20GB",
)
@click.option("--dry-run", is_flag=True, help="print what would be deleted; delete nothing")
def prune(
    layouts: tuple[Path, ...],
    images: Path,
    as_json: bool,
    older_than: str | None,
    max_size: str | None,
    dry_run: bool,
) -> None:
    """Delete the files that no tag of a known layout and no lock needs.

    These are layers, overlays, wheels and byte-code, and leftovers of interrupted runs. Unpacked images are
    deleted after 7 days without use, index pages and package lists of layers after 30 days, .deb files of
    projects after 90 days. --older-than and --max-size also delete wheels and other files that are only
    needed to rebuild layers. Builds may run at the same time: the files that they need are kept.
    """
    policy = PrunePolicy(
        older_than=parse_age(older_than) if older_than else None,
        max_size=parse_bytes(max_size) if max_size else None,
    )
    store = _store()
    if not store.root.is_dir():
        done = pruning.Pruned(gone=(), left=())
    else:
        done = pruning.prune(store, lambda: _read_cache(store, layouts, images), policy, dry_run=dry_run)
    if as_json:
        sizes = {"freed_bytes": freed(done.gone), "left_bytes": total(done.left)}
        begin = {"cache": str(store.root), "dry_run": dry_run}
        click.echo(json.dumps({**begin, **sizes, "gone": list(map(_json, done.gone))}, indent=2))
    else:
        groups = {kind: [entry for entry in done.gone if entry.kind == kind] for kind in KINDS}
        rows = [(kind, str(len(some)), console.size(total(some))) for kind, some in groups.items() if some]
        if rows:
            table(("kind", "count", "size"), rows, right=(1, 2))
        verb = "would free" if dry_run else "freed"
        console.echo(
            f"{verb} {console.size(freed(done.gone))}; {console.size(total(done.left))} stay in {store.root}"
        )
    if busy := [entry for entry in done.left if entry.busy and not entry.users]:
        processes = "; ".join(dict.fromkeys(entry.busy for entry in busy))
        console.say(f"kept {console.size(total(busy))} in use: {processes}")
    if policy.max_size is not None and (left := total(done.left)) > policy.max_size:
        console.say(
            f"the cache still has {console.size(left)}: the rest is in use or needed by tags and locks,"
            " which `torchkiln cache show --json` lists"
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
        observer.begin("verify", "cache", total(found.entries))

        def advanced(count: int) -> None:
            read.append(count)
            observer.advance("verify", "cache", count)

        faults = pruning.faults(store, found, advanced=advanced)
    console.say(f"read {console.size(sum(read))} in {time.monotonic() - started:.1f} s")

    def fetch(wheel: LockedWheel) -> object:
        return open_downloads(os.environ, store).fetch_wheel(wheel, store)

    lines, listed, remaining = [], [], len(faults)
    for fault in faults:
        text, repaired = fault.what, False
        if repair:
            repaired, action = pruning.repair(store, fault, found, fetch)
            text += f": {action}"
        remaining -= repaired
        listed.append({**_json(fault.entry), "fault": fault.what, "tags": fault.tags, "repaired": repaired})
        lines.append(f"{fault.entry.path}: {text}")
    if as_json:
        numbers = {"checked_items": len(found.entries), "bytes": sum(read)}
        click.echo(json.dumps({"cache": str(store.root), **numbers, "faults": listed}, indent=2))
    else:
        console.echo("\n".join(lines) or f"{len(found.entries)} items in {store.root}: no faults")
    _raise_if_damaged(dict.fromkeys(tag for fault in faults for tag in fault.tags), remaining, repair)


def _raise_if_damaged(tags: Iterable[str], remaining: int, repair: bool) -> None:
    """:raises VerificationFailed: *tags* use damaged files, or faults remain."""
    if names := "; ".join(tags):
        raise VerificationFailed(
            f"these tags use damaged files: {names}",
            hint=f"{'' if repair else 'run: torchkiln cache verify --repair; then '}build these tags again",
        )
    if remaining:
        raise VerificationFailed(
            "1 fault remains" if remaining == 1 else f"{remaining} faults remain",
            hint="see the lines above" if repair else "run: torchkiln cache verify --repair",
        )


def parse_age(text: str) -> float:
    """`"30d"`, `"12h"`, `"2w"`, `"90m"` as seconds.

    :raises ConfigError: *text* is invalid.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip().lower())
    if match is None:
        raise ConfigError(f"--older-than {text}: not a valid duration", hint="write 90m, 12h, 30d or 2w")
    return float(match[1]) * {"m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}[match[2]]


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


def _json(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "path": entry.path,
        "bytes": entry.size,
        "shared": entry.shared,
        "last_use": int(entry.used),
        "needed_by": list(entry.users),
        "in_use": entry.busy,
    }


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
