"""`verify REGISTRY/REPOSITORY:TAG`: what is proved of a published image, from the registry alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import cache_root, here_or_checkout
from torchkiln.cli.shared.registry import registry_of
from torchkiln.cli.shared.trust_options import rules_of, trust_of
from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.util.scratch import scratch

if TYPE_CHECKING:
    from torchkiln.cli.shared.reports import NamedKey
    from torchkiln.matrix.facts import Facts
    from torchkiln.matrix.matrix import Matrix
    from torchkiln.model.progress import Observer
    from torchkiln.oci.layout import ImageOnDisk
    from torchkiln.publish.verify import Point, Verification
    from torchkiln.registry.reading import Reading
    from torchkiln.registry.reference import Reference


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What the user wants looked at."""

    policy_file: Path | None
    suite_folder: Path | None
    keys: tuple[NamedKey, ...]
    identity: str | None
    issuer: str
    full: bool
    rebuild: bool
    untrusted: bool
    plain_http: bool
    as_json: bool
    quiet: bool


def verify_published(reference: Reference, wish: Wish) -> None:
    """Look at it, print what was found.

    :raises VerificationFailed: something is wrong; all of it.
    """
    from torchkiln.matrix import facts, matrix
    from torchkiln.plan.load import plan_locked
    from torchkiln.publish.verify import Rules, verify
    from torchkiln.registry import pulling
    from torchkiln.registry.reading import Reading
    from torchkiln.smoke.suite import load_suite

    known = facts.load()
    matrix_file = wish.policy_file or here_or_checkout("matrix.yaml")
    grid = matrix.read(matrix_file, known)
    named = rules_of(wish.policy_file, matrix_file, grid)
    trust = trust_of(named, wish.keys, wish.identity, wish.issuer)
    rules = Rules(
        policy=named.policy,
        suite=load_suite(wish.suite_folder),
        matrix=named.matrix,
        at=datetime.now(timezone.utc),
        planned=lambda lock: plan_locked(lock, grid, known),
    )
    if wish.rebuild and not (trust.looks or wish.untrusted):
        raise ConfigError(
            "--rebuild runs the Python of the image, and no key or identity is given that it is trusted by",
            hint="name it with --key PUBLIC.pem, or add --untrusted: it then runs in a sandbox all the same",
        )
    repository = reference.repository
    with (
        registry_of(repository, wish.plain_http) as registry,
        scratch("verify") as folder,
        console.progress(quiet=wish.quiet) as observer,
    ):
        registry.check()
        reading = Reading(registry, repository)
        found = reading.demand(reference.digest or reference.tag or "latest")
        image = pulling.documents(reading, found, folder / "image", reference.tag or "image")
        tag = reference.tag or (None if reference.digest else "latest")
        looked = verify(reading, image, trust, rules, tag=tag)
        points = list(looked.points)
        if wish.full:
            points += _full(reading, image, looked, observer)
        if wish.rebuild:
            points.append(_rebuilt(reading, image, looked, points, (grid, known), observer))
    _tell(reference, image, points, wish, trusted=trust.looks)


def _full(reading: Reading, image: ImageOnDisk, looked: Verification, observer: Observer) -> Iterator[Point]:
    """Each layer, byte for byte: digest, diff_id, each file in it; and what the SBOM says of them."""
    from torchkiln.oci.validate.validate import validate
    from torchkiln.publish.verify import Point, of_sboms
    from torchkiln.registry import pulling
    from torchkiln.sbom.matches import items_of, matches
    from torchkiln.sbom.read_image import read_evidence
    from torchkiln.store.store import Store

    layout = image.manifest_path.parents[2]
    try:
        pulling.layers(reading, image, observer)
        faults = validate(layout, image.manifest)
        told = "\n".join(map(str, faults))
    except VerificationFailed as error:
        told = error.message
    if told:
        yield Point(what="layers", good=False, text=told)
        return
    size = console.size(sum(layer.size for layer in image.layers))
    yield Point(what="layers", good=True, text=f"{len(image.layers)} layers, {size}, every file looked at")
    items = items_of(read_evidence(image, Store(layout.with_name("cache"))))  # nothing that was read before
    found = of_sboms(looked.there, lambda data, name: matches(data, image.manifest, items, where=name))
    yield replace(found, what="contents")


def _rebuilt(
    reading: Reading,
    image: ImageOnDisk,
    looked: Verification,
    points: Sequence[Point],
    known: tuple[Matrix, Facts],
    observer: Observer,
) -> Point:
    """Whether it can be built again; only where all other *points* are good."""
    from torchkiln.index.lazy import LateIndex
    from torchkiln.publish.rebuild import BuildMeans, rebuilt
    from torchkiln.publish.verify import Point
    from torchkiln.store.store import Store

    bad = [point.what for point in points if not point.good]
    if bad or looked.origin is None:
        text = f"not built: verification failed before ({', '.join(bad) or 'no provenance'})"
        return Point(what="rebuild", good=False, text=text)
    return rebuilt(
        reading,
        image,
        looked.origin.locked,
        BuildMeans(
            matrix=known[0],
            facts=known[1],
            store=Store(cache_root(), on_wait=console.waiting),
            index=LateIndex,
            observer=observer,
            say=console.say,
        ),
    )


def _tell(
    reference: Reference, image: ImageOnDisk, points: list[Point], wish: Wish, *, trusted: bool
) -> None:
    """What was found; an image that nobody vouches for who is trusted is not verified, whatever else fits."""
    bad = [point for point in points if not point.good]
    if wish.as_json:
        told = {
            "reference": str(reference),
            "digest": image.manifest,
            "verified": trusted and not bad,
            "trusted": trusted,
            "points": [{"what": one.what, "good": one.good, "text": one.text} for one in points],
        }
        click.echo(json.dumps(told, indent=2))
    elif not wish.quiet:
        for point in points:
            mark = "ok" if point.good else "BAD"
            lines = printable(point.text).splitlines() or [""]
            for number, line in enumerate(lines):
                click.echo(
                    f"{mark if number == 0 else '':<4}{point.what if number == 0 else '':<12}{line}", err=True
                )
    if bad:
        raise VerificationFailed(
            "\n".join(
                (
                    f"{reference} ({image.manifest[:19]}) is not what it should be:",
                    *(f"  {one.what}: {one.text}".replace("\n", "\n    ") for one in bad),
                )
            ),
            hint="do not run it; ask who published it, or take another tag: `catalog` lists them",
        )
    if not wish.as_json:
        click.echo(f"{image.manifest} {reference}")


def published_reference(target: str) -> Reference:
    """*target* as a reference in a registry.

    :raises ConfigError: it is none, and no folder either.
    """
    from torchkiln.registry.reference import parse_reference

    try:
        return parse_reference(target)
    except ConfigError as error:
        raise ConfigError(
            f"{target}: no such folder, and no reference in a registry ({error.message})",
            hint="verify takes the layout that `build` prints, DIR[:REF], or REGISTRY/REPOSITORY:TAG",
        ) from None
