"""Runtimes that start a command in an unpacked image of the cache, on this host's kernel and driver."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.unpack import LayerBlob, root_of, unpacked_root
from torchkiln.runtimes import driver
from torchkiln.runtimes.command import Command, Exited, Program, Settings, Streams, parse_user
from torchkiln.runtimes.runtime import Listener, Source


class Starter(Protocol):
    """Starts programs in a root file system that it never writes to."""

    def run(
        self, image_root: Path, program: Program, *, timeout_s: float | None = None, capture: bool = True
    ) -> Exited: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedRuntime:
    """A runtime by what starts its programs, made of the settings and the host's driver."""

    name: str
    what: str
    starter: Callable[[Settings, driver.Driver | None], Starter]
    interactive: bool = False
    in_engine: bool = False

    def check(self, command: Command, settings: Settings) -> None:
        """See Runtime."""
        if command.user:
            parse_user(command.user)

    def ready(self, source: Source, settings: Settings, listener: Listener) -> UnpackedImage:
        """See Runtime."""
        image = source.read()
        env = image_env(image) | dict(line.split("=", 1) for line in settings.env)
        starter = self.starter(settings, driver.driver_for(env, settings.gpus))
        listener.unpacks(image, there=root_of(source.store, image.manifest).is_dir())
        blobs = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
        root = unpacked_root(image.manifest, blobs, source.store)
        config = image.config.get("config") or {}
        return UnpackedImage(runtime=self.name, root=root, config=config, env=env, starter=starter)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedImage:
    """An image in the cache, with the environment of its config and this host's GPUs."""

    runtime: str
    root: Path
    config: Mapping[str, Any] = field(hash=False)
    env: Mapping[str, str] = field(hash=False)
    starter: Starter

    def captured(self, command: Command, *, timeout_s: float) -> Exited:
        """See ReadyImage."""
        return self.starter.run(self.root, self._program(command), timeout_s=timeout_s)

    def passed_through(self, command: Command, streams: Streams) -> int:
        """See ReadyImage; the streams are those of this process, which the command inherits."""
        program = self._program(command)
        if streams.stdin.isatty():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which has the terminal
        return self.starter.run(self.root, program, capture=False).code

    def killed_for_memory(self) -> int:
        """By this kernel."""
        return driver.killed_for_memory()

    def _program(self, command: Command) -> Program:
        """*command* with what the image says where it says nothing."""
        entrypoint = self.config.get("Entrypoint") or () if command.entrypoint else ()
        return Program(
            argv=(*entrypoint, *(command.argv or self.config.get("Cmd") or ())),
            env=self.env,
            binds=command.binds,
            workdir=command.workdir or self.config.get("WorkingDir") or "/",
            user=parse_user(command.user or self.config.get("User") or "0"),
        )


def image_user(image: ImageOnDisk) -> str:
    """The user that *image* names, "0" where it names none."""
    return str((image.config.get("config") or {}).get("User") or "0")


def image_env(image: ImageOnDisk) -> dict[str, str]:
    """The variables that the config of *image* sets."""
    return dict(line.split("=", 1) for line in (image.config.get("config") or {}).get("Env") or ())
