"""`torchkiln cache`: what is kept and why, what may go, and whether it is whole."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

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
from torchkiln.cli.shared.options import images_folder
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.index.download import open_downloads
from torchkiln.model.lock import LockedWheel
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])
_FEW = 3  # things with the same fault that are named; more are counted
_WIDTH = 160  # columns where stdout is no terminal


@click.group("cache")
def cache() -> None:
    """What the cache holds and why, what may go, whether it is whole.

    The cache is $TORCHKILN_CACHE, or the platform's cache folder. It can be deleted at any time: what is
    needed again is fetched or made again.
    """


def _common(command: F) -> F:
    """--layout, --images, --json."""
    for option in (
        click.option(
            "--layout",
            "layouts",
            multiple=True,
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            metavar="DIR",
            help="a layout whose tags count too; those that were built from this cache are known to it",
        ),
        images_folder,
        click.option("--json", "as_json", is_flag=True, help="one object on stdout"),
    ):
        command = option(command)
    return command


@cache.command("show")
@_common
@click.option("--each", is_flag=True, help="a line for each thing, not for each kind and reason")
def show(layouts: tuple[Path, ...], images: Path, as_json: bool, each: bool) -> None:
    """What is in the cache, by kind: count, size, last use, why it is kept, and what would take it."""
    store = _store()
    found = _look(store, layouts, images)
    usages = sorted(item_usages(found.items, found.roots), key=lambda one: KINDS.index(one.item.kind))
    now = time.time()
    soon = {one.item.path for one in expendable(usages, PrunePolicy(), now=now)}
    all_ = {one.item.path for one in expendable(usages, PrunePolicy(everything=True), now=now)}

    def goes(one: ItemUsage) -> str:
        return "prune" if one.item.path in soon else "prune --all" if one.item.path in all_ else "–"

    if as_json:
        told = [{**_told(one), "goes_with": goes(one).replace("–", "")} for one in usages]
        click.echo(json.dumps({"cache": str(store.root), "items": told}, indent=2))
        return
    rows: dict[tuple[str, ...], list[ItemUsage]] = {}
    for one in usages:
        key = (one.item.kind, goes(one), one.reason, one.item.path if each else "")
        rows.setdefault(key, []).append(one)
    _table(
        ("kind", "count", "size", "last use", "goes with", "kept because"),
        [
            (
                *(kind, str(len(ones)), _size(ones), _ago(now, ones), way),
                _named(ones, common_reason(ones), each),
            )
            for (kind, way, _, _), ones in rows.items()
        ],
    )
    shared = [one for one in usages if one.item.shared]
    click.echo(f"{_size(usages)} in {store.root}; {_size(shared)} of it are in layouts too, by hard link")
    for way, paths in (("prune", soon), ("prune --all", all_)):
        freed = [one for one in usages if one.item.path in paths and not one.item.shared]
        click.echo(f"`cache {way}` would free {_size(freed)}")


@cache.command("prune")
@_common
@click.option("--all", "everything", is_flag=True, help="everything that no tag needs, wheels too")
@click.option("--older-than", metavar="AGE", help="of that, what was not used for so long: 12h, 30d, 2w")
@click.option(
    "--max-size", metavar="SIZE", help="of that, the least recently used, until the cache fits: 20GB"
)
@click.option("--dry-run", is_flag=True, help="only tell")
def prune(
    layouts: tuple[Path, ...],
    images: Path,
    as_json: bool,
    everything: bool,
    older_than: str | None,
    max_size: str | None,
    dry_run: bool,
) -> None:
    """Delete what neither a tag of a known layout nor a lock has a use for.

    That is: layers and overlays of no tag, wheels and byte-code of no lock, unpacked images that were not
    used for 7 days, index pages and what layers say of packages for 30, and what interrupted runs left. Never
    what a tag needs, nor what a running build needs; builds go on meanwhile.
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
        done = pruning.prune(store, lambda: _look(store, layouts, images), policy, dry_run=dry_run)
    busy = [one for one in done.left if (one.item.busy or "process" in one.users) and "tag" not in one.users]
    if as_json:
        told = {
            "cache": str(store.root),
            "dry_run": dry_run,
            "freed_bytes": done.freed,
            "left_bytes": pruning.total(done.left),
            "gone": [_told(one) for one in done.gone],
            "left_in_use": [_told(one) for one in busy],
        }
        click.echo(json.dumps(told, indent=2))
    else:
        rows: dict[tuple[str, str], list[ItemUsage]] = {}
        for one in sorted(done.gone, key=lambda one: KINDS.index(one.item.kind)):
            rows.setdefault((one.item.kind, one.reason), []).append(one)
        lines = [(kind, str(len(ones)), _size(ones), common_reason(ones)) for (kind, _), ones in rows.items()]
        _table(("kind", "count", "size", "note"), lines)
        freed = f"{'would free' if dry_run else 'freed'} {console.size(done.freed)}"
        click.echo(f"{freed}; {_size(done.left)} stay in {store.root}")
    if busy:
        reasons = "; ".join(dict.fromkeys(one.why for one in busy))
        console.say(f"left {_size(busy)}: {reasons}")
    left = pruning.total(done.left)
    if policy.max_size is not None and left > policy.max_size:
        console.say(
            f"the cache is still {console.size(left)}: the rest is needed, `cache show` tells by whom"
        )


@cache.command("verify")
@_common
@click.option("--repair", is_flag=True, help="delete what is broken; fetch wheels again that a lock names")
def verify(layouts: tuple[Path, ...], images: Path, as_json: bool, repair: bool) -> None:
    """Hash every blob and wheel anew, and look at byte-code, records and unpacked images.

    Ends with exit 12 where faults remain. --repair takes what is broken out of the cache; the next build
    makes it again, and replaces it in its layout.
    """
    store = _store()
    started = time.monotonic()
    read: list[int] = []
    found = _look(store, layouts, images)
    faults = pruning.faults(store, found, advanced=read.append)
    seconds = time.monotonic() - started
    console.say(f"read {console.size(sum(read))} in {seconds:.1f} s")
    fetch = _late_fetch(store)
    hit: dict[str, None] = {}
    lines: dict[tuple[str, str, str], list[ItemUsage]] = {}
    told, remaining = [], 0
    for fault in faults:
        mended, done = pruning.repair(store, fault, found, fetch) if repair else (False, "")
        remaining += not mended
        hit |= dict.fromkeys(fault.tags)
        told.append({**_told(fault.subject), "fault": fault.what, "tags": fault.tags, "repaired": mended})
        lines.setdefault((fault.subject.item.kind, fault.what, done), []).append(fault.subject)
    for (kind, what, done), ones in [] if as_json else lines.items():
        said = f"{what}{': ' + done if done else ''}"
        click.echo(_named(ones, said, True) if len(ones) <= _FEW else f"{kind}: {len(ones)} of them: {said}")
    if as_json:
        told_all = {"cache": str(store.root), "things": len(found.items), "bytes": sum(read), "faults": told}
        click.echo(json.dumps(told_all, indent=2))
    elif not faults:
        click.echo(f"{len(found.items)} things in {store.root}: no fault")
    if hit:
        raise VerificationFailed(
            "damaged too, for the files are the same: " + "; ".join(hit),
            hint=("" if repair else "run this with --repair, then ")
            + "build these tags again: that replaces it",
        )
    if remaining:
        raise VerificationFailed(
            "1 fault remains" if remaining == 1 else f"{remaining} faults remain",
            hint="look at the lines above"
            if repair
            else "--repair deletes what is broken, and fetches wheels again",
        )


def _store() -> Store:
    root = cache_root()
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is a file, not a cache", hint="set TORCHKILN_CACHE to a folder")
    if not root.exists():
        console.say(f"there is no cache at {root} yet; the first build makes one")
    return Store(root, on_wait=console.waiting)


def _look(store: Store, layouts: Iterable[Path], images: Path) -> CacheUsage:
    found = cache_usage(store, layouts, images)
    for reason in found.unread:
        console.say(f"cannot be read, so all that it holds is kept: {reason}")
    return found


def _late_fetch(store: Store) -> Callable[[LockedWheel], object]:
    """The index is opened when a wheel is wanted of it."""

    def fetch(wheel: LockedWheel) -> object:

        return open_downloads(os.environ, store).fetch_wheel(wheel, store)

    return fetch


def _told(one: ItemUsage) -> dict[str, Any]:
    item = one.item
    return {
        "kind": item.kind,
        "path": item.path,
        "title": item.title,
        "bytes": item.size,
        "shared": item.shared,
        "last_use": int(item.used),
        "why": one.why,
        "needed_by": [name for names in one.users.values() for name in names],
        "to_make_again": list(one.makers),
    }


def _named(ones: Sequence[ItemUsage], text: str, by_name: bool) -> str:
    return f"{', '.join(one.item.title or one.item.path for one in ones)}: {text}" if by_name else text


def _size(usages: Sequence[ItemUsage]) -> str:
    return console.size(sum(one.item.size for one in usages))


def _ago(now: float, usages: Iterable[ItemUsage]) -> str:
    """How long ago the most recently used of them was."""
    seconds = max(now - max(one.item.used for one in usages), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """To stdout: in colour on a terminal, plain and without padding at the end elsewhere."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for name in head:
        table.add_column(
            name, justify="right" if name in ("count", "size") else "left", overflow="fold", no_wrap=False
        )
    for row in rows:
        table.add_row(*row)
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    out = Console(highlight=False, width=_WIDTH, color_system=None)
    with out.capture() as text:
        out.print(table)
    click.echo("\n".join(line.rstrip() for line in text.get().splitlines()))
