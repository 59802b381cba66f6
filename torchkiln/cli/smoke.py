"""`torchkiln smoke`: runs the smoke tests in an image. shared/reports.py writes and shows the reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from torchkiln.cli.shared.console import open_cache, size
from torchkiln.cli.shared.groups import default_group
from torchkiln.cli.shared.image_names import NamedImage, named_image
from torchkiln.cli.shared.options import (
    EXISTING_FILE,
    Named,
    gathered,
    images_folder,
    layout_option,
    limit_option,
    nonce_option,
    only_option,
    parse_size,
    suite_option,
)
from torchkiln.cli.shared.reports import ReportFiles, key_of, key_option, publish, read, report_options, show
from torchkiln.cli.shared.runtime_options import RunOn, run_on_options
from torchkiln.cli.shared.selection import CellOptions, selection_for_running
from torchkiln.cli.shared.smoke_output import SmokeLines
from torchkiln.cli.shared.targets import name_argument
from torchkiln.cli.shared.terminal import as_typed, echo
from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke.bundle.contents import contents
from torchkiln.smoke.bundle.held import HeldLayer, held_of, read_held
from torchkiln.smoke.bundle.make import parts_of
from torchkiln.smoke.bundle.write import TAR, write_folder, write_parts, write_tar
from torchkiln.smoke.report import demand_pass
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession, image_and_lock
from torchkiln.smoke.suite import load_suite

_LEAST_PART = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bundling:
    """The options for a bundle. NAME.tar is one file, any other name a folder, maybe with parts of a tar."""

    bundle: Path | None
    part_size: str | None
    have: Path | None  # a list of layers to leave out

    def part_bytes(self) -> int | None:
        """The size of a part; None: no parts.

        :raises ConfigError: it is invalid, or --bundle is missing or no folder.
        """
        if (self.part_size or self.have) and not self.bundle:
            raise ConfigError("--part-size and --have require --bundle", hint="add --bundle FOLDER")
        if self.part_size is None or self.bundle is None:
            return None
        size = parse_size(self.part_size, "--part-size")
        if size < _LEAST_PART:
            raise ConfigError(f"--part-size {size}: too small", hint="use 1m or more")
        if self.bundle.suffix == ".tar":
            raise ConfigError(
                f"--bundle {self.bundle}: --part-size requires a folder, not a tar",
                hint="name it without .tar, or omit --part-size",
            )
        return size


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
@gathered(
    "bundling",
    _Bundling,
    click.option(
        "--bundle",
        type=Named(),
        metavar="FOLDER|NAME.tar",
        help="run nothing; write a bundle to run on a GPU host (docs/deploy.md)",
    ),
    click.option(
        "--part-size", metavar="SIZE", help="with --bundle: split the tar into parts of this size, 60m"
    ),
    click.option(
        "--have",
        type=EXISTING_FILE,
        metavar="FILE",
        help="with --bundle: leave out the layers that the GPU host has; FILE is the output of its"
        " run.py --have",
    ),
)
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
    bundling: _Bundling,
    nonce: str | None,
    files: ReportFiles,
) -> None:
    """Run the checks in the image TAG, or in the image of the selected cell; print the verdict.

    TAG can be an alias; DIR:REF is an image of another layout.

    Exits with 10 if the image fails a check, with 11 if the host cannot run them.
    """
    image = named_image(name, output, chosen, command="smoke run")
    if bundling.bundle and (key_file or any(asdict(files).values())):
        raise ConfigError(
            "--bundle runs no checks, so there is no report to write",
            hint="use --key, --report, --junit, --markdown and --json with the bundle's run.py",
        )
    bundling.part_bytes()
    key = key_of(key_file, files, nonce)
    suite = load_suite(suite_folder)
    request = SmokeRequest(
        checks=Checks(
            suite=suite,
            tier=suite.tier_of(only) if tier is None else tier,
            only=only,
            limit_s=limit,
            nonce=nonce,
        ),
        runtime=on.runtime,
        gpus=on.gpus,
        shm_size=on.shm_bytes,
        force=force,
    )
    if bundling.bundle:
        _make_bundle(image, images, chosen.matrix_file, request, bundling)
        return
    lines = SmokeLines()
    session = SmokeSession(images=images, matrix=lambda: chosen.grid()[0], store=open_cache(), listener=lines)
    report = session.run(image.ref, image.layout, request)
    publish(report, files, key, printed=lines.printed)
    demand_pass(report)


smoke.add_command(show)
smoke.add_command(read)


def _make_bundle(
    named: NamedImage, images: Path, matrix_file: Path, request: SmokeRequest, bundling: _Bundling
) -> None:
    """Write the bundle that runs *request* in the image *named*; print its path."""
    place, part_bytes = bundling.bundle, bundling.part_bytes()
    assert place is not None
    if RUNTIMES[request.runtime].in_engine:
        raise ConfigError(
            f"--runtime {request.runtime}: a bundle does not run in an engine", hint="omit --runtime"
        )
    listed = read_held(bundling.have) if bundling.have else {}
    store = open_cache()
    image, tag, locked = image_and_lock(named.ref, named.layout, images, store)
    held = held_of(image, listed)
    arguments, suite = _arguments(request), request.checks.suite
    with parts_of(image, locked, suite, matrix=matrix_file, arguments=arguments, store=store) as parts:
        files = contents(parts, held)
        total = size(sum(file.size for file in files))
        echo(f"smoke: bundle of {tag} ({image.manifest[:19]}), {total}{_left_out(image, held)}", err=True)
        if part_bytes is not None:
            write_parts(files, place, part_bytes)
            first = f"cat {place.name}/{TAR}.* | tar --extract --directory FOLDER; python3 FOLDER/run.py"
        elif place.suffix == ".tar":
            write_tar(files, place)
            first = f"tar --extract --file {place.name} --directory FOLDER; python3 FOLDER/run.py"
        else:
            write_folder(files, place)
            first = f"python3 {place.name}/run.py"
    first += " --from EARLIER_BUNDLE" if held else ""
    echo(f"on the GPU host, as root or where user namespaces are allowed:\n  {first}", err=True)
    gate = as_typed(f"torchkiln gate {tag} --report report.json")
    echo(f"then copy its report.json back:\n  {gate}", err=True)
    echo(place)


def _left_out(image: ImageOnDisk, held: Mapping[Digest, HeldLayer]) -> str:
    """The part of a message that says which layers of *image* the bundle omits; empty if none."""
    if not held:
        return ""
    total = size(sum(layer.size for layer in held.values()))
    return f"; without {len(held)} of {len(image.layers)} layers, {total}, which the host has"


def _arguments(request: SmokeRequest) -> list[str]:
    checks = request.checks
    words = ["--tier", str(checks.tier), "--limit", str(checks.limit_s), "--shm-size", str(request.shm_size)]
    words += [word for name in checks.only for word in ("--only", name)]
    words += ["--runtime", request.runtime]
    words += ["--nonce", checks.nonce] if checks.nonce else []
    words += ["--gpus", request.gpus] if request.gpus else []
    return words + ["--force"] * request.force
