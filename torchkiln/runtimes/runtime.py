"""What a runtime is: `run` and `smoke` know it by these protocols alone. Those that there are: table.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchkiln.model.progress import Observer, Silent
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.runtimes.command import Command, Exited, Settings, Streams
from torchkiln.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where an image comes from, and where it may be kept unpacked."""

    ref: str | None  # its tag or digest; None: the layout's only one
    layout: Path
    store: Store
    repository: Callable[[], str]  # under which engines have it; asked for only by them
    image: ImageOnDisk | None = None  # where it was read already: nothing else is meant by then

    def read(self) -> ImageOnDisk:
        """The image in the layout.

        :raises ConfigError: there is none.
        """
        return self.image or open_layout(self.layout).image(self.ref)


class Listener(Protocol):
    """Hears what a runtime does before a command starts."""

    def say(self, line: str) -> None: ...

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        """*image* is wanted unpacked; *there*: it is already."""

    def progress(self) -> AbstractContextManager[Observer]:
        """An observer for as long as some work lasts."""


class Unheard:
    """A listener that nobody has to hear."""

    def say(self, line: str) -> None: ...

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None: ...

    def progress(self) -> AbstractContextManager[Observer]:
        return nullcontext(Silent())


class ReadyImage(Protocol):
    """An image in which commands can be started at once."""

    @property
    def runtime(self) -> str:
        """The name of what starts them, for reports."""

    def captured(self, command: Command, *, timeout_s: float) -> Exited:
        """Run *command* without input, its binds read-only, and keep what it says.

        After *timeout_s* seconds everything that it started is killed.
        """

    def passed_through(self, command: Command, streams: Streams) -> int:
        """Run *command* with the caller's streams and signals; its own exit code."""

    def killed_for_memory(self) -> int:
        """How many processes its kernel has killed for want of memory so far; 0 where nobody knows."""


class Runtime(Protocol):
    """A way to start commands in images."""

    @property
    def what(self) -> str:
        """For --help."""

    @property
    def in_engine(self) -> bool:
        """Whether images have names there, ports are published, and its host may be another one."""

    @property
    def interactive(self) -> bool:
        """Whether `run` offers it: it passes streams through."""

    def check(self, command: Command, settings: Settings) -> None:
        """All that can be known before anything is prepared.

        :raises ConfigError: *command* or *settings* are not usable.
        """

    def ready(self, source: Source, settings: Settings, listener: Listener) -> ReadyImage:
        """Prepare the image of *source*.

        :raises ConfigError: there is no such image.
        :raises ToolMissing: this host cannot, no engine answers, or there are no GPUs that were asked for.
        """
