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

from torchkiln.attest.keys import NamedKey
from torchkiln.cli.shared import console
from torchkiln.cli.shared.gate_output import inputs_of, reports_option, show
from torchkiln.cli.shared.options import (
    images_folder,
    layout_option,
    plain_http_option,
    quiet_option,
    suite_option,
)
from torchkiln.cli.shared.reports import trust
from torchkiln.cli.shared.selection import CellOptions, selection
from torchkiln.cli.shared.signing_options import signer_of, signing_options
from torchkiln.cli.shared.trust_options import active_policy, policy_option
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.gate import ClearedImage, GateResult
from torchkiln.model.progress import Observer
from torchkiln.publish.publish import PublishedImage
from torchkiln.publish.session import PublishSession, PublishTarget
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
@reports_option
@trust
@policy_option
@signing_options
@click.option(
    "--tag",
    "names",
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
@suite_option
@click.option(
    "--mount-from", multiple=True, metavar="REPOSITORY", help="mount layers from here; the same registry"
)
@plain_http_option
@click.option("--jobs", type=click.IntRange(1, 32), default=4, show_default=True, help="parallel uploads")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object for each image")
@quiet_option
@click.argument("tags", nargs=-1, metavar="[TAG]...")
def publish(
    tags: tuple[str, ...],
    chosen: CellOptions,
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
    """Push the images TAG of the layout, or those of the selected cells, if the gate allows it.

    Nothing is built: the image is the one that was tested. SBOM, provenance, the smoke reports and the gate's
    decision are pushed with it; then the dated tag, which never moves, TAG and its aliases. After an
    interruption the next run continues. If one of several images fails, the others are still published, and
    the exit code is the highest. Prints each reference with its digest. Log in with `docker login`.
    """
    repository = parse_repository(target)
    if chosen.any:
        tags = (*tags, *chosen.tags())
    if not tags:
        raise ConfigError(
            "publish: no image is named", hint="name a TAG of the layout, or --torch and --cuda"
        )
    tags = tuple(dict.fromkeys(tags))
    matrix, facts = chosen.grid()
    active = active_policy(policy_file, chosen.matrix_file, matrix)
    inputs = inputs_of(active, suite_folder, reports=report_files, trust=trust_files)
    signer = signer_of(key_file, keyless, demanded=inputs.policy.signed)
    session = PublishSession(
        layout=output,
        images=images,
        matrix=matrix,
        facts=facts,
        store=console.open_cache(),
        inputs=inputs,
        signer=signer,
        environ=os.environ,
        listener=_PublishOutput(quiet=quiet, as_json=as_json),
    )
    to = PublishTarget(
        repository=repository,
        day=dated or f"{datetime.now(timezone.utc):%Y%m%d}",
        names=names,
        override=override,
        mount_from=mount_from,
        plain_http=plain_http,
        jobs=jobs,
    )
    if failures := session.run(tags, to):
        raise console.worst(failures, len(tags), "images")


@dataclass(frozen=True, kw_only=True, slots=True)
class _PublishOutput:
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

    def note(self, text: str) -> None:
        console.say(text)

    def published(self, ref: str, image: PublishedImage) -> None:
        if not self.quiet:
            console.say(_summary(ref, image))
        click.echo(json.dumps(_json(ref, image)) if self.as_json else image.pushed.reference)

    def failed(self, ref: str, error: KilnError) -> None:
        console.say(f"{ref}: {error.message}" + (f"\n  {error.hint}" if error.hint else ""))


def _summary(ref: str, published: PublishedImage) -> str:
    pushed = published.pushed
    return (
        f"{ref}: {len(pushed.blobs)} blobs ({pushed.count('sent')} sent, {pushed.count('mounted')} mounted, "
        f"{pushed.count('there')} there already), {console.size(pushed.bytes_sent)} in "
        f"{pushed.seconds:.1f} s; {pushed.repository}: {', '.join(published.tags)}; "
        f"{len(published.attached)} statements attached"
    )


def _json(ref: str, published: PublishedImage) -> dict[str, Any]:
    """The object that `publish --json` prints."""
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
