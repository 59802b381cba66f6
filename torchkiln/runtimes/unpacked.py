"""Implements the runtime that starts commands in an image in the cache, with this host's GPUs."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchkiln.oci.layout import ImageOnDisk
from torchkiln.runtimes import driver
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Command, Exited, Program, RuntimeSettings, Streams, parse_user
from torchkiln.runtimes.image_root import root_for
from torchkiln.runtimes.mounted import MountedLayers
from torchkiln.runtimes.rootfs import RootfsRuntime
from torchkiln.runtimes.runtime import ImageSource, RuntimeListener


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedRuntime:
    """Mounts or unpacks images, and runs commands in them in Linux namespaces."""

    what: str
    in_engine: bool = False

    def check(self, command: Command, settings: RuntimeSettings) -> None:
        if command.user:
            parse_user(command.user)

    def ready(
        self, source: ImageSource, settings: RuntimeSettings, listener: RuntimeListener
    ) -> UnpackedImage:
        image = source.read()
        env = image_env(image) | dict(line.split("=", 1) for line in settings.env)
        gpus = driver.driver_for(env, settings.gpus)
        root = root_for(image, source.store, listener)
        config = image.config.get("config") or {}
        starter = RootfsRuntime(shm_size=settings.shm_size, driver=gpus)
        return UnpackedImage(root=root, config=config, env=env, starter=starter)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedImage:
    """An image in the cache, with its environment, and this host's GPUs."""

    root: Path | MountedLayers
    config: Mapping[str, Any] = field(hash=False)
    env: Mapping[str, str] = field(hash=False)
    starter: RootfsRuntime
    runtime: str = "rootfs"

    def captured(self, command: Command, *, timeout_s: float, on_line: OnLine) -> Exited:
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
    return dict(line.split("=", 1) for line in (image.config.get("config") or {}).get("Env") or ())
