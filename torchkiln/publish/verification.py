"""Verifies a published image, or an image of a layout, and lists all faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.attest.trust import Trust
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.index.lazy import LateIndex
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.policy import Policy
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.validate.documents import LayoutFault
from torchkiln.oci.validate.validate import validate
from torchkiln.plan.load import plan_locked
from torchkiln.publish.rebuild import BuildMeans, rebuilt
from torchkiln.publish.verify import Point, Rules, Verification, of_sboms, verify
from torchkiln.registry import pulling
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import ImageReference
from torchkiln.registry.session import Registry
from torchkiln.sbom.matches import items_of, matches
from torchkiln.sbom.read_image import read_evidence
from torchkiln.smoke.suite import Suite
from torchkiln.store.store import Store
from torchkiln.util.scratch import scratch
from torchkiln.util.sizes import size


@dataclass(frozen=True, kw_only=True, slots=True)
class Depth:
    """How far to look, beside signatures and documents."""

    full: bool = False  # every byte of the layers
    rebuild: bool = False  # build it again from its lock, and compare the digests
    untrusted: bool = False  # build it again though nobody who is trusted signed it

    def demand_trust(self, trust: Trust) -> None:
        """:raises ConfigError: the image's own Python would run, and nobody vouches for it."""
        if self.rebuild and not (trust.looks or self.untrusted):
            raise ConfigError(
                "--rebuild runs the Python of the image, "
                "and no key or identity is given that it is trusted by",
                hint="name it with --key PUBLIC.pem, or add --untrusted: "
                "it then runs in a sandbox all the same",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was found of a published image."""

    reference: ImageReference
    digest: Digest
    trusted: bool  # signatures were looked at
    points: tuple[Point, ...]

    @property
    def bad(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if not point.good)

    @property
    def verified(self) -> bool:
        """An image that nobody vouches for who is trusted is not verified, whatever else fits."""
        return self.trusted and not self.bad

    def demand_good(self) -> None:
        """:raises VerificationFailed: something is wrong; all of it."""
        if self.bad:
            raise VerificationFailed(
                "\n".join(
                    (
                        f"{self.reference} ({self.digest[:19]}) is not what it should be:",
                        *(f"  {one.what}: {one.text}".replace("\n", "\n    ") for one in self.bad),
                    )
                ),
                hint="do not run it; ask who published it, or take another tag: `catalog` lists them",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifySession:
    """What images are held against."""

    policy: Policy
    policy_matrix: Matrix  # in which the policy stands; its aliases count
    suite: Suite
    trust: Trust
    matrix: Matrix  # whose cells are planned and built again
    facts: Facts
    store: Store
    observer: Observer = field(default_factory=Silent)
    say: Callable[[str], None] = lambda _: None

    def run(self, reference: ImageReference, registry: Registry, depth: Depth) -> Verified:
        """Look at the image that *reference* names in *registry*; without a name at `latest`.

        :raises ConfigError: there is no such image, or nobody vouches for what would have to run.
        :raises RegistryError: the registry refuses, or cannot be reached.
        """
        depth.demand_trust(self.trust)
        registry.check()
        reading = RepositoryReader(registry, reference.repository)
        tag = reference.tag or (None if reference.digest else "latest")
        with scratch("verify") as folder:
            found = reading.require(reference.digest or reference.tag or "latest")
            image = pulling.documents(reading, found, folder / "image", reference.tag or "image")
            looked = verify(reading, image, self.trust, self._rules(), tag=tag)
            points = list(looked.points)
            if depth.full:
                points += self._full(reading, image, looked)
            if depth.rebuild:
                points.append(self._rebuilt(reading, image, looked, points))
        return Verified(
            reference=reference, digest=image.manifest, trusted=self.trust.looks, points=tuple(points)
        )

    def _rules(self) -> Rules:
        return Rules(
            policy=self.policy,
            suite=self.suite,
            matrix=self.policy_matrix,
            at=datetime.now(timezone.utc),
            planned=lambda lock: plan_locked(lock, self.matrix, self.facts),
        )

    def _full(self, reading: RepositoryReader, image: ImageOnDisk, looked: Verification) -> Iterator[Point]:
        """Each layer, byte for byte: digest, diff_id, each file in it; and what the SBOM says of them."""
        layout = image.manifest_path.parents[2]
        try:
            pulling.layers(reading, image, self.observer)
            wrong = "\n".join(map(str, validate(layout, image.manifest)))
        except VerificationFailed as error:
            wrong = error.message
        if wrong:
            yield Point(what="layers", good=False, text=wrong)
            return
        total = size(sum(layer.size for layer in image.layers))
        yield Point(
            what="layers", good=True, text=f"{len(image.layers)} layers, {total}, every file looked at"
        )
        evidence = read_evidence(image, Store(layout.with_name("cache")))  # nothing that was read before
        items = items_of(evidence)
        found = of_sboms(looked.there, lambda data, name: matches(data, image.manifest, items, where=name))
        yield replace(found, what="contents")

    def _rebuilt(
        self, reading: RepositoryReader, image: ImageOnDisk, looked: Verification, points: Sequence[Point]
    ) -> Point:
        """Whether it can be built again; only where all other *points* are good."""
        bad = [point.what for point in points if not point.good]
        if bad or looked.origin is None:
            text = f"not built: verification failed before ({', '.join(bad) or 'no provenance'})"
            return Point(what="rebuild", good=False, text=text)
        means = BuildMeans(
            matrix=self.matrix,
            facts=self.facts,
            store=self.store,
            index=LateIndex,
            observer=self.observer,
            say=self.say,
        )
        return rebuilt(reading, image, looked.origin.locked, means)


def verify_layout(folder: Path, ref: str | None) -> tuple[Mapping[str, Digest], Sequence[LayoutFault]]:
    """The images of the layout *folder*, or *ref* alone, by name, and all faults; with faults no image.

    :raises ConfigError: there is no *ref*: a slip of the caller's, not a fault of the layout.
    """
    if ref is not None:
        _demand(folder, ref)
    if faults := validate(folder, ref):
        return {}, faults
    layout = open_layout(folder)
    return (layout.refs() if ref is None else {layout.image(ref).ref: layout.image(ref).manifest}), []


def _demand(folder: Path, ref: str) -> None:
    try:
        layout = open_layout(folder)
        if ref not in layout.refs():
            layout.image(ref)
    except VerificationFailed:
        return  # `validate` says it, with all the rest
