"""`torchkiln smoke`: run the checks inside an image. What is done with reports: shared/reports.py."""

from __future__ import annotations

from pathlib import Path

import click

from torchkiln.attest.keys import private_key
from torchkiln.cli.bundle import Target, make_bundle
from torchkiln.cli.shared.options import images_folder, layout_option, parse_size
from torchkiln.cli.shared.reports import (
    THERE,
    Forms,
    demand,
    publish,
    read,
    report_forms,
    show,
)
from torchkiln.cli.shared.runtime_options import runtime_option
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.cli.shared.smoke_output import session_of
from torchkiln.errors import ConfigError
from torchkiln.smoke.report import demand_pass
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest
from torchkiln.smoke.suite import load_suite

_FOLDER = click.Path(path_type=Path, file_okay=False)


class _DefaultGroup(click.Group):
    """`smoke TAG` is `smoke run TAG`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args != ["--help"] and (not args or args[0] not in self.commands):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("smoke", cls=_DefaultGroup)
def smoke() -> None:
    """Run the smoke tests inside a built image: `smoke TAG`, or `smoke --torch 2.7 --cuda 12.1`."""


@smoke.command("run")
@click.argument("tag", required=False)
@selection
@images_folder
@layout_option()
@runtime_option()
@click.option(
    "--gpus", metavar="all|none|N|device=ID,ID", help="GPUs; all if there are some; a choice of them: docker"
)
@click.option("--shm-size", default="1g", show_default=True, help="of /dev/shm")
@click.option(
    "--tier", type=click.IntRange(0, 3), default=0, show_default=True, help="this tier and those below"
)
@click.option("--only", multiple=True, metavar="ID", help="only this check (several times)")
@click.option(
    "--limit", type=float, default=1800.0, show_default=True, help="seconds for all checks together"
)
@click.option("--force", is_flag=True, help="run, though the same run passed here within the policy's `age`")
@click.option("--suite", "suite_folder", type=_FOLDER, help="another suite")
@click.option("--key", "key_file", type=THERE, metavar="KEY.pem", help="sign the report, beside --report's")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FOLDER|NAME.tar",
    help="do not run: write all that is needed, to be carried to a GPU host (docs/gpu-hosts/no-docker.md)",
)
@click.option("--part-size", metavar="SIZE", help="with --bundle: its tar in parts of that size, 60m")
@click.option("--nonce", metavar="WORD", help="a word of whoever asks for this run; it stands in the report")
@report_forms
def run(
    tag: str | None,
    chosen: Chosen,
    images: Path,
    output: Path,
    runtime: str,
    gpus: str | None,
    shm_size: str,
    tier: int,
    only: tuple[str, ...],
    limit: float,
    force: bool,
    suite_folder: Path | None,
    key_file: Path | None,
    bundle: Path | None,
    part_size: str | None,
    nonce: str | None,
    report_file: Path | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run the checks inside the image TAG; print the verdict. Exit 10: the image failed, 11: the host did."""
    if bool(tag) == chosen.any:
        raise ConfigError(
            "name one image: its TAG, or --torch and --cuda", hint="see: torchkiln smoke --help"
        )
    if bundle and (key_file or report_file or junit or markdown or as_json):
        raise ConfigError(
            "--bundle runs nothing, so there is no report yet",
            hint="give --key, --report, --junit, --markdown, --json to its run.py",
        )
    if part_size and not bundle:
        raise ConfigError("--part-size is for --bundle", hint="add: --bundle FOLDER")
    if key_file and not report_file:
        raise ConfigError(
            "--key signs what --report writes, and there is none", hint="add: --report report.json"
        )
    shared = parse_size(shm_size)
    demand(nonce, "nonce")
    key = private_key(key_file) if key_file else None  # before the run: it may take long
    request = SmokeRequest(
        checks=Checks(suite=load_suite(suite_folder), tier=tier, only=only, limit_s=limit, nonce=nonce),
        runtime=runtime,
        gpus=gpus,
        shm_size=shared,
        force=force,
    )
    ref = tag or chosen.tag("smoke")
    if bundle:
        parts = parse_size(part_size, "--part-size") if part_size else None
        make_bundle(ref, output, images, chosen.matrix_file, request, Target(place=bundle, part_size=parts))
        return
    report = session_of(chosen, images).run(ref, output, request)
    publish(report, Forms(report=report_file, junit=junit, markdown=markdown, as_json=as_json), key)
    demand_pass(report)


smoke.add_command(show)
smoke.add_command(read)
