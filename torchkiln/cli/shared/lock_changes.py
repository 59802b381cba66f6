"""`torchkiln lock --diff`: what the locks say otherwise than at an earlier revision, as Markdown or JSON."""

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

_NAMED = 3  # images that a row names; of more it gives the number, --json has all


def show_changes(name: str, images: Path, tags: Sequence[str], *, as_json: bool) -> None:
    """Print how the locks of *tags*, or of all images, differ from those of the revision *name*.

    :raises ConfigError: git does not know it.
    :raises Stale: a lock of today is broken.
    """
    revision = open_revision(name, images)
    found = changes_since(revision, images, tags, say)
    click.echo(_json(revision, found) if as_json else "\n".join(markdown(found)))


def markdown(found: Sequence[LockChange]) -> Iterator[str]:
    """For a pull request: a row for each image, then one for each change, however many images it is in."""
    if not found:
        yield "No lock asks for other bytes."
        return
    yield from ("| image | lock | added | removed | moved | base |", "| --- | --- | --- | --- | --- | --- |")
    for one in found:
        counts = " | ".join(str(one.count(kind)) for kind in ("added", "removed", "moved"))
        yield f"| {one.tag} | {_locks(one)} | {counts} | {_arrow(*one.base)} |"
    titles = {"python": "Python packages", "toolkit": "Parts of NVIDIA's toolkit", "os": "OS packages"}
    for system, title in titles.items():
        rows = _rows(found, system)
        if rows:
            yield from ("", f"### {title}", "")
            yield from ("| package | was | is | images |", "| --- | --- | --- | --- |")
            yield from rows
    for one in found:
        for swap in one.swapped:
            yield f"\n**{one.tag}: {swap.name} has another file under the same version: {swap.a} → {swap.b}**"


def _rows(found: Sequence[LockChange], system: str) -> list[str]:
    images: dict[PackageChange, list[str]] = {}
    for one in found:
        for change in one.packages:
            if change.system == system and one.a and one.b:
                images.setdefault(change, []).append(one.tag)
    both = sum(bool(one.a and one.b) for one in found)

    def where(tags: list[str]) -> str:
        if len(tags) == both:
            return "all" if both > 1 else tags[0]
        return ", ".join(tags) if len(tags) <= _NAMED else f"{len(tags)} of {both}"

    return [
        f"| {change.name} | {change.a or '–'} | {change.b or '–'} | {where(tags)} |"
        for change, tags in sorted(images.items(), key=lambda item: (item[0].name, item[0].a, item[0].b))
    ]


def _locks(one: LockChange) -> str:
    if one.a is None:
        return "new"
    return "gone" if one.b is None else _arrow(one.a, one.b)


def _arrow(a: str | None, b: str | None) -> str:
    """Two digests in short; nothing where they are the same or one is missing."""
    return f"`{a[7:19]}` → `{b[7:19]}`" if a and b and a != b else ""


def _json(revision: Revision, found: Sequence[LockChange]) -> str:
    """The contract of `lock --diff --json`."""
    told = {
        "since": {"name": revision.name, "commit": revision.commit},
        "images": [
            {
                "tag": one.tag,
                "a": one.a,
                "b": one.b,
                "base": {"a": one.base[0], "b": one.base[1]},
                "packages": [{"kind": kind_of(change), **asdict(change)} for change in one.packages],
                "swapped": [asdict(change) for change in one.swapped],
            }
            for one in found
        ],
    }
    return json.dumps(told, indent=2)
