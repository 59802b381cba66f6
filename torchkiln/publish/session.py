"""Publishes images of a layout: gate, tags, statements, registry.

Everything that can be refused without the registry is refused before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from torchkiln.attest.provenance import provenance
from torchkiln.attest.signers import Sealer
from torchkiln.attest.statement import Statement
from torchkiln.attest.trust import Trust, with_sealer
from torchkiln.errors import ConfigError, KilnError
from torchkiln.gate.gate import ClearedImage, Judgement, clear, override
from torchkiln.gate.inputs import Inputs
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.publish.connect import open_registry
from torchkiln.publish.names import demand_same, names_of
from torchkiln.publish.publish import PublishedImage, ReadyImage, publish
from torchkiln.publish.source import source_of
from torchkiln.registry.history import History
from torchkiln.registry.push import JOBS, PushOptions
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.sbom.image import bill_of_image
from torchkiln.sbom.statements import sboms
from torchkiln.smoke.session import image_and_lock
from torchkiln.store.store import Store

T = TypeVar("T")


class PublishListener(Protocol):
    """Hears what a session does."""

    def judged(self, judged: Judgement) -> None:
        """What the gate found of an image."""

    def overridden(self, cleared: ClearedImage) -> None:
        """The image is published without the gate's consent, or with its reason beside it."""

    def progress(self) -> AbstractContextManager[Observer]:
        """Who hears of the uploads of one image."""

    def note(self, text: str) -> None:
        """Something in the repository that does not count."""

    def published(self, ref: str, image: PublishedImage) -> None:
        """The image is there, under all its names."""

    def failed(self, ref: str, error: KilnError) -> None:
        """One of several images failed; the others go on."""


@dataclass(frozen=True, slots=True)
class Unheard:
    """A listener that passes on notes and ignores everything else."""

    say: Callable[[str], None] = lambda _: None

    def judged(self, judged: Judgement) -> None: ...

    def overridden(self, cleared: ClearedImage) -> None: ...

    def progress(self) -> AbstractContextManager[Observer]:
        return nullcontext(Silent())

    def note(self, text: str) -> None:
        self.say(text)

    def published(self, ref: str, image: PublishedImage) -> None: ...

    def failed(self, ref: str, error: KilnError) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where images are published, and under which names."""

    repository: Repository
    day: str  # what the tag that never moves ends in
    names: tuple[str, ...] = ()  # instead of all that follow from the lock; for one image
    override: str | None = None  # why what is not proved is published
    mount_from: tuple[str, ...] = ()  # more repositories of the same registry that may have layers
    plain_http: bool = False
    jobs: int = JOBS


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishSession:
    """What the publications of one command have in common."""

    layout: Path
    images: Path  # the folder of locks
    matrix: Matrix
    facts: Facts
    store: Store
    inputs: Inputs  # of the gate
    sealer: Sealer
    environ: Mapping[str, str]  # for Docker's login, the network's settings, and who builds
    listener: PublishListener = field(default_factory=Unheard)

    def run(self, refs: Sequence[str], target: Target) -> list[KilnError]:
        """Publish the images *refs* of the layout; what failed of them.

        The gate judges all of them before the registry is asked. Of several, each is tried.

        :raises KilnError: the only one failed, or the registry is none.
        """
        if target.names and len(refs) > 1:
            raise ConfigError(
                "--tag names one image, and several are to be published", hint="publish them one by one"
            )
        failures: list[KilnError] = []
        alone = len(refs) == 1
        ready = self._each(refs, lambda ref: self.prepare(ref, target), failures, alone=alone)
        if not ready:
            return failures
        with open_registry(target.repository, self.environ, plain_http=target.plain_http) as registry:
            registry.check()
            self._each(ready, lambda ref: self.send(ref, ready[ref], registry, target), failures, alone=alone)
        return failures

    def publish(self, ref: str, target: Target) -> PublishedImage:
        """Publish the image *ref* of the layout.

        :raises KilnError: it is refused, or it failed.
        """
        ready = self.prepare(ref, target)
        with open_registry(target.repository, self.environ, plain_http=target.plain_http) as registry:
            registry.check()
            return self.send(ref, ready, registry, target)

    def prepare(self, ref: str, target: Target) -> ReadyImage:
        """All that can be decided without the registry: names, the gate, what is said of the image.

        :raises ConfigError: no such image or lock, or a name that it may not have.
        :raises GateRefused: something is not proved.
        """
        image, tag, locked = image_and_lock(ref, self.layout, self.images)
        demand_same(ref, tag, locked)
        names = names_of(image, locked, self.matrix, self.facts, day=target.day, asked=target.names)
        cleared = self._cleared(image, locked, target.override)
        statements = self._statements(image, locked, target.repository.name)
        return ReadyImage(cleared=cleared, image=image, statements=statements, names=names)

    def send(self, ref: str, ready: ReadyImage, registry: Registry, target: Target) -> PublishedImage:
        """The image, and what goes with it.

        :raises KilnError: as `publish` does.
        """
        trust = with_sealer(Trust(keys=self.inputs.trusted), self.sealer)
        with self.listener.progress() as observer:
            options = PushOptions(
                observer=observer,
                history=History(self.store),
                mount_from=target.mount_from,
                jobs=target.jobs,
            )
            say, repository = self.listener.note, target.repository
            published = publish(ready, registry, repository, self.sealer, trust, options, say)
        self.listener.published(ref, published)
        return published

    def _cleared(self, image: ImageOnDisk, locked: LockedCell, reason: str | None) -> ClearedImage:
        judged = self.inputs.judge(image, locked)
        self.listener.judged(judged)
        if reason is None:
            return clear(judged)
        cleared = override(judged, reason)
        self.listener.overridden(cleared)
        return cleared

    def _statements(self, image: ImageOnDisk, locked: LockedCell, name: str) -> tuple[Statement, ...]:
        """What is said of it beside what the gate says."""
        bill = bill_of_image(image, locked, self.images, self.store, name=name)
        made = provenance(locked, image.manifest, source=source_of(), builder=builder_of(self.environ))
        return (made, *sboms(bill))

    def _each(
        self, refs: Iterable[str], do: Callable[[str], T], failures: list[KilnError], *, alone: bool
    ) -> dict[str, T]:
        """What *do* gives for each; a failure is noted, and keeps no other back."""
        found: dict[str, T] = {}
        for ref in refs:
            try:
                found[ref] = do(ref)
            except KilnError as error:
                if alone:
                    raise
                self.listener.failed(ref, error)
                failures.append(error)
        return found


def builder_of(environ: Mapping[str, str]) -> str:
    """Who builds: the workflow of the CI job that this is, else whoever runs torchkiln."""
    server, workflow = environ.get("GITHUB_SERVER_URL"), environ.get("GITHUB_WORKFLOW_REF")
    return f"{server}/{workflow}" if server and workflow else "urn:torchkiln:builder"
