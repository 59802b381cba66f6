"""`torchkiln project`: locks, builds, tests and pushes the image of a project."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.cli.shared.bundling import Bundling, bundle_options, make_bundle
from torchkiln.cli.shared.cache_bound import excess, max_size_option
from torchkiln.cli.shared.context import BuildContext
from torchkiln.cli.shared.groups import Group
from torchkiln.cli.shared.options import (
    FOLDER,
    PushTo,
    as_of_option,
    format_option,
    gathered,
    images_folder,
    json_option,
    layer_format_option,
    layout_option,
    limit_option,
    locked_option,
    matrix_option,
    mirror_option,
    nonce_option,
    only_option,
    push_to_options,
    quiet_option,
    smoke_option,
    upgrade_option,
    vault_option,
)
from torchkiln.cli.shared.project import demand_lock, project_cell
from torchkiln.cli.shared.reports import ReportFiles, key_of, key_option, publish, report_options
from torchkiln.cli.shared.runtime_options import RunOn, run_on_options
from torchkiln.cli.shared.selection import CellOptions, cell_selection
from torchkiln.cli.shared.terminal import echo
from torchkiln.errors import Stale
from torchkiln.model.layer import LayerFormat
from torchkiln.projects.choice import Choice, choice_of

if TYPE_CHECKING:
    from torchkiln.cli.shared.project_build import ProjectBuilder
    from torchkiln.locks.folder import LockFolder
    from torchkiln.projects.source import ProjectRequest


@click.group("project", cls=Group)
def project() -> None:
    """Lock, build, test and push the image of a project: its packages and code on the image of a cell.

    DIR is the folder of the project  [default: the current folder]. The first command selects the cell; then
    it is in the project's lock, DIR/torchkiln.lock.json.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """The values of --extra and --group."""

    extras: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def choice(self) -> Choice | None:
        """None: neither option was used; then the lock decides."""
        return choice_of(self.extras, self.groups) if self.extras or self.groups else None


_folder = click.argument("folder", type=FOLDER, metavar="[DIR]", default=".")
_extras_and_groups = gathered(
    "extra",
    _Chosen,
    click.option(
        "--extra",
        "extras",
        multiple=True,
        metavar="NAME",
        help="also the packages of this extra  [default: those of the project's lock]",
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        help="also the packages of this dependency group  [default: those of the project's lock]",
    ),
)
_allow_missing = click.option(
    "--allow-missing",
    multiple=True,
    metavar="LIBRARY|PACKAGE",
    help="allow this library (libtbb.so.12), or every library that this package needs, to be missing"
    "  [default: those of the project's lock]",
)


@project.command("lock")
@_folder
@cell_selection
@_extras_and_groups
@upgrade_option
@_allow_missing
@click.option("--check", is_flag=True, help="only check whether the lock is stale (exit 5)")
@as_of_option
@mirror_option
@images_folder
@json_option
def lock(
    folder: Path,
    chosen: CellOptions,
    extra: _Chosen,
    upgrade: tuple[str, ...],
    allow_missing: tuple[str, ...],
    check: bool,
    as_of: str | None,
    images: Path,
    as_json: bool,
) -> None:
    """Lock the packages of the project into DIR/torchkiln.lock.json; print its name.

    A lock that exists keeps its versions unless --upgrade is used. Prints the packages that change.
    """
    from torchkiln.projects.source import ProjectRequest

    cell, locks = project_cell(chosen, folder, images)
    request = ProjectRequest(
        folder=folder,
        cell=cell,
        choice=extra.choice,
        as_of=as_of,
        upgrade=upgrade,
        may_lack=tuple(filter(None, allow_missing)) if allow_missing else None,
    )
    if check and as_json:
        raise click.UsageError("--check prints no JSON")
    if check:
        _check(request, locks)
    else:
        _lock(request, locks, as_json=as_json)


def _lock(request: ProjectRequest, locks: LockFolder, *, as_json: bool) -> None:
    from torchkiln.cli.shared.console import open_cache
    from torchkiln.cli.shared.lock_output import LockOutput, say
    from torchkiln.cli.shared.project_output import project_json, show_project
    from torchkiln.projects.locking import lock_folder

    with LockOutput().reporting() as report:
        found, path = lock_folder(request, locks, open_cache(), environ=os.environ, report=report)
    show_project(found)
    say(f"wrote {path}")
    echo(project_json(found) if as_json else found.lock.name)


def _check(request: ProjectRequest, locks: LockFolder) -> None:
    from torchkiln.base.remake import APT_EFFECTS, committed_effects
    from torchkiln.cli.shared.console import open_cache
    from torchkiln.cli.shared.lock_output import say
    from torchkiln.projects.source import locked_folder

    folder = request.folder
    lock = locked_folder(request, locks, open_cache(), os.environ).lock
    effects = folder / APT_EFFECTS
    if lock.apt and effects.exists() and committed_effects(folder, lock.apt) is None:
        raise Stale(
            f"{effects}: it was made for another lock of the project",
            hint=f"run: torchkiln project lock {folder} --upgrade",
        )
    say("1 fresh")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Build:
    """The values of the options that `build`, `push` and `watch` share."""

    folder: Path
    chosen: CellOptions
    extra: _Chosen
    images: Path
    output: Path
    layer_format: LayerFormat
    locked: bool
    as_json: bool
    quiet: bool

    def builder(self) -> ProjectBuilder:
        """What builds the project."""
        from torchkiln.cli.shared.project_build import ProjectBuilder
        from torchkiln.engine.build import BuildOptions
        from torchkiln.projects.source import ProjectRequest

        cell, locks = project_cell(self.chosen, self.folder, self.images)
        context = BuildContext(locks.matrix, locks.facts, self.images, self.locked, self.quiet)
        return ProjectBuilder(
            request=ProjectRequest(folder=self.folder, cell=cell, choice=self.extra.choice),
            locks=locks,
            context=context,
            layout=self.output.absolute(),
            options=BuildOptions(sources=context.sources, layer_format=self.layer_format),
        )

    def build(self, to: PushTo | None, smoke: bool | None, form: str = "oci") -> None:
        """Build, test and push, write the archive of the format *form*, and print the result."""
        from torchkiln.cli.shared.smoke_output import BuildSmoke

        builder = self.builder()
        tests = None if smoke is False else BuildSmoke(builder.context, demanded=bool(smoke))
        result, error = builder.build_and_push(to, tests, form)
        printed = result["pushed"]["reference"] if "pushed" in result else result["digest"]
        click.echo(json.dumps(result) if self.as_json else printed)
        if line := excess(builder.context.store()):
            builder.context.say(line)
        if error:
            raise error


_build_options = gathered(
    "project",
    _Build,
    _folder,
    cell_selection,
    _extras_and_groups,
    images_folder,
    layout_option("the OCI layout to build into; images in it share blobs"),
    layer_format_option,
    locked_option,
    mirror_option,
    vault_option,
    json_option,
    quiet_option,
)


@project.command("build")
@_build_options
@max_size_option
@format_option
@smoke_option
def build(project: _Build, form: str, smoke: bool | None) -> None:
    """Build the image of the project, run its checks, and print its digest; it has the project's name.

    The lock is written if it is missing.
    """
    project.build(None, smoke, form)


@project.command("push")
@_build_options
@max_size_option
@smoke_option
@push_to_options(required=True)
def push(project: _Build, smoke: bool | None, to: PushTo) -> None:
    """Build the image of the project, run its checks, and push it without the gate; print its reference."""
    project.build(to, smoke)


@project.command("watch")
@_build_options
@push_to_options(required=False)
def watch(project: _Build, to: PushTo) -> None:
    """Build the image of the project again whenever its code changes, until Ctrl-C; with --to push it.

    Prints a line for each image: digest, seconds, bytes pushed, changed files (+ new, - removed).
    """
    from torchkiln.cli.shared.project_watch import watch_in

    watch_in(project.builder(), to, as_json=project.as_json)


@project.command("smoke")
@_folder
@matrix_option
@images_folder
@layout_option()
@run_on_options
@only_option
@limit_option
@_allow_missing
@key_option
@nonce_option
@report_options
@bundle_options
def smoke(
    folder: Path,
    matrix_file: Path,
    images: Path,
    output: Path,
    on: RunOn,
    only: tuple[str, ...],
    limit: float,
    allow_missing: tuple[str, ...],
    key_file: Path | None,
    nonce: str | None,
    files: ReportFiles,
    bundling: Bundling,
) -> None:
    """Run the checks of the project in its image, by default without a GPU; print the verdict.

    The checks, also for --only: import imports the packages, pip-check runs `pip check`, linkage looks for
    each shared library that a library needs, and test runs the test of torchkiln.toml, if any. Exits with 10
    if the image fails a check, with 11 if the host cannot run them.
    """
    from torchkiln.cli.shared.console import open_cache
    from torchkiln.cli.shared.image_names import NamedImage
    from torchkiln.cli.shared.smoke_output import SmokeLines
    from torchkiln.projects.smoke.carried import carried, carried_in
    from torchkiln.projects.smoke.session import ProjectChecks, check_project, project_image
    from torchkiln.projects.source import ProjectRequest, locked_folder
    from torchkiln.projects.symbols.require import require_known
    from torchkiln.smoke.report import demand_pass
    from torchkiln.smoke.suite import load_suite

    checks = ProjectChecks(
        only=only,
        may_lack=allow_missing,
        limit_s=limit,
        runtime=on.runtime,
        shm_size=on.shm_bytes,
        gpus=on.gpus,
        nonce=nonce,
    )
    bundling.demand(on, key_file, files)
    key = key_of(key_file, files, nonce)
    chosen, lines, store = CellOptions(matrix_file=matrix_file), SmokeLines(), open_cache()
    if (project := carried_in(folder, images)) is None:
        demand_lock(folder)
        cell, locks = project_cell(chosen, folder, images)
        project = locked_folder(ProjectRequest(folder=folder, cell=cell), locks, store, os.environ)
    if bundling.bundle:
        checks.selected(project.settings.test)
        require_known(allow_missing, project.lock)
        arguments = bundling.arguments(on, only, limit, nonce)
        arguments += [word for name in allow_missing for word in ("--allow-missing", name)]
        image = NamedImage(layout=output, ref=project_image(project, output)[0].ref)
        make_bundle(image, images, matrix_file, load_suite(), arguments, bundling, carried(project))
        return
    report = check_project(project, output, checks, store, lines, lambda: chosen.grid()[0].repository)
    publish(report, files, key, printed=lines.printed)
    demand_pass(report)
