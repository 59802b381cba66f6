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

from torchkiln.cli import console
from torchkiln.cli.asked import Asked
from torchkiln.cli.diff import DOCKER
from torchkiln.engines.container import Container, client_command, parse_port, run
from torchkiln.engines.daemon import Engine, find_engine, hands_on_gpus, image_in, load
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.oci.layout import open_layout
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
    name, config = _image(tag, output, matrix_file, engine)
    container = _container(name, config, asked, engine)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    argv = client_command(container, terminal=terminal)
    console.say(shlex.join(argv))
    if sys.stdin.isatty() and shutil.which("docker"):
        sys.stderr.flush()
        os.execvp("docker", argv)  # a terminal's keys, size and signals are its affair
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
    if asked.gpus not in (None, "all", "none") and not (asked.gpus or "").isdigit():
        faults.append(f"--gpus {asked.gpus}: not all, none or a number")
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


def _image(tag: str | None, output: Path, matrix_file: Path, engine: Engine) -> tuple[str, Mapping[str, Any]]:
    """What the engine calls the image, and its configuration; the image is in the engine then."""
    if tag is not None and tag.startswith(DOCKER):
        name = tag.removeprefix(DOCKER)
        told = image_in(engine, name)
        if told is None:
            raise ConfigError(f"{name}: no such image in the engine at {engine.host}", hint="docker image ls")
        return name, told.get("Config") or {}
    repository = _repository(matrix_file)
    try:
        image = open_layout(output).image(tag)
    except ConfigError:
        told = image_in(engine, f"{repository}:{tag}") if tag else None
        if told is None:
            raise
        return f"{repository}:{tag}", told.get("Config") or {}  # built there, and never in a layout
    # A digest is no name, so an image that has none in the layout gets its digest's first characters.
    name = f"{repository}:{image.ref.removeprefix('sha256:')[:12] if ':' in image.ref else image.ref}"
    there = image_in(engine, name)
    if there is None or there["Id"] not in (image.manifest, image.config_digest):
        was = "" if there is None else f", which was {there['Id'][:19]}"
        console.say(f"loading {image.ref} into {engine.host} as {name}{was}")
        with console.progress(quiet=not sys.stderr.isatty()) as observer:
            load(image, (name,), engine, observer)
    return name, image.config.get("config") or {}


def _repository(matrix_file: Path) -> str:
    from torchkiln import facts, matrix

    return matrix.read(matrix_file, facts.load()).repository


def _container(name: str, config: Mapping[str, Any], asked: Asked, engine: Engine) -> Container:
    """What was asked, and what is sensible where nothing was."""
    command = asked.command
    if not asked.entrypoint and not command:
        command = tuple(config.get("Cmd") or ())  # an engine forgets it with the entrypoint
        if not command:
            raise ConfigError("no command was given", hint="without its entrypoint the image has none")
    return Container(
        image=name,
        command=command,
        entrypoint=asked.entrypoint,
        env=asked.env,
        user=asked.user,
        workdir=asked.workdir,
        binds=(*asked.binds, *_workspace(config, asked.binds)),
        ports=asked.ports or (() if command else _ports(config, asked.env)),
        gpus=_gpus(asked.gpus, engine),
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


def _gpus(asked: str | None, engine: Engine) -> str:
    """For Docker's --gpus; where nothing was asked all, if there are some and the engine hands them on."""
    if asked is not None:
        if (
            asked not in ("none", "0") and engine.kind == "Podman"
        ):  # 4.3 passes over the request without a word
            raise ToolMissing(
                f"Podman {engine.version} gives no GPUs to who asks as Docker's clients do",
                hint="podman run --device nvidia.com/gpu=all, by its own client",
            )
        return "" if asked in ("none", "0") else asked
    if not Path("/dev/nvidiactl").exists():
        return ""
    if hands_on_gpus(engine):
        return "all"
    console.say("this host has GPUs, but the engine hands on none: it lacks nvidia-container-toolkit")
    return ""


def _heard() -> SimpleQueue[int]:
    """Where from now on the signals come in that would have ended us: they are for the command."""
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.put(number))
    return signals
