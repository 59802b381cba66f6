"""`torchkiln smoke`: run the checks inside an image. What is done with reports stands in reports.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchkiln.cli.chosen import Chosen, selection
from torchkiln.cli.console import waiting
from torchkiln.cli.options import cache_root, images_folder, layout_option
from torchkiln.cli.reports import THERE, Forms, demand, end, private_key, publish, read, report_forms, show
from torchkiln.errors import ConfigError

if TYPE_CHECKING:
    from torchkiln.nouns import BuiltImage
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.runtimes.rootfs import Exited, RootfsRuntime


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
@click.option("--key", "key_file", type=THERE, metavar="KEY.pem", help="sign the report, beside --report's")
@click.option("--nonce", metavar="WORD", help="a word of whoever asks for this run; it stands in the report")
@report_forms
def run(
    tag: str | None,
    chosen: Chosen,
    images: Path,
    output: Path,
    runtime: str,
    tier: int,
    only: tuple[str, ...],
    limit: float,
    suite_folder: Path | None,
    key_file: Path | None,
    nonce: str | None,
    report_file: Path | None,
    junit: Path | None,
    markdown: Path | None,
    as_json: bool,
) -> None:
    """Run the checks inside the image TAG; print the verdict. Exit 10: the image failed, 11: the host did."""
    from torchkiln.claims import facts_of
    from torchkiln.lock import load_locked, lock_digest
    from torchkiln.oci.layout import open_layout
    from torchkiln.places import ROOT
    from torchkiln.pytest_wheels import pytest_wheels
    from torchkiln.runtimes.rootfs import RootfsRuntime
    from torchkiln.smoke import smoke as run_suite
    from torchkiln.suite import load_suite

    if bool(tag) == chosen.any:
        raise ConfigError(
            "name one image: its TAG, or --torch and --cuda", hint="see: torchkiln smoke --help"
        )
    if key_file and not report_file:
        raise ConfigError(
            "--key signs what --report writes, and there is none", hint="add: --report report.json"
        )
    demand(nonce, "nonce")
    key = private_key(key_file) if key_file else None  # before the run: it may take long
    suite = load_suite(suite_folder or ROOT / "smoke_tests")
    unknown = sorted(set(only) - {check.id for check in suite.checks})
    if unknown:
        known = ", ".join(check.id for check in suite.checks)
        raise ConfigError.of([f"no check named {name}" for name in unknown], hint=f"there are: {known}")
    ref = tag or chosen.tag("smoke")
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
        when=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        nonce=nonce,
        tier=tier,
        only=only,
        limit_s=limit,
    )
    publish(report, Forms(report=report_file, junit=junit, markdown=markdown, as_json=as_json), key)
    end(report)


smoke.add_command(show)
smoke.add_command(read)


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
