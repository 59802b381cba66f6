"""Pushes the images that `project push` and `project watch` makes to one repository."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.cli.shared.image_names import NamedImage
from torchkiln.cli.shared.push_to import PushTo
from torchkiln.cli.shared.unproven import (
    default_tags,
    image_to_push,
    push_unproven,
    say_pushed,
    say_what_moves,
)
from torchkiln.publishing.names import ImageTags, demand_movable
from torchkiln.registry.connect import open_registry
from torchkiln.registry.push import JOBS, Pushed
from torchkiln.registry.reference import Repository, parse_repository
from torchkiln.registry.session import Registry


@dataclass
class Pushes:
    """Pushes in one session with the registry; after a failed push the next push opens a new session."""

    repository: Repository
    layout: Path
    to: PushTo
    quiet: bool
    _session: ExitStack = field(default_factory=ExitStack)
    _registry: Registry | None = None
    _is_first: bool = True

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
        """End the session."""
        self._registry = None
        self._session.close()

    def push(self, ref: str) -> Pushed:
        """Push the image *ref* of the layout. The first push is announced as by `torchkiln push`.

        :raises KilnError: the image cannot be pushed; a tag that was not moved keeps its image.
        """
        named = NamedImage(layout=self.layout, ref=ref)
        image = image_to_push(named, self.to.tags, licence_confirmed=self.to.licence_confirmed)
        tags, quiet = self.to.tags or default_tags(image), self.quiet or not self._is_first
        with ExitStack() as on_failure:
            on_failure.callback(self.close)  # an error stops the session's requests for good
            registry = self.connect()
            if self._is_first:
                say_what_moves(image, registry, self.repository, tags)
            pushed = push_unproven(image, registry, self.repository, tags, jobs=JOBS, quiet=quiet)
            on_failure.pop_all()
        if self._is_first:
            say_pushed(ref, pushed, quiet=quiet)
        self._is_first = False
        return pushed


def open_pushes(to: PushTo, layout: Path, *, quiet: bool) -> Pushes:
    """Connect to the registry, before anything is built.

    :raises ConfigError: the repository or a tag is invalid, or reserved for `publish`.
    :raises RegistryError: the server is not a registry, or cannot be reached.
    """
    demand_movable(ImageTags(dated=None, moving=to.tags))
    pushes = Pushes(parse_repository(to.target), layout, to, quiet)
    pushes.connect()
    return pushes
