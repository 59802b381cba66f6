"""Builds the image of a project, for `build --project`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.build.build import BuildOptions
from torchkiln.build.environment import Environment
from torchkiln.build.project import BuiltProject, build_project
from torchkiln.build.project_source import source_of
from torchkiln.cli.shared import console
from torchkiln.cli.shared.context import BuildContext
from torchkiln.index.lazy import LazyIndex
from torchkiln.lock.folder import LockFolder
from torchkiln.model.progress import Reporting
from torchkiln.project.code import ProjectCode
from torchkiln.project.file import FILE
from torchkiln.project.ready import ProjectRequest
from torchkiln.util.sizes import size

if TYPE_CHECKING:
    from torchkiln.project.lock import LockedProject


def build_in(
    request: ProjectRequest, locks: LockFolder, context: BuildContext, layout: Path, options: BuildOptions
) -> dict[str, Any]:
    """Build the project into *layout*, print the summary, and return what --json prints."""
    store = context.store()

    def made(found: LockedProject, path: Path) -> None:
        from torchkiln.cli.shared.project_output import show_project  # loads slowly

        if not context.quiet:
            show_project(found)
        context.say(f"there was no {FILE}: wrote {path}")

    with console.progress(quiet=context.quiet) as observer:
        report = Reporting(say=context.say, observer=observer)
        source = source_of(request, locks, store, environ=os.environ, made=made, report=report)
        context.keep(source.cell)
        environment = Environment(store=store, fetcher=LazyIndex(store), observer=observer, say=context.say)
        built = build_project(
            source,
            context.matrix,
            context.facts,
            layout,
            environment,
            options,
        )
    if not context.quiet:
        console.summary(built.built)
        for line in _notes(built, source.code):
            context.say(line)
    return console.numbers(built.built) | _numbers(built, source.code) | context.trust_of(built.plan.locked)


def _notes(built: BuiltProject, code: ProjectCode) -> list[str]:
    parent = built.parent.image
    started = ", ".join(built.at_start)
    return [
        f"{built.built.image.tag} is on {parent.tag} ({parent.manifest}), with {size(code.bytes)} of code",
        *(f"warning: {note}" for note in (*code.notes, *built.effect.overwritten)),
        *([f"warning: Python runs at each start: {started}"] if started else []),
    ]


def _numbers(built: BuiltProject, code: ProjectCode) -> dict[str, Any]:
    parent = built.parent.image
    return {
        "project": built.built.image.tag,
        "parent": {"tag": parent.tag, "digest": parent.manifest},
        "code": {"files": len(code.files) + len(code.links), "bytes": code.bytes},
        "at_start": list(built.at_start),
    }
