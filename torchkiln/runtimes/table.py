"""Lists the runtimes for `run` and `smoke`. To add a runtime, write a module and add a row here."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torchkiln.docker.daemon import Engine, find_engine, gpu_support, image_in, load
from torchkiln.errors import ConfigError
from torchkiln.runtimes import docker
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Bind, Command, Exited, RuntimeSettings, Streams
from torchkiln.runtimes.docker import Container, client_command, parse_port
from torchkiln.runtimes.driver import killed_for_memory
from torchkiln.runtimes.runtime import DOCKER, ImageSource, Runtime, RuntimeListener
from torchkiln.runtimes.unpacked import UnpackedRuntime

_WORKSPACE = "/workspace"
_JUPYTER, _SSH = "8888/tcp", "22/tcp"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRuntime:
    """A local or remote engine."""

    what: str
    in_engine: bool = True

    def check(self, command: Command, settings: RuntimeSettings) -> None:
        faults = []
        try:
            parse_gpus(settings.gpus)
        except ConfigError as error:
            faults.append(error.message)
        for bind in command.binds:
            if not bind.source.exists():
                faults.append(f"cannot mount {bind.source}: no such file or directory")
        for port in command.ports:
            try:
                parse_port(port)
            except ConfigError as error:
                faults.append(error.message)
        if faults:
            raise ConfigError.of(faults)

    def ready(
        self, source: ImageSource, settings: RuntimeSettings, listener: RuntimeListener
    ) -> ImageInEngine:
        parse_gpus(settings.gpus)
        engine = find_engine(builds=False)
        gpus, cdi = gpus_on(engine, settings.gpus, listener)
        name, config = image_on(engine, source, listener)
        base = Container(
            image=name, command=(), env=settings.env, gpus=gpus, cdi=cdi, shm_size=settings.shm_size
        )
        return ImageInEngine(engine=engine, base=base, config=config, listener=listener)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInEngine:
    """An image in an engine; `base` has the settings that all its containers share."""

    engine: Engine
    base: Container
    config: Mapping[str, Any] = field(hash=False)
    listener: RuntimeListener

    @property
    def runtime(self) -> str:
        """`docker` or `podman`."""
        return self.engine.kind.lower()

    def captured(self, command: Command, *, timeout_s: float, on_line: OnLine) -> Exited:
        """See RunnableImage; binds are copied into the container, because the engine may be remote."""
        container = replace(self._container(command), files=command.binds)
        return docker.captured(container, self.engine, timeout_s=timeout_s, on_line=on_line)

    def passed_through(self, command: Command, streams: Streams) -> int:
        """See RunnableImage. Shows the `docker run` line; on a terminal, executes that line."""
        container = self._with_defaults(command)
        interactive = streams.stdin.isatty()
        podman_at = self.engine.host if self.engine.kind == "Podman" else ""
        terminal = interactive and streams.stdout.isatty()
        argv = client_command(container, terminal=terminal, podman_at=podman_at)
        self.listener.say(shlex.join(argv))
        if interactive and shutil.which(argv[0]):
            streams.stderr.flush()
            os.execvp(argv[0], argv)  # the client handles a terminal's keys, size and signals
        return docker.run(
            container,
            self.engine,
            stdin=None if interactive else streams.stdin.fileno(),
            stdout=streams.stdout,
            stderr=streams.stderr,
            signals=_queued_signals(),
        )

    def killed_for_memory(self) -> int:
        """See RunnableImage; known for a local engine only."""
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

    def _with_defaults(self, command: Command) -> Container:
        """A container for *command*, with the default ports and the default mount of ./workspace."""
        argv = command.argv
        if not command.entrypoint and not argv:
            argv = tuple(self.config.get("Cmd") or ())  # engines drop Cmd if the entrypoint is replaced
            if not argv:
                raise ConfigError(
                    "no command specified", hint="add a command: without its entrypoint the image has none"
                )
        return replace(
            self._container(command),
            command=argv,
            binds=(*command.binds, *_workspace(self.config, command.binds)),
            ports=command.ports or (() if argv else _ports(self.config, self.base.env)),
        )


def image_on(engine: Engine, source: ImageSource, listener: RuntimeListener) -> tuple[str, Mapping[str, Any]]:
    """Load the image of *source* into *engine* if it is missing; return its name there and its config."""
    if source.ref is not None and source.ref.startswith(DOCKER):
        name = source.ref.removeprefix(DOCKER)
        present = image_in(engine, name)
        if present is None:
            raise ConfigError(
                f"{name}: no such image in the engine at {engine.host}", hint="see `docker image ls`"
            )
        return name, present.get("Config") or {}
    repository = source.repository()
    try:
        image = source.read()
    except ConfigError:
        present = image_in(engine, f"{repository}:{source.ref}") if source.ref else None
        if present is None:
            raise
        return f"{repository}:{source.ref}", present.get("Config") or {}  # built in the engine
    # A digest is not a valid tag, so an image without a tag gets the first characters of its digest.
    name = f"{repository}:{image.ref.removeprefix('sha256:')[:12] if ':' in image.ref else image.ref}"
    present = image_in(engine, name)
    if present is None or present["Id"] not in (image.manifest, image.config_digest):
        replaced = "" if present is None else f", replacing {present['Id'][:19]}"
        listener.say(f"loading {image.ref} into {engine.host} as {name}{replaced}")
        with listener.progress() as observer:
            load(image, (name,), engine, observer)
    return name, image.config.get("config") or {}


def parse_gpus(text: str | None) -> str | None:
    """Check *text*: `all`, `none`, `2` or `device=0,GPU-3f…`; returned unchanged.

    :raises ConfigError: *text* is invalid.
    """
    if text is not None and not re.fullmatch(r"all|none|\d{1,4}|device=[\w.:-]+(,[\w.:-]+)*", text):
        raise ConfigError(f"--gpus {text}: must be all, none, a number or device=ID,ID")
    return text


def gpus_on(engine: Engine, requested: str | None, listener: RuntimeListener) -> tuple[str, bool]:
    """`gpus` and `cdi` of a `Container`. If *requested* is None: all GPUs, if *engine* supports them."""
    local = engine.host.startswith("unix:")
    absent = requested is None and local and not Path("/dev/nvidiactl").exists()
    if requested in ("none", "0") or absent:
        return "", False
    support = gpu_support(engine)
    if requested is not None or support:
        return requested or "all", support == "cdi" or engine.kind == "Podman"
    if local:
        listener.say(
            "this host has GPUs, but the engine does not support them: install nvidia-container-toolkit,"
            " or create a CDI specification"
        )
    return "", False


def _workspace(config: Mapping[str, Any], binds: tuple[Bind, ...]) -> tuple[Bind, ...]:
    """The mount of ./workspace at /workspace.

    Empty if ./workspace is not a folder, WorkingDir is not /workspace, or *binds* has a mount at /workspace.
    """
    here = Path("workspace")
    taken = any(bind.target.rstrip("/") == _WORKSPACE for bind in binds)
    if taken or config.get("WorkingDir") != _WORKSPACE or not here.is_dir():
        return ()
    return (Bind(source=here, target=_WORKSPACE, writable=True),)


def _ports(config: Mapping[str, Any], env: tuple[str, ...]) -> tuple[str, ...]:
    """The default ports: on localhost only, because Jupyter's token is not encrypted; SSH only with a key."""
    exposed = config.get("ExposedPorts") or {}
    found = ["127.0.0.1:8888:8888"] if _JUPYTER in exposed else []
    key = any(pair.startswith("SSH_PUBLIC_KEY=") for pair in env)
    return (*found, *(["127.0.0.1:2222:22"] if key and _SSH in exposed else []))


def _queued_signals() -> SimpleQueue[int]:
    """A queue that receives this process's SIGINT, SIGTERM and SIGHUP from now on, for the command."""
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    return signals


RUNTIMES: Mapping[str, Runtime] = {
    "rootfs": UnpackedRuntime(what="in Linux namespaces, without an engine"),
    "docker": EngineRuntime(what="in a Docker or Podman engine"),
}
