"""`torchkiln publish`: images of a layout, proved, into a registry, with all that goes with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.gate_output import inputs_of, reports_option, show
from torchkiln.cli.shared.options import cache_root, images_folder, layout_option
from torchkiln.cli.shared.registry import history, registry_of
from torchkiln.cli.shared.reports import NamedKey, trust
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.cli.shared.signing_options import sealer_of, sealer_options
from torchkiln.cli.shared.trust_options import policy_option, rules_of
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.inputs import Inputs
from torchkiln.smoke.session import image_and_lock

if TYPE_CHECKING:
    from torchkiln.attest.signers import Sealer
    from torchkiln.attest.statement import Statement
    from torchkiln.attest.trust import Trust
    from torchkiln.gate.gate import ClearedImage
    from torchkiln.model.lock import LockedCell
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.publish.publish import Names, PublishedImage
    from torchkiln.registry.delivery import How
    from torchkiln.registry.reference import Repository
    from torchkiln.registry.session import Registry

T = TypeVar("T")


@click.command("publish", options_metavar="[OPTIONS]")
@selection
@click.option(
    "--to", "target", required=True, metavar="REGISTRY/REPOSITORY", help="registry.example:5000/team/pytorch"
)
@reports_option
@trust
@policy_option
@sealer_options
@click.option(
    "--tag",
    "names",
    multiple=True,
    metavar="NAME",
    help="under this tag alone, not TAG, its dated form and its aliases; may be repeated",
)
@click.option(
    "--dated",
    metavar="DAY",
    help="what the tag that never moves ends in  [default: today in UTC, 20261122]",
)
@click.option(
    "--override", metavar="REASON", help="publish what is not proved; the reason stays with the image"
)
@images_folder
@layout_option()
@click.option(
    "--suite", "suite_folder", type=click.Path(path_type=Path, file_okay=False), help="another suite"
)
@click.option("--mount-from", multiple=True, metavar="REPOSITORY", help="may have layers; same registry")
@click.option("--plain-http", is_flag=True, help="no https, though the registry is not this machine")
@click.option("--jobs", type=click.IntRange(1, 32), default=4, show_default=True, help="uploads side by side")
@click.option("--json", "as_json", is_flag=True, help="one object for each image on stdout")
@click.option("--quiet", "-q", is_flag=True, help="no progress, no summary")
@click.argument("tags", nargs=-1, metavar="[TAG]...")
def publish(
    tags: tuple[str, ...],
    chosen: Chosen,
    target: str,
    report_files: tuple[Path, ...],
    trust_files: tuple[NamedKey, ...],
    policy_file: Path | None,
    key_file: Path | None,
    keyless: bool,
    names: tuple[str, ...],
    dated: str | None,
    override: str | None,
    images: Path,
    output: Path,
    suite_folder: Path | None,
    mount_from: tuple[str, ...],
    plain_http: bool,
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Push the images TAG (or the cells that --torch and --cuda name) of the layout, if the gate clears them.

    Exactly the image that was tested: nothing is built. With it go SBOM, provenance, the smoke reports and
    the gate's decision. Then the tag with the day, which never moves; then TAG and its aliases. What ends
    early leaves nothing wrong behind, and the next run completes it. Of several images each is tried; the
    exit code is the worst. stdout: each reference, by digest. The login is Docker's (`docker login`).
    """
    from torchkiln.attest.trust import Trust, with_sealer
    from torchkiln.registry.reference import parse_repository

    repository = parse_repository(target)
    if chosen.any:
        tags = (*tags, *chosen.tags())
    if not tags:
        raise ConfigError("publish: which image?", hint="name a TAG of the layout, or --torch and --cuda")
    tags = tuple(dict.fromkeys(tags))
    if names and len(tags) > 1:
        raise ConfigError(
            "--tag names one image, and several are to be published", hint="publish them one by one"
        )
    rules = rules_of(policy_file, chosen.matrix_file, chosen.grid()[0])
    inputs = inputs_of(rules, suite_folder, reports=report_files, trust=trust_files)
    sealer = sealer_of(key_file, keyless, demanded=inputs.policy.signed)
    way = _Way(
        inputs=inputs,
        chosen=chosen,
        sealer=sealer,
        trust=with_sealer(Trust(keys=inputs.trusted), sealer),
        repository=repository,
        names=names,
        day=dated or f"{datetime.now(timezone.utc):%Y%m%d}",
        override=override,
        images=images,
        output=output,
        mount_from=mount_from,
        jobs=jobs,
        quiet=quiet,
    )
    failures: list[KilnError] = []
    ready = _each(tags, way.ready, failures, alone=len(tags) == 1)
    if ready:  # what the gate refuses is told before any registry is asked
        with registry_of(repository, plain_http) as registry:
            registry.check()

            def send(ref: str) -> None:
                published = way.publish(ready[ref], registry)
                click.echo(json.dumps(_told(ref, published)) if as_json else published.pushed.reference)

            _each(ready, send, failures, alone=len(tags) == 1)
    if failures:
        raise console.worst(failures, len(tags), "images")


def _each(
    refs: Iterable[str], do: Callable[[str], T], failures: list[KilnError], *, alone: bool
) -> dict[str, T]:
    """What *do* gives for each; a failure is told and noted, and keeps no other back."""
    found: dict[str, T] = {}
    for ref in refs:
        try:
            found[ref] = do(ref)
        except KilnError as error:
            if alone:
                raise
            console.say(f"{ref}: {error.message}" + (f"\n  {error.hint}" if error.hint else ""))
            failures.append(error)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ready:
    """An image that the gate cleared, with all that is to go with it."""

    ref: str
    cleared: ClearedImage
    image: ImageOnDisk
    statements: Sequence[Statement]
    names: Names


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """How each image goes."""

    inputs: Inputs
    chosen: Chosen
    sealer: Sealer
    trust: Trust
    repository: Repository
    names: tuple[str, ...]
    day: str
    override: str | None
    images: Path
    output: Path
    mount_from: tuple[str, ...]
    jobs: int
    quiet: bool

    def ready(self, ref: str) -> _Ready:
        """All that can be decided without the registry: names, the gate, what is said of the image."""
        image, tag, locked = image_and_lock(ref, self.output, self.images)
        _demand_same(ref, tag, locked)
        names = self._names(tag, image, locked)
        cleared = self._cleared(image, locked)
        statements = _statements(image, locked, self.images, self.repository.name)
        return _Ready(ref=ref, cleared=cleared, image=image, statements=statements, names=names)

    def publish(self, ready: _Ready, registry: Registry) -> PublishedImage:
        """It, and what goes with it."""
        from torchkiln.publish.publish import ReadyImage, publish
        from torchkiln.registry.push import PushOptions

        with console.progress(quiet=self.quiet) as observer:
            published = publish(
                ReadyImage(
                    cleared=ready.cleared,
                    image=ready.image,
                    statements=tuple(ready.statements),
                    names=ready.names,
                ),
                registry,
                self.repository,
                self.sealer,
                self.trust,
                PushOptions(watcher=observer, history=history(), mount_from=self.mount_from, jobs=self.jobs),
                console.say,
            )
        if not self.quiet:
            console.say(_summary(ready.ref, published))
        return published

    def _cleared(self, image: ImageOnDisk, locked: LockedCell) -> ClearedImage:
        from torchkiln.gate.gate import clear, override

        judged = self.inputs.judge(image, locked)
        if not self.quiet:
            show(judged)
        if self.override is None:
            return clear(judged)
        cleared = override(judged, self.override)
        told = "\n".join(f"  {what}: {why}" for what, why in judged.missing) or "  nothing is missing"
        console.say(f"publishing in spite of the gate: {cleared.override}\n{told}")
        return cleared

    def _names(self, tag: str, image: ImageOnDisk, locked: LockedCell) -> Names:
        """As they follow from the lock; of those that were asked for, none that is another image's."""
        from torchkiln.matrix.tags import aliases_of, dated, misfit
        from torchkiln.model.layer_format import tag_suffix
        from torchkiln.publish.publish import Names, demand_movable

        suffix = tag_suffix(image.layer_format)
        if self.names:
            found = Names(dated=None, moving=self.names)
        else:
            names = (tag, *aliases_of(locked.resolution, *self.chosen.grid()))
            moving = tuple(f"{name}{suffix}" for name in names)
            found = Names(dated=dated(f"{tag}{suffix}", self.day), moving=moving)
        demand_movable(found)
        for name in found.moving:
            if why := misfit(name, f"{tag}{suffix}", self.chosen.grid()[0]):
                raise ConfigError(
                    f"{name} is another image's name: {why}",
                    hint="choose one that reads as no other image's: --tag trial",
                )
        return found


def _demand_same(ref: str, tag: str, locked: LockedCell) -> None:
    """That the image is what it was asked for by, and its lock is of the same cell.

    :raises ConfigError: the layout, or the folder of locks, has another one under that name.
    """
    from torchkiln.matrix.tags import parse_name, tag_of
    from torchkiln.model.layer_format import split_format

    asked, _ = split_format(ref)
    if parse_name(asked) and asked != tag:
        raise ConfigError(f"{ref}: the layout has {tag} under this name", hint="build the image again")
    if (cell := tag_of(locked.resolution)) != tag:
        raise ConfigError(f"{tag}: its lock is of {cell}", hint="git checkout -- images; or lock it again")


def _statements(image: ImageOnDisk, locked: LockedCell, images: Path, name: str) -> Sequence[Statement]:
    """What is said of it beside what the gate says."""
    from torchkiln.attest.provenance import provenance
    from torchkiln.publish.source import source_of
    from torchkiln.sbom.image import bill_of_image
    from torchkiln.sbom.statements import sboms
    from torchkiln.store.store import Store

    store = Store(cache_root(), on_wait=console.waiting)
    bill = bill_of_image(image, locked, images, store, name=name)
    made = provenance(locked, image.manifest, source=source_of(), builder=_builder(os.environ))
    return [made, *sboms(bill)]


def _builder(environ: Mapping[str, str]) -> str:
    """Who builds: the workflow of the CI job that this is, else whoever runs torchkiln."""
    server, workflow = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_WORKFLOW_REF")
    return f"{server}/{workflow}" if server and workflow else "urn:torchkiln:builder"


def _summary(ref: str, published: PublishedImage) -> str:
    pushed = published.pushed
    ways: tuple[How, ...] = ("sent", "mounted", "there")
    how = ", ".join(f"{pushed.count(way)} {way}" for way in ways)
    return (
        f"{ref}: {len(pushed.blobs)} blobs ({how}), {console.size(pushed.bytes_sent)} in "
        f"{pushed.seconds:.1f} s; {pushed.repository}: {', '.join(published.tags)}; "
        f"{len(published.attached)} statements go with it"
    )


def _told(ref: str, published: PublishedImage) -> dict[str, Any]:
    """The contract of `publish --json`."""
    pushed = published.pushed
    return {
        "image": ref,
        "reference": pushed.reference,
        "digest": pushed.digest,
        "repository": str(pushed.repository),
        "tags": list(published.tags),
        "bytes_sent": pushed.bytes_sent,
        "sent": pushed.count("sent"),
        "mounted": pushed.count("mounted"),
        "there": pushed.count("there"),
        "blobs": [
            {
                "digest": blob.digest,
                "size": blob.size,
                "how": blob.how,
                "sent": blob.sent,
                "from": blob.source,
            }
            for blob in pushed.blobs
        ],
        "statements": [{"kind": kind, "digest": digest} for kind, digest in published.attached],
        "seconds": round(pushed.seconds, 3),
        "override": published.override,
    }
