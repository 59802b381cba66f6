"""Builds the image of a project and pushes it, for `project build`, `project push` and `project watch`."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.cli.shared import console
from torchkiln.cli.shared.context import BuildContext
from torchkiln.engine.build import BuildOptions
from torchkiln.engine.environment import open_environment
from torchkiln.locks.folder import LockFolder
from torchkiln.model.progress import Reporting
from torchkiln.projects.build import BuiltProject, ProjectSource, build_project, source_of
from torchkiln.projects.code import ProjectCode
from torchkiln.projects.file import FILE
from torchkiln.projects.source import ProjectRequest
from torchkiln.util.sizes import size

if TYPE_CHECKING:
    from torchkiln.cli.shared.options import PushTo
    from torchkiln.cli.shared.smoke_output import BuildSmoke
    from torchkiln.cli.shared.unproven import Pushes
    from torchkiln.errors import KilnError
    from torchkiln.projects.lock import LockedProject


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectBuilder:
    """Builds the image of a project into a layout."""

    request: ProjectRequest
    locks: LockFolder
    context: BuildContext
    layout: Path
    options: BuildOptions

    def first(self) -> tuple[ProjectSource, BuiltProject]:
        """Build the project, and print the summary and warnings; its lock is written if there is none."""
        context = self.context

        def made(found: LockedProject, path: Path) -> None:
            from torchkiln.cli.shared.project_output import show_project  # loads slowly

            if not context.quiet:
                show_project(found)
            context.say(f"there was no {FILE}: wrote {path}")

        with console.progress(quiet=context.quiet) as observer:
            report, store = Reporting(say=context.say, observer=observer), context.store()
            source = source_of(self.request, self.locks, store, environ=os.environ, made=made, report=report)
        built = self.build(source)
        for line in warnings_of(built, source.code):
            context.say(line)
        return source, built

    def build(self, source: ProjectSource) -> BuiltProject:
        """Build *source*, and print the summary."""
        context, store = self.context, self.context.store()
        context.keep(source.cell)
        with console.progress(quiet=context.quiet) as observer:
            environment = open_environment(store, observer=observer, say=context.say)
            built = build_project(
                source, context.matrix, context.facts, self.layout, environment, self.options
            )
        if not context.quiet:
            console.summary(built.built)
            parent = built.parent.image
            context.say(
                f"{built.built.image.tag} is on {parent.tag} ({parent.manifest}), with"
                f" {size(source.code.bytes)} of code"
            )
        return built

    def build_and_push(
        self, to: PushTo | None, tests: BuildSmoke | None, form: str
    ) -> tuple[dict[str, Any], KilnError | None]:
        """Build the project, run *tests* in its image, and push it *to* a registry if they passed.

        :param form: the format of an archive of the image; "oci": only the layout is written.

        Returns what --json prints, and the error of *tests*.
        """
        with pushes_to(to, self.context) as pushes:
            source, built = self.first()
            result, ref = self.result(built, source.code), built.built.image.ref
            if form != "oci":
                from torchkiln.oci.archive import archive_image

                repository = self.context.matrix.repository
                archive = archive_image(built.built.image, form, repository=repository)  # type: ignore[arg-type]
                self.context.say(f"archive: {archive}")
                result["archive"] = str(archive)
            failed = tests.of_project(result, replace(source, lock=built.lock)) if tests else None
            if pushes and not failed:
                from torchkiln.cli.shared.unproven import pushed_json  # loads slowly

                result["pushed"] = pushed_json(ref, pushes.push(pushes.image(self.layout, ref)))
            return result, failed

    def result(self, built: BuiltProject, code: ProjectCode, *, quiet: bool = False) -> dict[str, Any]:
        """What --json prints; unless *quiet*, a warning is printed if the lock uses an untrusted source."""
        parent = built.parent.image
        about = {
            "project": built.built.image.tag,
            "parent": {"tag": parent.tag, "digest": parent.manifest},
            "code": {"files": len(code.files) + len(code.links), "bytes": code.bytes},
            "at_start": list(built.at_start),
        }
        context = replace(self.context, quiet=self.context.quiet or quiet)
        return console.numbers(built.built) | about | context.trust_of(built.plan.locked)


def pushes_to(to: PushTo | None, context: BuildContext) -> AbstractContextManager[Pushes | None]:
    """A session with the registry, connected before anything is built; None if *to* names none."""
    if to is None or to.target is None:
        return nullcontext()
    from torchkiln.cli.shared import unproven  # loads slowly

    pushes = unproven.pushes(to, quiet=context.quiet)
    pushes.connect()
    return closing(pushes)


def warnings_of(built: BuiltProject, code: ProjectCode) -> list[str]:
    """Warnings about the contents of the image."""
    started = ", ".join(built.at_start)
    return [
        *(f"warning: {note}" for note in (*code.notes, *built.effect.overwritten)),
        *([f"warning: Python runs at each start: {started}"] if started else []),
    ]
