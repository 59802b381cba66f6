"""`torchkiln smoke`: runs the smoke tests in an image. shared/reports.py writes and shows the reports."""

from __future__ import annotations

from pathlib import Path

import click

from torchkiln.cli.shared.bundling import Bundling, bundle_options, make_bundle
from torchkiln.cli.shared.console import open_cache
from torchkiln.cli.shared.groups import default_group
from torchkiln.cli.shared.image_names import named_image
from torchkiln.cli.shared.options import (
    images_folder,
    layout_option,
    limit_option,
    nonce_option,
    only_option,
    suite_option,
)
from torchkiln.cli.shared.reports import ReportFiles, key_of, key_option, publish, read, report_options, show
from torchkiln.cli.shared.runtime_options import RunOn, run_on_options
from torchkiln.cli.shared.selection import CellOptions, selection_for_running
from torchkiln.cli.shared.smoke_output import SmokeLines
from torchkiln.cli.shared.targets import name_argument
from torchkiln.smoke.report import demand_pass
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession
from torchkiln.smoke.suite import load_suite


@click.group("smoke", cls=default_group("run"))
def smoke() -> None:
    """Run the smoke tests in a built image; show or make reports. `smoke TAG` means `smoke run TAG`."""


@smoke.command("run")
@name_argument
@selection_for_running
@images_folder
@layout_option()
@run_on_options
@click.option(
    "--tier",
    type=click.IntRange(0, 3),
    show_default="0; with --only, that of the named checks",
    help="run the checks of this tier and of those below",
)
@only_option
@limit_option
@click.option("--force", is_flag=True, help="run again, even if the same run passed here recently")
@suite_option
@key_option
@bundle_options
@nonce_option
@report_options
def run(
    name: str | None,
    chosen: CellOptions,
    images: Path,
    output: Path,
    on: RunOn,
    tier: int | None,
    only: tuple[str, ...],
    limit: float,
    force: bool,
    suite_folder: Path | None,
    key_file: Path | None,
    bundling: Bundling,
    nonce: str | None,
    files: ReportFiles,
) -> None:
    """Run the checks in the image TAG, or in the image of the selected cell; print the verdict.

    TAG can be an alias; DIR:REF is an image of another layout.

    Exits with 10 if the image fails a check, with 11 if the host cannot run them.
    """
    image = named_image(name, output, chosen, command="smoke run")
    bundling.demand(on, key_file, files)
    key = key_of(key_file, files, nonce)
    suite = load_suite(suite_folder)
    tier = suite.tier_of(only) if tier is None else tier
    request = SmokeRequest(
        checks=Checks(suite=suite, tier=tier, only=only, limit_s=limit, nonce=nonce),
        runtime=on.runtime,
        gpus=on.gpus,
        shm_size=on.shm_bytes,
        force=force,
    )
    if bundling.bundle:
        arguments = ["--tier", str(tier), *bundling.arguments(on, only, limit, nonce), *["--force"] * force]
        make_bundle(image, images, chosen.matrix_file, suite, arguments, bundling, {})
        return
    lines = SmokeLines()
    session = SmokeSession(images=images, matrix=lambda: chosen.grid()[0], store=open_cache(), listener=lines)
    report = session.run(image.ref, image.layout, request)
    publish(report, files, key, printed=lines.printed)
    demand_pass(report)


smoke.add_command(show)
smoke.add_command(read)
