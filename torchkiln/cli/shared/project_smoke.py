"""Runs the checks of a project's image, writes and prints the report, for `smoke --project`."""

from __future__ import annotations

import os
from pathlib import Path

from torchkiln.attest.dsse import PrivateKey
from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.project import project_cell
from torchkiln.cli.shared.reports import ReportFiles, publish
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.cli.shared.smoke_output import SmokeLines
from torchkiln.errors import Stale
from torchkiln.projects.choice import choice_of
from torchkiln.projects.file import FILE, load_project
from torchkiln.projects.freshness import require_fresh_project
from torchkiln.projects.read import demand_folder
from torchkiln.projects.ready import fresh_parent, needs_of
from torchkiln.projects.settings import read_settings
from torchkiln.projects.smoke.session import LockedProjectFolder, ProjectChecks, check_project
from torchkiln.smoke.report import demand_pass


def smoke_project(
    folder: Path,
    chosen: CellOptions,
    places: tuple[Path, Path],
    checks: ProjectChecks,
    files: ReportFiles,
    key: PrivateKey | None,
) -> None:
    """Run *checks* in the image of the project in *folder*; write the report to *files*, print the verdict.

    :param places: the folder of locks, and the layout.
    :param key: signs the report.
    :raises ConfigError: there is no such directory or image, or the project's files are wrong.
    :raises Stale: the project is not locked, or its lock or its image is outdated.
    :raises SmokeFailed: a check failed.
    :raises SmokeInconclusive: a check failed because of the host.
    """
    images, layout = places
    demand_folder(folder)
    if (lock := load_project(folder)) is None:
        raise Stale(
            f"{folder / FILE}: no such file: the project is not locked yet",
            hint=f"run: torchkiln build --project {folder} --torch X --cuda Y",
        )
    cell, locks = project_cell(chosen, folder, images)
    store, settings = open_cache(), read_settings(folder)
    parent = fresh_parent(locks, cell, os.environ)
    needs = needs_of(folder, parent, store, choice_of(lock.extras, lock.groups))
    require_fresh_project(folder, lock, needs, parent)
    project = LockedProjectFolder(folder=folder, needs=needs, lock=lock, cell=parent, settings=settings)
    lines = SmokeLines()
    report = check_project(project, layout, checks, store, lines, lambda: chosen.grid()[0].repository)
    publish(report, files, key, printed=lines.printed)
    demand_pass(report)
