"""Publishes images of a layout: runs the gate, makes tags and statements, and pushes to the registry.

Errors that can be found without the registry are raised before the first request.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torchkiln import __version__
from torchkiln.attest.provenance import SourcePackage, SourceRevision, provenance
from torchkiln.attest.signers import Signer, Trust, with_signer
from torchkiln.attest.statement import Statement
from torchkiln.compare.images import contents_of
from torchkiln.errors import ConfigError, GateRefused, KilnError, VerificationFailed
from torchkiln.gate.gate import ClearedImage, GateResult, clear, override
from torchkiln.gate.inputs import GateInputs
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import parse_name
from torchkiln.model.layer import split_format
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.labels import labels, tag_in
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.plan.plan import IMAGE_JSON
from torchkiln.publishing.names import ImageTags, demand_same, names_of
from torchkiln.publishing.publish import PreparedImage, PublishedImage, publish
from torchkiln.registry.push import JOBS, History, PushOptions
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry, open_registry
from torchkiln.sbom.bill import Bill
from torchkiln.sbom.read_image import bill_of_image
from torchkiln.smoke.session import image_and_lock
from torchkiln.store.store import Store
from torchkiln.util.places import INSTALLED, ROOT
from torchkiln.util.schema import shown
from torchkiln.util.strict_json import json_of

T = TypeVar("T")
_GIT_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishListener:
    """Receives the progress messages of a session; those that a subclass does not handle are ignored."""

    say: Callable[[str], None] = lambda _: None  # receives the notes

    def checked(self, result: GateResult) -> None:
        """The gate's result for an image."""

    def overridden(self, cleared: ClearedImage) -> None:
        """The image is published with --override."""

    def progress(self) -> AbstractContextManager[Observer]:
        """A context with the observer of the uploads of one image."""
        return nullcontext(Silent())

    def note(self, text: str) -> None:
        """A statement in the repository is ignored."""
        self.say(text)

    def published(self, ref: str, image: PublishedImage) -> None:
        """The image and all its tags are in the registry."""

    def failed(self, ref: str, error: KilnError) -> None:
        """One of several images failed; the others continue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishTarget:
    """Where images are published, and under which tags."""

    repository: Repository
    day: str  # the suffix of the dated tag
    names: tuple[str, ...] = ()  # tags instead of those that follow from the lock; for one image
    override: str | None = None  # the reason to publish although the gate refuses
    licence_confirmed: bool = False  # the user has the right to distribute modified NVIDIA libraries
    mount_from: tuple[str, ...] = ()  # repositories of the same registry to mount layers from
    plain_http: bool = False
    jobs: int = JOBS


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """An image before the gate's decision."""

    names: ImageTags
    result: GateResult
    bill: Callable[[], Bill]  # reads the layers
    origin: tuple[Statement, ...] = ()


class PublishedKind(Protocol):
    """A kind of images that are built on those of cells, such as projects."""

    def is_mine(self, image: ImageOnDisk) -> bool: ...

    def candidate(self, image: ImageOnDisk, session: PublishSession, target: PublishTarget) -> Candidate:
        """The names, the gate's result and the bill of *image*.

        :raises KilnError: as `PublishSession.prepare` does.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishSession:
    """Publishes images, with the settings of a command."""

    layout: Path
    images: Path  # the folder of locks
    matrix: Matrix
    facts: Facts
    store: Store
    inputs: GateInputs
    signer: Signer
    environ: Mapping[str, str]  # for Docker's login, network settings, and the builder's id
    listener: PublishListener
    kinds: tuple[PublishedKind, ...]  # images of no kind are those of cells

    def run(self, refs: Sequence[str], target: PublishTarget) -> list[KilnError]:
        """Publish the images *refs* of the layout; returns the errors of those that failed.

        The gate checks all of them before the first request. If one of several fails, the others continue.

        :raises KilnError: the only one failed, or the registry cannot be used.
        """
        if target.names and len(refs) > 1:
            raise ConfigError(
                f"--tag applies to one image, and {len(refs)} are selected", hint="publish them one at a time"
            )
        failures: list[KilnError] = []
        alone = len(refs) == 1
        prepared = self._each(refs, lambda ref: self.prepare(ref, target), failures, alone=alone)
        if not prepared:
            return failures
        with open_registry(target.repository, self.environ, plain_http=target.plain_http) as registry:
            registry.check()
            self._each(
                prepared, lambda ref: self.send(ref, prepared[ref], registry, target), failures, alone=alone
            )
        return failures

    def publish(self, ref: str, target: PublishTarget) -> PublishedImage:
        """Publish the image *ref* of the layout.

        :raises KilnError: the gate refuses, or a step failed.
        """
        prepared = self.prepare(ref, target)
        with open_registry(target.repository, self.environ, plain_http=target.plain_http) as registry:
            registry.check()
            return self.send(ref, prepared, registry, target)

    def prepare(self, ref: str, target: PublishTarget) -> PreparedImage:
        """Prepare everything that needs no registry: tags, the gate's decision, statements.

        :raises ConfigError: no such image, or an invalid tag.
        :raises Stale: there is no lock of the image.
        :raises GateRefused: a requirement of the policy is not met; or the image was built with --own-use,
            and the user has not confirmed the licence.
        """
        image = open_layout(self.layout).image(ref)
        kind = next((kind for kind in self.kinds if kind.is_mine(image)), None)
        demand_licence(image, confirmed=target.licence_confirmed)
        found = kind.candidate(image, self, target) if kind else self._candidate(ref, target)
        cleared = self._cleared(found.result, target.override)
        from torchkiln.sbom.cyclonedx import sbom_statement  # imported here because it loads slowly

        statements = (*found.origin, sbom_statement(found.bill()))
        return PreparedImage(cleared=cleared, image=image, statements=statements, names=found.names)

    def _candidate(self, ref: str, target: PublishTarget) -> Candidate:
        """The image *ref* of a cell."""
        image, tag, locked = image_and_lock(ref, self.layout, self.images, self.store)
        demand_same(ref, tag, locked)
        name = target.repository.name
        return Candidate(
            names=names_of(image, locked, self.matrix, self.facts, day=target.day, requested=target.names),
            result=self.inputs.judge(image, locked, self.images),
            bill=lambda: bill_of_image(image, locked, self.images, self.store, name=name),
            origin=(
                provenance(locked, image.manifest, source=source_of(), builder=builder_of(self.environ)),
            ),
        )

    def send(
        self, ref: str, prepared: PreparedImage, registry: Registry, target: PublishTarget
    ) -> PublishedImage:
        """Push the image and its statements, and set its tags.

        :raises KilnError: as `publish` does.
        """
        trust = with_signer(Trust(keys=self.inputs.trusted), self.signer)
        with self.listener.progress() as observer:
            options = PushOptions(
                observer=observer, history=History(self.store), mount_from=target.mount_from, jobs=target.jobs
            )
            say, repository = self.listener.note, target.repository
            published = publish(prepared, registry, repository, self.signer, trust, options, say)
        self.listener.published(ref, published)
        return published

    def _cleared(self, result: GateResult, reason: str | None) -> ClearedImage:
        self.listener.checked(result)
        if reason is None:
            return clear(result, self.inputs.options)
        cleared = override(result, reason)
        self.listener.overridden(cleared)
        return cleared

    def _each(
        self, refs: Iterable[str], do: Callable[[str], T], failures: list[KilnError], *, alone: bool
    ) -> dict[str, T]:
        """The result of *do* for each of *refs*; if one of several fails, the others continue."""
        results: dict[str, T] = {}
        for ref in refs:
            try:
                results[ref] = do(ref)
            except KilnError as error:
                if alone:
                    raise
                self.listener.failed(ref, error)
                failures.append(error)
        return results


def builder_of(environ: Mapping[str, str]) -> str:
    """The builder's id for the provenance: the workflow of this CI job, else a fixed URN."""
    server, workflow = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_WORKFLOW_REF")
    return f"{server}/{workflow}" if server and workflow else "urn:torchkiln:builder"


def source_of() -> SourceRevision | SourcePackage | None:
    """The installed package, or the commit that git reports; None: a checkout without git."""
    if INSTALLED:  # git would report a repository that contains the environment
        return SourcePackage(version=__version__)
    revision = _git("rev-parse", "--verify", "HEAD")
    if revision is None:
        return None
    return SourceRevision(
        revision=revision.strip(), changed=_git("status", "--porcelain", "--untracked-files=no") != ""
    )


def _git(*argv: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *argv], capture_output=True, text=True, check=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


LABEL = "torchkiln.own_use"
_SMALL = 16 << 20  # bytes; the layer with image.json has about 0.1 MB


def demand_licence(image: ImageOnDisk, *, confirmed: bool) -> None:
    """Check that *image* may be distributed.

    :param confirmed: the user has the right to distribute modified NVIDIA libraries.
    :raises GateRefused: it contains modified NVIDIA libraries, and the right is not confirmed.
    :raises VerificationFailed: its label or its image.json is invalid.
    """
    if is_for_own_use(image) and not confirmed:
        raise GateRefused(
            f"{image.ref} contains modified NVIDIA libraries (--own-use), and NVIDIA's licence may not"
            " permit their redistribution",
            hint="build the image without --own-use; or, if you have the right to distribute it, add"
            " --licence-confirmed",
        )


def is_for_own_use(image: ImageOnDisk) -> bool:
    """Whether *image* contains modified NVIDIA libraries, according to its label, its tag or its image.json.

    One of them is enough, because an image that is derived from such an image can lack the others.

    :raises VerificationFailed: the label or image.json is invalid.
    """
    label = labels(image).get(LABEL)
    if label not in (None, "true"):
        raise VerificationFailed(
            f"{image.ref}: the label {LABEL} is {shown(label)}; the only valid value is true"
        )
    tags = (parse_name(split_format(name)[0]) for name in (image.ref, tag_in(image)))
    return label is not None or any(tag and tag.own_use for tag in tags) or _in_image_json(image)


def _in_image_json(image: ImageOnDisk) -> bool:
    """`own_use` in the topmost image.json; large layers, which have wheels or archives, are not read."""
    for layer in reversed(image.layers):
        if layer.size > _SMALL:
            continue
        text = contents_of(layer, IMAGE_JSON.__eq__).texts.get(IMAGE_JSON)
        if text is not None:
            return _own_use(text, image.ref)
    return False


def _own_use(text: str, ref: str) -> bool:
    try:
        document: Any = json_of(text.encode())
        found = document.get("own_use", False)
    except (ValueError, AttributeError) as error:
        raise VerificationFailed(f"{ref}: /{IMAGE_JSON} is invalid: {str(error)[:120]}") from None
    if not isinstance(found, bool):
        raise VerificationFailed(f"{ref}: /{IMAGE_JSON}: own_use must be true or false, not {shown(found)}")
    return found
