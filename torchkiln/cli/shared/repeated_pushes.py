"""Pushes the images of `build --watch` to one repository."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.cli.shared import console
from torchkiln.cli.shared.image_names import NamedImage
from torchkiln.cli.shared.unproven import default_tags, image_to_push, push_unproven, say_what_moves
from torchkiln.cli.shared.watching import WatchOptions
from torchkiln.publish.connect import open_registry
from torchkiln.registry.push import JOBS, Pushed
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry


@dataclass
class RepeatedPushes:
    """One session with the registry, until a push fails: the next one opens another."""

    repository: Repository
    layout: Path
    options: WatchOptions
    quiet: bool
    _session: ExitStack = field(default_factory=ExitStack)
    _registry: Registry | None = None
    _is_first: bool = True

    def connect(self) -> Registry:
        """The session with the registry.

        :raises RegistryError: it is not a registry, or cannot be reached.
        """
        if self._registry is None:
            with ExitStack() as stack:
                opened = open_registry(self.repository, os.environ, plain_http=self.options.plain_http)
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

        :raises KilnError: the image cannot be pushed; a tag that was not moved still has its image.
        """
        named = NamedImage(layout=self.layout, ref=ref)
        confirmed = self.options.licence_confirmed
        image = image_to_push(named, self.options.tags, licence_confirmed=confirmed)
        tags, quiet = self.options.tags or default_tags(image), self.quiet or not self._is_first
        with ExitStack() as on_failure:
            on_failure.callback(self.close)  # an error stops the session's requests for good
            registry = self.connect()
            if self._is_first:
                say_what_moves(image, registry, self.repository, tags)
            pushed = push_unproven(image, registry, self.repository, tags, jobs=JOBS, quiet=quiet)
            on_failure.pop_all()
        if self._is_first:
            console.say(f"warning: {self.repository}: {', '.join(tags)}: unproven: no gate has cleared it")
        self._is_first = False
        return pushed
