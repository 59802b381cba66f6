"""`torchkiln publish`: images of a layout, proved, into a registry, with all that goes with them."""

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
from torchkiln.cli.shared.options import images_folder, layout_option
from torchkiln.cli.shared.reports import trust
from torchkiln.cli.shared.selection import Chosen, selection
from torchkiln.cli.shared.signing_options import sealer_of, sealer_options
from torchkiln.cli.shared.trust_options import policy_option, rules_of
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.gate import ClearedImage, Judgement
from torchkiln.model.progress import Observer
from torchkiln.publish.publish import PublishedImage
from torchkiln.publish.session import PublishSession, Target
from torchkiln.registry.delivery import Outcome
from torchkiln.registry.reference import parse_repository
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store


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
    repository = parse_repository(target)
    if chosen.any:
        tags = (*tags, *chosen.tags())
    if not tags:
        raise ConfigError("publish: which image?", hint="name a TAG of the layout, or --torch and --cuda")
    tags = tuple(dict.fromkeys(tags))
    matrix, facts = chosen.grid()
    rules = rules_of(policy_file, chosen.matrix_file, matrix)
    inputs = inputs_of(rules, suite_folder, reports=report_files, trust=trust_files)
    sealer = sealer_of(key_file, keyless, demanded=inputs.policy.signed)
    session = PublishSession(
        layout=output,
        images=images,
        matrix=matrix,
        facts=facts,
        store=Store(cache_root(), on_wait=console.waiting),
        inputs=inputs,
        sealer=sealer,
        environ=os.environ,
        listener=_Lines(quiet=quiet, as_json=as_json),
    )
    to = Target(
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
class _Lines:
    """What a person and a script hear of it."""

    quiet: bool
    as_json: bool

    def judged(self, judged: Judgement) -> None:
        if not self.quiet:
            show(judged)

    def overridden(self, cleared: ClearedImage) -> None:
        missing = cleared.judged.missing
        told = "\n".join(f"  {what}: {why}" for what, why in missing) or "  nothing is missing"
        console.say(f"publishing in spite of the gate: {cleared.override}\n{told}")

    def progress(self) -> AbstractContextManager[Observer]:
        return console.progress(quiet=self.quiet)

    def note(self, text: str) -> None:
        console.say(text)

    def published(self, ref: str, image: PublishedImage) -> None:
        if not self.quiet:
            console.say(_summary(ref, image))
        click.echo(json.dumps(_told(ref, image)) if self.as_json else image.pushed.reference)

    def failed(self, ref: str, error: KilnError) -> None:
        console.say(f"{ref}: {error.message}" + (f"\n  {error.hint}" if error.hint else ""))


def _summary(ref: str, published: PublishedImage) -> str:
    pushed = published.pushed
    ways: tuple[Outcome, ...] = ("sent", "mounted", "there")
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
