"""Defines the protocols of a runtime, which `run` and `smoke` use; table.py lists the runtimes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchkiln.model.progress import Observer
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Command, Exited, RuntimeSettings, Streams
from torchkiln.store.store import Store

DOCKER = "docker:"  # the prefix of an image's name: the image is in the engine, and need not be in a layout


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSource:
    ref: str | None  # its tag or digest; None: the only image of the layout
    layout: Path
    store: Store
    repository: Callable[[], str]  # the name of its repository in engines; only engines call it
    image: ImageOnDisk | None = None  # the image, if the caller has read it

    def read(self) -> ImageOnDisk:
        """The image in the layout.

        :raises ConfigError: there is no such image.
        """
        return self.image or open_layout(self.layout).image(self.ref)


class RuntimeListener(Protocol):
    """Receives progress messages of a runtime that prepares an image."""

    def say(self, line: str) -> None: ...

    def unpacks(self, image: ImageOnDisk, *, there: bool) -> None:
        """Called before *image* is used as files: unpacked already if *there*, else unpacked next."""

    def progress(self) -> AbstractContextManager[Observer]:
        """An observer for a task, such as an upload, in a context that lasts as long as the task."""


class RunnableImage(Protocol):
    """A prepared image, in which commands can be started."""

    @property
    def runtime(self) -> str:
        """The runtime's name, for reports."""

    def captured(self, command: Command, *, timeout_s: float, on_line: OnLine) -> Exited:
        """Run *command* without input and with read-only binds, and capture its stderr.

        Each line of stdout is passed to *on_line* when it is complete. After *timeout_s* seconds the command
        and all processes that it started are killed.
        """

    def passed_through(self, command: Command, streams: Streams) -> int:
        """Run *command* with the caller's streams and signals, and return its exit code."""

    def killed_for_memory(self) -> int:
        """The number of processes that the host's kernel killed because memory ran out; 0 if unknown."""


class Runtime(Protocol):
    @property
    def what(self) -> str:
        """A description, for --help."""

    @property
    def in_engine(self) -> bool:
        """Whether it is an engine: images have names, ports are published, its host may be remote."""

    def check(self, command: Command, settings: RuntimeSettings) -> None:
        """Check what can be checked before the image is prepared.

        :raises ConfigError: *command* or *settings* are invalid.
        """

    def ready(
        self, source: ImageSource, settings: RuntimeSettings, listener: RuntimeListener
    ) -> RunnableImage:
        """Prepare the image of *source*.

        :raises ConfigError: there is no such image.
        :raises ToolMissing: the runtime or the engine is not available, or the requested GPUs are missing.
        """
