"""Rebuilds the image of a project whenever it changes, and pushes it, for `build --watch`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import click

from torchkiln.cli.shared.options import PushTo
from torchkiln.cli.shared.project_build import ProjectBuilder, pushes_to, warnings_of
from torchkiln.cli.shared.terminal import echo, print_error
from torchkiln.cli.shared.unproven import Pushes
from torchkiln.engine.environment import open_environment
from torchkiln.errors import KilnError
from torchkiln.matrix.tags import tag_of
from torchkiln.model.progress import Silent
from torchkiln.projects.build import BuiltProject, ProjectSource, rebuild_project, source_of
from torchkiln.projects.watch import INTERVAL, Rebuilt, WatchedProject, rebuilds
from torchkiln.registry.push import Pushed
from torchkiln.util.sizes import size

_NAMED = 3  # maximum of changed files in a line; further files are only counted


def watch_in(builder: ProjectBuilder, to: PushTo, *, as_json: bool) -> NoReturn:
    """Build the project, then again whenever it changes; push each image, and print a line for it.

    Errors are printed, and the watch continues; an error in the first build ends it.
    """
    context = builder.context
    with pushes_to(to, context) as pushes:
        began = time.monotonic()
        source, built = builder.first()
        lines = _Lines(builder, pushes, as_json)
        lines.show(Rebuilt(built=built, source=source, changed=(), began=began), first=True)
        context.say(f"watching {builder.request.folder}, every {INTERVAL} s; press Ctrl-C to stop")
        for event in rebuilds(_watched(builder, source, built)):
            try:
                if isinstance(event, KilnError):
                    raise event
                lines.show(event)
            except KilnError as error:
                print_error(error.message, error.hint)
    raise AssertionError("the watch ended by itself")


def _watched(builder: ProjectBuilder, source: ProjectSource, built: BuiltProject) -> WatchedProject:
    request, locks, store = builder.request, builder.locks, builder.context.store()
    silent = open_environment(store, observer=Silent(), say=builder.context.say)

    def build(found: ProjectSource, before: BuiltProject | None) -> BuiltProject:
        if before is None:
            return builder.build(found)
        return rebuild_project(before, found, locks.matrix, builder.layout, silent, builder.options)

    return WatchedProject(
        folder=request.folder,
        beside=(locks.path / tag_of(source.cell.resolution) / "lock.json",),
        source=source,
        built=built,
        read=lambda: source_of(request, locks, store, environ=os.environ, made=None),
        build=build,
    )


@dataclass
class _Lines:
    """Pushes each image, then prints a line for it."""

    builder: ProjectBuilder
    pushes: Pushes | None
    as_json: bool
    _warned: set[str] = field(default_factory=set)

    def show(self, event: Rebuilt, *, first: bool = False) -> None:
        """Push the image of *event*, and print its line.

        :raises KilnError: the push failed; the line is printed before.
        """
        built, code, image = event.built, event.source.code, event.built.built.image
        context = self.builder.context
        done = time.monotonic()
        warnings = warnings_of(built, code)
        if first:
            context.trust_of(built.plan.locked)
        else:
            for line in warnings:
                if line not in self._warned:
                    context.say(line)
        self._warned.update(warnings)
        pushed, error = None, None
        try:
            if self.pushes:
                on_disk = self.pushes.image(self.builder.layout, image.ref)
                pushed = self.pushes.push(on_disk, announced=first)
        except KilnError as found:
            error = found
        seconds = {"build": done - event.began, "total": time.monotonic() - event.began}
        if self.as_json:
            click.echo(json.dumps(self._json(event, pushed, seconds)))
        else:
            sent = f"  {size(pushed.bytes_sent)} pushed" if pushed else ""
            count = len(code.files) + len(code.links)
            what = f"{count} file{'' if count == 1 else 's'}" if first else _names(event.changed)
            echo(f"{image.manifest}  {seconds['total']:.2f} s{sent}  {what}")
        if error:
            raise error

    def _json(self, event: Rebuilt, pushed: Pushed | None, seconds: dict[str, float]) -> dict[str, Any]:
        found = self.builder.result(event.built, event.source.code, quiet=True) | {
            "changed": list(event.changed),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }
        if self.pushes:
            found["pushed"] = pushed and {
                "reference": pushed.reference,
                "tags": list(pushed.tags),
                "bytes_sent": pushed.bytes_sent,
            }
        return found


def _names(changed: Sequence[str]) -> str:
    """`"train.py, +new.py and 3 more"`."""
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    return ", ".join(changed[:_NAMED]) + more if changed else "no file of the image changed"
