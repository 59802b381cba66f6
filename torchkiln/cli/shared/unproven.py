"""Pushes images without the gate, for `push`, `project push` and `project watch`; formats what was pushed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import PushTo
from torchkiln.errors import ConfigError
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.publishing.names import ImageTags, demand_movable
from torchkiln.publishing.session import demand_licence
from torchkiln.registry.push import History, Pushed, PushOptions, push
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository, parse_repository
from torchkiln.registry.session import Registry, open_registry

PREFIX = "unproven-"  # of the default tag; tags of `publish` never begin with it


@dataclass
class Pushes:
    """Pushes in one session with the registry; after a failed push the next push opens a new session."""

    repository: Repository
    to: PushTo
    quiet: bool
    _session: ExitStack = field(default_factory=ExitStack)
    _registry: Registry | None = None

    def image(self, layout: Path, ref: str | None) -> ImageOnDisk:
        """The image *ref* of *layout*.

        :raises ConfigError: there is no such image, or it has no name, and no tag is given.
        :raises GateRefused: its licence needs a confirmation, which is missing.
        """
        image = open_layout(layout).image(ref)
        if not self.to.tags and ":" in image.ref:
            raise ConfigError(f"{image.ref}: no name in {layout}", hint="name it in the registry: --tag NAME")
        demand_licence(image, confirmed=self.to.licence_confirmed)
        return image

    def connect(self) -> Registry:
        """The session with the registry.

        :raises RegistryError: the server is not a registry, or cannot be reached.
        """
        if self._registry is None:
            with ExitStack() as stack:
                opened = open_registry(self.repository, os.environ, plain_http=self.to.plain_http)
                registry = stack.enter_context(opened)
                registry.check()
                self._session = stack.pop_all()
            self._registry = registry
        return self._registry

    def close(self) -> None:
        self._registry = None
        self._session.close()

    def push(self, image: ImageOnDisk, *, announced: bool = True) -> Pushed:
        """Push *image*; if *announced*, say which tags move, and that the image is unproven.

        :raises KilnError: the image cannot be pushed; a tag that was not moved keeps its image.
        """
        tags, quiet = self.to.tags or (f"{PREFIX}{image.ref}",), self.quiet or not announced
        with ExitStack() as on_failure:
            on_failure.callback(self.close)  # an error stops the session's requests for good
            registry = self.connect()
            if announced:
                _say_what_moves(image, registry, self.repository, tags)
            with console.progress(quiet=quiet) as observer:
                history = History(console.open_cache(quiet=quiet))
                options = PushOptions(observer=observer, history=history, jobs=self.to.jobs)
                pushed = push(image, registry, self.repository, options, tags=tags)
            on_failure.pop_all()
        if announced:
            console.say(f"warning: {pushed.reference} is unproven: no gate has cleared it")
        if not quiet:
            console.say(summary(image.ref, pushed, pushed.tags))
        return pushed


def pushes(to: PushTo, *, quiet: bool) -> Pushes:
    """A session that is not connected yet.

    :raises ConfigError: the repository or a tag is invalid, or reserved for `publish`.
    """
    assert to.target is not None
    repository = parse_repository(to.target)
    demand_movable(ImageTags(dated=None, moving=to.tags))
    return Pushes(repository, to, quiet)


def _say_what_moves(
    image: ImageOnDisk, registry: Registry, repository: Repository, tags: Sequence[str]
) -> None:
    """Print the digest of each other image that has one of *tags*."""
    reading = RepositoryReader(registry, repository)
    for tag in tags:
        present = reading.digest(tag)
        if present not in (None, image.manifest):
            console.say(f"{repository}:{tag} moves from {present} to the pushed image")


def pushed_json(ref: str, pushed: Pushed) -> dict[str, Any]:
    return pushed_to_json(ref, pushed, pushed.tags) | {"proven": False}


def pushed_to_json(ref: str, pushed: Pushed, tags: Sequence[str]) -> dict[str, Any]:
    """The object that --json prints for the image *ref*."""
    return {
        "image": ref,
        "reference": pushed.reference,
        "digest": pushed.digest,
        "repository": str(pushed.repository),
        "tags": list(tags),
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
    }


def summary(ref: str, pushed: Pushed, tags: Sequence[str]) -> str:
    """One line: the blobs, the bytes, the time and the tags."""
    return (
        f"{ref}: {len(pushed.blobs)} blobs ({pushed.count('sent')} sent, {pushed.count('mounted')} mounted, "
        f"{pushed.count('there')} there already), {console.size(pushed.bytes_sent)} in "
        f"{pushed.seconds:.1f} s; {pushed.repository}: {', '.join(tags)}"
    )
