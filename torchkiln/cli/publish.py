"""`torchkiln publish`: pushes tested images to a registry, with SBOM, provenance and reports."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from torchkiln.cli.shared import console, unproven
from torchkiln.cli.shared.gate_output import Evidence, evidence_options, show, with_key
from torchkiln.cli.shared.image_names import named_images, one_layout
from torchkiln.cli.shared.options import Upload, images_folder, layout_option, upload_options
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.targets import names_argument
from torchkiln.cli.shared.terminal import print_error
from torchkiln.cli.shared.trust_options import Signing, signer_of, signing_options
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.gate import ClearedImage, GateResult
from torchkiln.model.progress import Observer
from torchkiln.projects.kind import KINDS
from torchkiln.publishing.publish import PublishedImage
from torchkiln.publishing.session import PublishListener, PublishSession, PublishTarget
from torchkiln.registry.reference import parse_repository


@click.command("publish", options_metavar="[OPTIONS]")
@selection
@click.option(
    "--to",
    "target",
    required=True,
    metavar="REGISTRY/REPOSITORY",
    help="where to publish: registry.example:5000/team/pytorch",
)
@evidence_options(None)  # own and other publishers' statements count, too
@signing_options
@click.option(
    "--tag",
    "only_tags",
    multiple=True,
    metavar="NAME",
    help="publish only under this tag, not under TAG, its dated form and its aliases; repeatable",
)
@click.option(
    "--dated", metavar="DAY", help="the suffix of the tag that never moves  [default: today in UTC, 20261122]"
)
@click.option(
    "--override", metavar="REASON", help="publish although the gate refuses; REASON is stored with the image"
)
@images_folder
@layout_option()
@click.option(
    "--mount-from",
    multiple=True,
    metavar="REPOSITORY",
    help="mount layers from this repository of the same registry",
)
@upload_options
@names_argument
def publish(
    names: tuple[str, ...],
    chosen: CellOptions,
    target: str,
    evidence: Evidence,
    signing: Signing,
    only_tags: tuple[str, ...],
    dated: str | None,
    override: str | None,
    images: Path,
    output: Path,
    mount_from: tuple[str, ...],
    upload: Upload,
) -> None:
    """Push the images TAG of the layout, or those of the selected cells, if the gate allows it.

    Nothing is built: the image is the one that was tested. SBOM, provenance, the smoke reports and the gate's
    decision are pushed with it; then the dated tag, which never moves, TAG and its aliases. After an
    interruption the next run continues. If one of several images fails, the others are still published, and
    the exit code is the highest. Prints each reference with its digest. Log in with `docker login`.
    """
    repository = parse_repository(target)
    found = named_images(names, output, chosen)
    if not found:
        raise ConfigError("publish: no image given", hint="pass a TAG of the layout, or --torch and --cuda")
    layout, tags = one_layout(found, "publish")
    matrix, facts = chosen.grid()
    inputs = evidence.inputs(chosen)
    signer = signer_of(signing, demanded=inputs.policy.signed)
    inputs = with_key(inputs, signing.key_file, signer)
    session = PublishSession(
        layout=layout,
        images=images,
        matrix=matrix,
        facts=facts,
        store=console.open_cache(),
        inputs=inputs,
        signer=signer,
        environ=os.environ,
        listener=_PublishOutput(say=console.say, quiet=upload.quiet, as_json=upload.as_json),
        kinds=KINDS,
    )
    to = PublishTarget(
        repository=repository,
        day=dated or f"{datetime.now(timezone.utc):%Y%m%d}",
        names=only_tags,
        override=override,
        licence_confirmed=upload.licence_confirmed,
        mount_from=mount_from,
        plain_http=upload.plain_http,
        jobs=upload.jobs,
    )
    if failures := session.run(tags, to):
        raise console.worst(failures, len(tags), "images")


@dataclass(frozen=True, kw_only=True, slots=True)
class _PublishOutput(PublishListener):
    """Prints the events of the session: references on stdout, the rest on stderr."""

    quiet: bool
    as_json: bool

    def checked(self, result: GateResult) -> None:
        if not self.quiet:
            show(result)

    def overridden(self, cleared: ClearedImage) -> None:
        missing = cleared.result.missing
        lines = "\n".join(f"  {what}: {why}" for what, why in missing) or "  nothing is missing"
        console.say(f"warning: publishing with --override: {cleared.override}\n{lines}")

    def progress(self) -> AbstractContextManager[Observer]:
        return console.progress(quiet=self.quiet)

    def published(self, ref: str, image: PublishedImage) -> None:
        if not self.quiet:
            pushed = unproven.summary(ref, image.pushed, image.tags)
            console.say(f"{pushed}; {len(image.attached)} statements attached")
        click.echo(json.dumps(_json(ref, image)) if self.as_json else image.pushed.reference)

    def failed(self, ref: str, error: KilnError) -> None:
        print_error(f"{ref}: {error.message}", error.hint)


def _json(ref: str, published: PublishedImage) -> dict[str, Any]:
    return unproven.pushed_to_json(ref, published.pushed, published.tags) | {
        "statements": [{"kind": kind, "digest": digest} for kind, digest in published.attached],
        "seconds": round(published.pushed.seconds, 3),
        "override": published.override,
    }
