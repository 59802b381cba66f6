"""`torchkiln smoke`: run the checks inside an image, and look at what they saw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchkiln.cli.console import waiting
from torchkiln.cli.options import cache_root, images_folder, selection
from torchkiln.errors import ConfigError, KilnError, SmokeFailed, SmokeInconclusive

if TYPE_CHECKING:
    from torchkiln.nouns import BuiltImage, SmokeReport
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.runtimes.rootfs import Exited, RootfsRuntime


_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


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
@click.option(
    "--output",
    type=_FOLDER,
    default=Path("dist"),
    show_default=True,
    help="the OCI layout that holds the image",
)
@click.option("--runtime", type=click.Choice(["rootfs"]), default="rootfs", show_default=True)
@click.option(
    "--tier", type=click.IntRange(0, 3), default=0, show_default=True, help="this tier and those below"
)
@click.option("--only", multiple=True, metavar="ID", help="only this check (several times)")
@click.option(
    "--limit", type=float, default=1800.0, show_default=True, help="seconds for all checks together"
)
@click.option(
    "--suite", "suite_folder", type=click.Path(path_type=Path, file_okay=False), help="another suite"
)
@click.option(
    "--report", "report_file", type=click.Path(path_type=Path, dir_okay=False), help="write report.json"
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="write JUnit XML")
@click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), help="write a summary for a CI page"
)
@click.option("--json", "as_json", is_flag=True, help="the whole report on stdout")
def run(
    tag: str | None,
    torch: tuple[str, ...],
    cuda: tuple[str, ...],
    flavor: tuple[str, ...],
    os_names: tuple[str, ...],
    every: bool,
    matrix_file: Path,
    images: Path,
    output: Path,
    runtime: str,
    tier: int,
    only: tuple[str, ...],
    limit: float,
    suite_folder: Path | None,
    report_file: Path | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run the checks inside the image TAG; print the verdict. Exit 10: the image failed, 11: the host did."""
    from torchkiln import report as forms
    from torchkiln.claims import facts_of
    from torchkiln.files import write_atomic
    from torchkiln.lock import load_locked, lock_digest
    from torchkiln.oci.layout import open_layout
    from torchkiln.places import ROOT
    from torchkiln.pytest_wheels import pytest_wheels
    from torchkiln.runtimes.rootfs import RootfsRuntime
    from torchkiln.smoke import smoke as run_suite
    from torchkiln.suite import load_suite

    selected = any((torch, cuda, flavor, os_names, every))
    if bool(tag) == selected:
        raise ConfigError(
            "name one image: its TAG, or --torch and --cuda", hint="see: torchkiln smoke --help"
        )
    suite = load_suite(suite_folder or ROOT / "smoke_tests")
    unknown = sorted(set(only) - {check.id for check in suite.checks})
    if unknown:
        known = ", ".join(check.id for check in suite.checks)
        raise ConfigError.of([f"no check named {name}" for name in unknown], hint=f"there are: {known}")
    ref = tag or _tag_of_selection(torch, cuda, flavor, os_names, matrix_file)
    found = open_layout(output).image(ref)
    labels = found.config.get("config", {}).get("Labels") or {}
    own_tag = labels.get("org.opencontainers.image.version", ref)
    locked = load_locked(images, own_tag)
    facts = facts_of(locked, labels, tag=own_tag, lock_digest=lock_digest(locked), manifest=found.manifest)
    wheels = pytest_wheels(suite.folder / "requirements.txt", cache_root())
    click.echo(f"smoke: unpacking {own_tag} ({found.manifest[:19]}) where it is not", err=True)
    inside = _in_root(found, RootfsRuntime())
    click.echo(f"smoke: checks of tier {tier} and below, runtime {runtime}", err=True)
    report = run_suite(
        _built(found, own_tag, output),
        inside,
        suite,
        facts,
        wheels=wheels,
        tier=tier,
        only=only,
        limit_s=limit,
    )
    for path, form in ((report_file, forms.to_json), (junit, forms.to_junit)):
        if path:
            write_atomic(path, form(report))
    if markdown:
        write_atomic(markdown, forms.to_markdown(report).encode())
    for line in forms.to_lines(report):
        click.echo(line, err=True)
    click.echo(forms.to_json(report).decode() if as_json else report.verdict, nl=not as_json)
    _end(report)


@smoke.command("show")
@click.argument("report_file", metavar="REPORT", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--json", "as_json", is_flag=True, help="verdict, stated verdict and faults as JSON")
def show(report_file: Path, as_json: bool) -> None:
    """Print a report, and compute its verdict again from the raw values in it."""
    from dataclasses import replace

    from torchkiln import report as forms
    from torchkiln.verdict import faults, verdict

    report = forms.read(report_file)
    again = verdict(report.findings)
    if as_json:
        told = {finding.id: faults(finding) for finding in report.findings if faults(finding)}
        click.echo(json.dumps({"verdict": again, "stated": report.verdict, "faults": told}))
    else:
        for line in forms.to_lines(report):
            click.echo(line)
        click.echo(f"\n{again}")
    if again != report.verdict:
        raise SmokeFailed(
            f"{report_file.name} states {report.verdict!r}, and its own values give {again!r}",
            hint="the report was changed, or made by another version: run the checks again",
        )
    _end(replace(report, verdict=again))


@dataclass(frozen=True, slots=True)
class _InRoot:
    """An unpacked image as smoke() wants it."""

    root: Path
    env: Mapping[str, str]
    runtime: RootfsRuntime
    name: str = "rootfs"
    python: str = field(default="")

    def run(self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float) -> Exited:
        from torchkiln.runtimes.rootfs import Bind

        bound = [Bind(source=source.resolve(), target=target) for target, source in binds.items()]
        return self.runtime.run(self.root, argv, env=self.env, binds=bound, timeout_s=timeout_s)


def _in_root(found: ImageOnDisk, runtime: RootfsRuntime) -> _InRoot:
    """The image unpacked in the cache, with the environment of its config."""
    from torchkiln.oci.unpack import LayerBlob, unpacked_root
    from torchkiln.recipe import PREFIX
    from torchkiln.store import Store

    blobs = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in found.layers]
    env: Mapping[str, Any] = dict(
        line.split("=", 1) for line in found.config.get("config", {}).get("Env") or ()
    )
    return _InRoot(
        root=unpacked_root(found.manifest, blobs, Store(cache_root(), on_wait=waiting)),
        env=env,
        runtime=runtime,
        python=f"{PREFIX}/bin/python",
    )


def _built(found: ImageOnDisk, tag: str, output: Path) -> BuiltImage:
    from torchkiln.nouns import BuiltImage

    return BuiltImage(
        tag=tag,
        manifest=found.manifest,
        config=found.config_digest,
        layout=str(output),
        ref=found.ref,
        layers=(),
    )


def _tag_of_selection(
    torch: tuple[str, ...],
    cuda: tuple[str, ...],
    flavor: tuple[str, ...],
    os_names: tuple[str, ...],
    matrix_file: Path,
) -> str:
    from torchkiln import facts, matrix
    from torchkiln.resolve import require_buildable, resolve
    from torchkiln.select import Selection, select
    from torchkiln.tags import tag_of

    known = facts.load()
    grid = matrix.read(matrix_file, known)
    cells = select(
        Selection(torch=torch, cuda=cuda, flavor=flavor, os=os_names, every=False), grid, must_name=True
    )
    if len(cells) != 1:
        raise ConfigError(f"{len(cells)} cells are selected, and one image is tested at a time")
    resolution = resolve(cells[0], grid, known)
    require_buildable(resolution)
    return tag_of(resolution)


def _end(report: SmokeReport) -> None:
    """The exit code of the verdict."""
    error: type[KilnError] | None = {"fail": SmokeFailed, "inconclusive": SmokeInconclusive}.get(
        report.verdict
    )
    if error:
        told = ", ".join(
            finding.id for finding in report.findings if finding.outcome in ("failed", "skipped")
        )
        raise error(f"{report.tag}: {report.verdict}: {told or 'nothing was proved'}")
