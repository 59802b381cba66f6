"""`torchkiln run --runtime docker`: an image of the layout, or one that the engine has, in a container."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torchkiln.cli.shared import console
from torchkiln.cli.shared.docker_images import gpus_on, image_on, parse_gpus
from torchkiln.cli.shared.run_request import Asked
from torchkiln.docker.daemon import Engine, find_engine
from torchkiln.errors import ConfigError
from torchkiln.runtimes.docker import run
from torchkiln.runtimes.docker_args import Container, client_command, parse_port
from torchkiln.runtimes.rootfs import Bind

_WORKSPACE = "/workspace"
_JUPYTER, _SSH = "8888/tcp", "22/tcp"


def run_on_docker(tag: str | None, output: Path, matrix_file: Path, asked: Asked) -> int:
    """Run it, showing the line for Docker's client; the command's own code.

    :raises ConfigError: no such image, or an option that is none.
    :raises ToolMissing: no engine answers, or it does not start the container.
    """
    _check(asked)
    engine = find_engine(builds=False)
    name, config = image_on(engine, tag, output, matrix_file)
    container = _container(name, config, asked, engine)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    podman_at = engine.host if engine.kind == "Podman" else ""
    argv = client_command(container, terminal=terminal, podman_at=podman_at)
    console.say(shlex.join(argv))
    if sys.stdin.isatty() and shutil.which(argv[0]):
        sys.stderr.flush()
        os.execvp(argv[0], argv)  # a terminal's keys, size and signals are its affair
    return run(
        container,
        engine,
        stdin=None if sys.stdin.isatty() else sys.stdin.fileno(),
        stdout=sys.stdout.buffer,
        stderr=sys.stderr.buffer,
        signals=_heard(),
    )


def _check(asked: Asked) -> None:
    """All that can be known before an engine is asked."""
    faults = []
    try:
        parse_gpus(asked.gpus)
    except ConfigError as error:
        faults.append(error.message)
    for bind in asked.binds:
        if not bind.source.exists():
            faults.append(f"bind {bind.source}: no such file or folder")
    for port in asked.ports:
        try:
            parse_port(port)
        except ConfigError as error:
            faults.append(error.message)
    if faults:
        raise ConfigError.of(faults)


def _container(name: str, config: Mapping[str, Any], asked: Asked, engine: Engine) -> Container:
    """What was asked, and what is sensible where nothing was."""
    command = asked.command
    if not asked.entrypoint and not command:
        command = tuple(config.get("Cmd") or ())  # an engine forgets it with the entrypoint
        if not command:
            raise ConfigError("no command was given", hint="without its entrypoint the image has none")
    gpus, cdi = gpus_on(engine, asked.gpus)
    return Container(
        image=name,
        command=command,
        entrypoint=asked.entrypoint,
        env=asked.env,
        user=asked.user,
        workdir=asked.workdir,
        binds=(*asked.binds, *_workspace(config, asked.binds)),
        ports=asked.ports or (() if command else _ports(config, asked.env)),
        gpus=gpus,
        cdi=cdi,
        shm_size=asked.shm_size,
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
