"""Runs the checks of a project's image and prints the findings, for `smoke --project`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.project import project_cell
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.smoke_output import SmokeLines
from torchkiln.cli.shared.tables import paragraph
from torchkiln.errors import SmokeFailed, Stale
from torchkiln.project.choice import choice_of
from torchkiln.project.file import FILE, load_project
from torchkiln.project.freshness import require_fresh_project
from torchkiln.project.read import demand_folder
from torchkiln.project.ready import fresh_parent, needs_of
from torchkiln.smoke.project.session import (
    CheckedProject,
    LockedProjectFolder,
    ProjectChecks,
    check_project,
)
from torchkiln.smoke.report import to_whole_lines, width_of


def smoke_project(
    folder: Path, chosen: CellOptions, images: Path, layout: Path, checks: ProjectChecks
) -> None:
    """Run *checks* in the image of the project in *folder*; print the findings and the verdict.

    :raises ConfigError: there is no such folder or image, or the project's files are wrong.
    :raises Stale: the project is not locked, or its lock or its image is outdated.
    :raises SmokeFailed: a check failed.
    """
    demand_folder(folder)
    if (lock := load_project(folder)) is None:
        raise Stale(
            f"{folder / FILE}: no such file: the project is not locked yet",
            hint=f"run: torchkiln build --project {folder} --torch X --cuda Y",
        )
    cell, locks = project_cell(chosen, folder, images)
    store = open_cache()
    parent = fresh_parent(locks, cell, os.environ)
    needs = needs_of(folder, parent, store, choice_of(lock.extras, lock.groups))
    require_fresh_project(folder, lock, needs, parent)
    project = LockedProjectFolder(folder=folder, needs=needs, lock=lock, cell=parent)
    found = check_project(project, layout, checks, store, SmokeLines(), lambda: chosen.grid()[0].repository)
    failed = [finding for finding in found.findings if finding.outcome == "failed"]
    width = width_of(finding.id for finding in found.findings)
    for line in (*_head(found), *(line for finding in failed for line in to_whole_lines(finding, width))):
        click.echo(paragraph(line, err=True), err=True)
    click.echo("fail" if failed else "pass")
    if failed:
        names = [finding.id for finding in failed]
        works = "if a package works without a library: --allow-missing LIBRARY|PACKAGE"
        raise SmokeFailed(f"{lock.name}: fail: {', '.join(names)}", hint=works if "linkage" in names else "")


def _head(found: CheckedProject) -> list[str]:
    tag, _, digest = found.parent.partition("@")
    return [
        "",
        f"{found.image.ref}  {found.image.manifest}",
        f"on {tag}  {digest}",
        "torch and its libraries are those of the image below: its reports prove them, not this run",
        "",
    ]
