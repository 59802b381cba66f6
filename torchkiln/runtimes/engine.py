"""The engine that DOCKER_HOST or the client's context names, Docker or Podman, as a runtime.

The image is loaded into it where it is not there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torchkiln.docker.daemon import Engine, find_engine
from torchkiln.errors import ConfigError
from torchkiln.runtimes import docker
from torchkiln.runtimes.command import Bind, Command, Exited, Settings, Streams
from torchkiln.runtimes.docker_args import Container, client_command, parse_port
from torchkiln.runtimes.driver import killed_for_memory
from torchkiln.runtimes.engine_images import gpus_on, image_on, parse_gpus
from torchkiln.runtimes.runtime import Listener, Source

_WORKSPACE = "/workspace"
_JUPYTER, _SSH = "8888/tcp", "22/tcp"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRuntime:
    """An engine here or elsewhere."""

    what: str
    interactive: bool = True
    in_engine: bool = True

    def check(self, command: Command, settings: Settings) -> None:
        """See Runtime."""
        faults = []
        try:
            parse_gpus(settings.gpus)
        except ConfigError as error:
            faults.append(error.message)
        for bind in command.binds:
            if not bind.source.exists():
                faults.append(f"bind {bind.source}: no such file or folder")
        for port in command.ports:
            try:
                parse_port(port)
            except ConfigError as error:
                faults.append(error.message)
        if faults:
            raise ConfigError.of(faults)

    def ready(self, source: Source, settings: Settings, listener: Listener) -> EngineImage:
        """See Runtime."""
        parse_gpus(settings.gpus)
        engine = find_engine(builds=False)
        gpus, cdi = gpus_on(engine, settings.gpus, listener)
        name, config = image_on(engine, source, listener)
        base = Container(
            image=name, command=(), env=settings.env, gpus=gpus, cdi=cdi, shm_size=settings.shm_size
        )
        return EngineImage(engine=engine, base=base, config=config, listener=listener)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineImage:
    """An image in an engine; *base* is what its containers have in common."""

    engine: Engine
    base: Container
    config: Mapping[str, Any] = field(hash=False)
    listener: Listener

    @property
    def runtime(self) -> str:
        """Docker's or Podman's name."""
        return self.engine.kind.lower()

    def captured(self, command: Command, *, timeout_s: float) -> Exited:
        """See ReadyImage; binds are copied in, for the engine may be elsewhere."""
        container = replace(self._container(command), files=command.binds)
        return docker.captured(container, self.engine, timeout_s=timeout_s)

    def passed_through(self, command: Command, streams: Streams) -> int:
        """See ReadyImage. The line for Docker's client is shown; on a terminal that line is what runs."""
        container = self._as_users_do(command)
        reads = not streams.stdin.isatty()
        podman_at = self.engine.host if self.engine.kind == "Podman" else ""
        terminal = not reads and streams.stdout.isatty()
        argv = client_command(container, terminal=terminal, podman_at=podman_at)
        self.listener.say(shlex.join(argv))
        if not reads and shutil.which(argv[0]):
            streams.stderr.flush()
            os.execvp(argv[0], argv)  # a terminal's keys, size and signals are its affair
        return docker.run(
            container,
            self.engine,
            stdin=streams.stdin.fileno() if reads else None,
            stdout=streams.stdout,
            stderr=streams.stderr,
            signals=_heard(),
        )

    def killed_for_memory(self) -> int:
        """By this kernel, if it is the engine's too."""
        return killed_for_memory() if self.engine.host.startswith("unix://") else 0

    def _container(self, command: Command) -> Container:
        return replace(
            self.base,
            command=command.argv,
            entrypoint=command.entrypoint,
            user=command.user,
            workdir=command.workdir,
            ports=command.ports,
        )

    def _as_users_do(self, command: Command) -> Container:
        """What was asked, and what is sensible where nothing was."""
        argv = command.argv
        if not command.entrypoint and not argv:
            argv = tuple(self.config.get("Cmd") or ())  # an engine forgets it with the entrypoint
            if not argv:
                raise ConfigError("no command was given", hint="without its entrypoint the image has none")
        return replace(
            self._container(command),
            command=argv,
            binds=(*command.binds, *_workspace(self.config, command.binds)),
            ports=command.ports or (() if argv else _ports(self.config, self.base.env)),
        )


def _workspace(config: Mapping[str, Any], binds: tuple[Bind, ...]) -> tuple[Bind, ...]:
    """./workspace, if it is there, the image works in a workspace, and nothing else was asked to be it."""
    here = Path("workspace")
    taken = any(bind.target.rstrip("/") == _WORKSPACE for bind in binds)
    if taken or config.get("WorkingDir") != _WORKSPACE or not here.is_dir():
        return ()
    return (Bind(source=here, target=_WORKSPACE, writable=True),)


def _ports(config: Mapping[str, Any], env: tuple[str, ...]) -> tuple[str, ...]:
    """For this host alone, as a token travels in the clear; SSH only where somebody may log in."""
    exposed = config.get("ExposedPorts") or {}
    found = ["127.0.0.1:8888:8888"] if _JUPYTER in exposed else []
    key = any(pair.startswith("SSH_PUBLIC_KEY=") for pair in env)
    return (*found, *(["127.0.0.1:2222:22"] if key and _SSH in exposed else []))


def _heard() -> SimpleQueue[int]:
    """Where from now on the signals come in that would have ended us: they are for the command."""
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    return signals
