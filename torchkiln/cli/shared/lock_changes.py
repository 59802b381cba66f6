"""Prints how the locks differ from an earlier git revision, as Markdown or JSON, for `lock --diff`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from torchkiln.cli.shared.lock_output import say
from torchkiln.compare.layers import PackageChange
from torchkiln.compare.locks import LockChange, changes_since, kind_of
from torchkiln.util.git import Revision, open_revision

_NAMED = 3  # maximum of images in a row; if there are more, only their number is printed; --json has all


def show_changes(name: str, images: Path, tags: Sequence[str], *, as_json: bool) -> None:
    """Print how the locks of *tags*, or of all images, differ from those of the revision *name*.

    :raises ConfigError: git does not know the revision.
    :raises Stale: a lock is broken.
    """
    revision = open_revision(name, images)
    found = changes_since(revision, images, tags, say)
    click.echo(_json(revision, found) if as_json else "\n".join(markdown(found)))


def markdown(found: Sequence[LockChange]) -> Iterator[str]:
    """For a pull request: a row for each image, then a row for each changed package."""
    if not found:
        yield "No lock has changed packages."
        return
    yield from ("| image | lock | added | removed | moved | base |", "| --- | --- | --- | --- | --- | --- |")
    for change in found:
        counts = " | ".join(str(change.count(kind)) for kind in ("added", "removed", "moved"))
        yield f"| {change.tag} | {_locks(change)} | {counts} | {_digests(*change.base)} |"
    titles = {"python": "Python packages", "toolkit": "Parts of NVIDIA's toolkit", "os": "OS packages"}
    for system, title in titles.items():
        rows = _rows(found, system)
        if rows:
            yield from ("", f"### {title}", "")
            yield from ("| package | was | is | images |", "| --- | --- | --- | --- |")
            yield from rows
    for change in found:
        for swap in change.swapped:
            yield f"\n**{change.tag}: {swap.name}: another file with the same version: {swap.a} → {swap.b}**"


def _rows(found: Sequence[LockChange], system: str) -> list[str]:
    images: dict[PackageChange, list[str]] = {}
    for lock in found:
        for change in lock.packages:
            if change.system == system and lock.a and lock.b:
                images.setdefault(change, []).append(lock.tag)
    both = sum(bool(lock.a and lock.b) for lock in found)

    def where(tags: list[str]) -> str:
        if len(tags) == both:
            return "all" if both > 1 else tags[0]
        return ", ".join(tags) if len(tags) <= _NAMED else f"{len(tags)} of {both}"

    return [
        f"| {change.name} | {change.a or '–'} | {change.b or '–'} | {where(tags)} |"
        for change, tags in sorted(images.items(), key=lambda item: (item[0].name, item[0].a, item[0].b))
    ]


def _locks(change: LockChange) -> str:
    if change.a is None:
        return "new"
    return "removed" if change.b is None else _digests(change.a, change.b)


def _digests(a: str | None, b: str | None) -> str:
    """Two shortened digests; nothing if they are the same or one is missing."""
    return f"`{a[7:19]}` → `{b[7:19]}`" if a and b and a != b else ""


def _json(revision: Revision, found: Sequence[LockChange]) -> str:
    """The object that `lock --diff --json` prints."""
    document = {
        "since": {"name": revision.name, "commit": revision.commit},
        "images": [
            {
                "tag": lock.tag,
                "a": lock.a,
                "b": lock.b,
                "base": {"a": lock.base[0], "b": lock.base[1]},
                "packages": [{"kind": kind_of(change), **asdict(change)} for change in lock.packages],
                "swapped": [asdict(change) for change in lock.swapped],
            }
            for lock in found
        ],
    }
    return json.dumps(document, indent=2)
