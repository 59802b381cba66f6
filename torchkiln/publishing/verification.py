"""Verifies a published image, or an image of a layout, and lists all faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.attest.signers import Trust
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.index.lazy import LazyIndex
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.policy import Policy
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.oci.validate.documents import LayoutFault
from torchkiln.oci.validate.validate import validate
from torchkiln.plan.load import plan_locked
from torchkiln.publishing.attached import Point, of_sbom
from torchkiln.publishing.rebuild import RebuildContext, rebuild
from torchkiln.publishing.verify import Verification, VerifiedKind, VerifyCriteria, verify
from torchkiln.registry.reading import RepositoryReader, fetch_documents, fetch_layers
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
    """What to verify in addition to signatures and documents."""

    full: bool = False  # every byte of the layers
    rebuild: bool = False  # rebuild it from its lock, and compare the digests
    untrusted: bool = False  # rebuild also without a trusted key or identity

    def demand_trust(self, trust: Trust) -> None:
        """:raises ConfigError: Python from the image would run, and no key or identity is trusted."""
        if self.rebuild and not (trust.verifies or self.untrusted):
            raise ConfigError(
                "--rebuild runs Python from the image, and no trusted key or identity is given",
                hint="add --key publisher=PUBLIC.pem, or --untrusted; in both cases it runs in a sandbox",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    reference: ImageReference
    digest: Digest
    trusted: bool  # signatures were verified
    points: tuple[Point, ...]
    ignored: int = 0  # number of statements without a trusted signature

    @property
    def bad(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if not point.good)

    @property
    def verified(self) -> bool:
        """Whether all points are good; False if no key or identity is trusted."""
        return self.trusted and not self.bad

    def demand_good(self) -> None:
        """:raises VerificationFailed: some points are bad; the message lists all of them."""
        if self.bad:
            raise VerificationFailed(
                "\n".join(
                    (
                        f"{self.reference} ({self.digest[:19]}) failed verification:",
                        *(f"  {point.what}: {point.text}".replace("\n", "\n    ") for point in self.bad),
                    )
                ),
                hint=self._hint(),
            )

    def _hint(self) -> str:
        if self.ignored:
            return (
                f"statements that no trusted key signed: {self.ignored}; if a laboratory that you trust made "
                "them, add --trust laboratory=PUBLIC.pem, otherwise do not run the image"
            )
        return "do not run it; report it to its publisher, or use another tag: see `torchkiln ls`"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifySession:
    policy: Policy
    policy_matrix: Matrix  # the matrix.yaml that has the policy; its aliases are checked
    suite: Suite
    trust: Trust
    matrix: Matrix  # for plans and rebuilds
    facts: Facts
    store: Store
    kinds: tuple[VerifiedKind, ...]
    observer: Observer = field(default_factory=Silent)
    say: Callable[[str], None] = lambda _: None

    def run(self, reference: ImageReference, registry: Registry, depth: Depth) -> Verified:
        """Verify the image *reference* in *registry*; the default tag is `latest`.

        :raises ConfigError: there is no such image, or a rebuild requires a trusted key or identity.
        :raises RegistryError: a request failed.
        """
        depth.demand_trust(self.trust)
        registry.check()
        reading = RepositoryReader(registry, reference.repository)
        tag = reference.tag or (None if reference.digest else "latest")
        with scratch("verify") as folder:
            found = reading.require(reference.digest or reference.tag or "latest")
            image = fetch_documents(reading, found, folder / "image", reference.tag or "image")
            result = verify(reading, image, self.trust, self._criteria(), tag=tag)
            points = list(result.points)
            if depth.full:
                points += self._full(reading, image, result)
            if kind := self._criteria().kind_of(image):
                whole = depth.full and all(point.good for point in points)
                store = Store(folder / "cache") if whole else None
                points += kind.parent_points(reading, image, folder / "below", self._verify(reading), store)
            if depth.rebuild:
                points.append(self._rebuild(reading, image, result, points))
        return Verified(
            reference=reference,
            digest=image.manifest,
            trusted=self.trust.verifies,
            points=tuple(points),
            ignored=result.statements.untrusted,
        )

    def _verify(self, reading: RepositoryReader) -> Callable[[ImageOnDisk], Verification]:
        return lambda image: verify(reading, image, self.trust, self._criteria())

    def _criteria(self) -> VerifyCriteria:
        return VerifyCriteria(
            policy=self.policy,
            suite=self.suite,
            matrix=self.policy_matrix,
            at=datetime.now(timezone.utc),
            planned=lambda lock: plan_locked(lock, self.matrix, self.facts),
            kinds=self.kinds,
        )

    def _full(self, reading: RepositoryReader, image: ImageOnDisk, result: Verification) -> Iterator[Point]:
        """Verify every byte: digest, diff_id and files of each layer; then the SBOM against the files."""
        layout = image.manifest_path.parents[2]
        try:
            fetch_layers(reading, image, self.observer)
            wrong = "\n".join(map(str, validate(layout, image.manifest, observer=self.observer)))
        except VerificationFailed as error:
            wrong = error.message
        if wrong:
            yield Point("layers", False, wrong)
            return
        total = size(sum(layer.size for layer in image.layers))
        yield Point("layers", True, f"{len(image.layers)} layers, {total}, every file verified")
        evidence = read_evidence(image, Store(layout.with_name("cache")), observer=self.observer)
        items = items_of(evidence)
        point = of_sbom(result.statements, lambda data: matches(data, image.manifest, items))
        yield replace(point, what="contents")

    def _rebuild(
        self, reading: RepositoryReader, image: ImageOnDisk, result: Verification, points: Sequence[Point]
    ) -> Point:
        """Rebuild the image, only if all other *points* are good."""
        bad = [point.what for point in points if not point.good]
        if bad or result.origin is None:
            text = f"not rebuilt: verification failed ({', '.join(bad) or 'no provenance'})"
            return Point("rebuild", False, text)
        context = RebuildContext(
            matrix=self.matrix,
            facts=self.facts,
            store=self.store,
            index=LazyIndex,
            observer=self.observer,
            say=self.say,
        )
        return rebuild(reading, image, result.origin.locked, context)


def verify_layout(
    folder: Path, ref: str | None, observer: Observer | None = None
) -> tuple[Mapping[str, Digest], Sequence[LayoutFault]]:
    """(name -> digest of the images in the layout *folder*, faults); no images if there are faults.

    :param ref: verify only this image; None: all images.
    :raises ConfigError: the layout has no *ref*.
    """
    if ref is not None:
        _demand_ref(folder, ref)
    if faults := validate(folder, ref, observer=observer):
        return {}, faults
    layout = open_layout(folder)
    return (layout.refs() if ref is None else {layout.image(ref).ref: layout.image(ref).manifest}), []


def _demand_ref(folder: Path, ref: str) -> None:
    try:
        layout = open_layout(folder)
        if ref not in layout.refs():
            layout.image(ref)
    except VerificationFailed:
        return  # `validate` reports it with all other faults
