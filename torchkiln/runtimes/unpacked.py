"""Implements runtimes that start commands in an image unpacked in the cache, with this host's GPU driver."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes import driver
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Command, Exited, Program, RuntimeSettings, Streams, parse_user
from torchkiln.runtimes.runtime import ImageSource, RuntimeListener
from torchkiln.runtimes.verified_root import unpacked


class Starter(Protocol):
    """Starts programs in a root file system, which it does not modify."""

    def run(
        self,
        image_root: Path,
        program: Program,
        *,
        timeout_s: float | None = None,
        capture: bool = True,
        on_line: OnLine | None = None,
    ) -> Exited: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedRuntime:
    """A runtime that creates a Starter from the settings and the host's driver."""

    name: str
    what: str
    starter: Callable[[RuntimeSettings, driver.HostDriver | None], Starter]
    interactive: bool = False
    in_engine: bool = False

    def check(self, command: Command, settings: RuntimeSettings) -> None:
        """See Runtime."""
        if command.user:
            parse_user(command.user)

    def ready(
        self, source: ImageSource, settings: RuntimeSettings, listener: RuntimeListener
    ) -> UnpackedImage:
        """See Runtime."""
        image = source.read()
        env = image_env(image) | dict(line.split("=", 1) for line in settings.env)
        starter = self.starter(settings, driver.driver_for(env, settings.gpus))
        root = unpacked(image, source.store, listener)
        config = image.config.get("config") or {}
        return UnpackedImage(runtime=self.name, root=root, config=config, env=env, starter=starter)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedImage:
    """An image in the cache, with its environment, and this host's GPUs."""

    runtime: str
    root: Path
    config: Mapping[str, Any] = field(hash=False)
    env: Mapping[str, str] = field(hash=False)
    starter: Starter

    def captured(self, command: Command, *, timeout_s: float, on_line: OnLine) -> Exited:
        """See RunnableImage."""
        return self.starter.run(self.root, self._program(command), timeout_s=timeout_s, on_line=on_line)

    def passed_through(self, command: Command, streams: Streams) -> int:
        """See RunnableImage; *streams* must be those of this process, which the command inherits."""
        program = self._program(command)
        if streams.stdin.isatty():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C
        return self.starter.run(self.root, program, capture=False).code

    def killed_for_memory(self) -> int:
        """See RunnableImage; this kernel's count."""
        return driver.killed_for_memory()

    def _program(self, command: Command) -> Program:
        """*command*, completed with the image's config."""
        entrypoint = self.config.get("Entrypoint") or () if command.entrypoint else ()
        return Program(
            argv=(*entrypoint, *(command.argv or self.config.get("Cmd") or ())),
            env=self.env,
            binds=command.binds,
            workdir=command.workdir or self.config.get("WorkingDir") or "/",
            user=parse_user(command.user or self.config.get("User") or "0"),
        )


def image_user(image: ImageOnDisk) -> str:
    """The user in the config of *image*; "0" if it has none."""
    return str((image.config.get("config") or {}).get("User") or "0")


def image_env(image: ImageOnDisk) -> dict[str, str]:
    """The environment variables in the config of *image*."""
    return dict(line.split("=", 1) for line in (image.config.get("config") or {}).get("Env") or ())
