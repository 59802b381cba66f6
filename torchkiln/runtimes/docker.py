"""An image in a Docker engine and a command → how the command ended; the container is gone then.

`run` passes streams and signals through by the SDK; terminals need a client's own line: docker_args.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket as sockets
import tarfile
import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from signal import SIGKILL
from typing import Any, BinaryIO

from torchkiln.docker.daemon import Engine, connected
from torchkiln.errors import ConfigError, KilnError, ToolMissing
from torchkiln.runtimes import podman
from torchkiln.runtimes.command import Bind, Exited
from torchkiln.runtimes.docker_args import Container, cdi_devices, parse_port

_SILENCE = 60  # seconds until an order must be answered; streams may be silent for ever
_PIECE = 1 << 16
_TAKEN = "port is already allocated|address already in use"
_HINTS = (
    (
        _TAKEN,
        "something else has that port: publish another one, -p 127.0.0.1:8889:8888",
    ),
    (
        "CDI device",
        "no CDI specification names that GPU: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        "could not select device driver|nvidia",
        "the engine hands on no GPUs: install nvidia-container-toolkit there, or run with --gpus none",
    ),
    ("unable to find user", "the image has no such user: write --user UID:GID in digits"),
    ("bind source path does not exist", "the engine runs where that folder is not: name one of its own host"),
)
_STDERR = 2  # the number of that stream in what the engine sends


def captured(container: Container, engine: Engine, *, timeout_s: float) -> Exited:
    """Run *container* as `run` does, without input, and keep what it says; killed after *timeout_s* seconds.

    :raises ConfigError: as `run`.
    :raises ToolMissing: as `run`.
    """
    out, err, signals, late = io.BytesIO(), io.BytesIO(), SimpleQueue[int](), threading.Event()

    def end() -> None:
        late.set()
        signals.put(SIGKILL)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        code = run(container, engine, stdin=None, stdout=out, stderr=err, signals=signals)
    finally:
        timer.cancel()
    return Exited(code=code, stdout=out.getvalue(), stderr=err.getvalue(), timed_out=late.is_set())


def run(
    container: Container,
    engine: Engine,
    *,
    stdin: int | None,
    stdout: BinaryIO,
    stderr: BinaryIO,
    signals: SimpleQueue[int],
) -> int:
    """Run *container* on *engine* to its end and give its code, 128 and the number where a signal ended it.

    What is put into *signals* meanwhile is sent to the command; the same number again kills it, for a command
    that is process 1 does not hear what it does not wait for.

    :param stdin: a descriptor to read from; None: the command reads nothing.
    :raises ConfigError: a port, a bind or the like is not as it must be.
    :raises ToolMissing: the engine does not start it, or ends before it does.
    """
    from docker.errors import APIError, DockerException

    try:
        with connected(engine, _SILENCE) as client:
            files = _archive(container.files)
            name = _create(client, container, engine, stdin is not None)
            try:
                if container.files:
                    client.api.put_archive(name, "/", files)
                return _follow(client.api, name, engine, stdin, (stdout, stderr), signals)
            finally:
                with contextlib.suppress(DockerException, OSError):  # it removes itself; if it ever started
                    client.api.remove_container(name, force=True, v=True)
    except APIError as error:
        told = str(error.explanation or error)
        if code := _not_executed(told):
            stderr.write(f"{told.strip()}\n".encode())
            return code
        raise _refused(engine, told, error.is_client_error()) from error
    except BrokenPipeError:
        raise  # nobody reads what the command says
    except (DockerException, OSError) as error:
        raise ToolMissing(f"the engine at {engine.host} was lost: {error}", hint="docker ps --all") from error


def _create(client: Any, container: Container, engine: Engine, reads: bool) -> str:
    from docker.types import Mount

    ports: dict[str, Any] = {}
    for port in container.ports:
        for inside, outside in parse_port(port).items():
            ports.setdefault(inside, []).extend(outside or [None])
    if engine.kind == "Podman" and container.gpus:
        return podman.create(client.api, container, ports, reads=reads)
    created = client.containers.create(
        container.image,
        list(container.command) or None,
        **({} if container.entrypoint else {"entrypoint": [""]}),
        environment=list(container.env),
        user=container.user,
        working_dir=container.workdir,
        mounts=[
            Mount(bind.target, str(bind.source.absolute()), type="bind", read_only=not bind.writable)
            for bind in container.binds
        ],
        ports=ports,
        device_requests=_device_requests(container),
        shm_size=container.shm_size,
        stdin_open=reads,
        auto_remove=True,
    )
    return str(created.id)


def _device_requests(container: Container) -> list[Any] | None:
    from docker.types import DeviceRequest

    if container.gpus in ("", "0"):
        return None
    if container.cdi:
        return [DeviceRequest(driver="cdi", device_ids=cdi_devices(container.gpus))]
    kind, _, ids = container.gpus.partition("=")
    chosen = {"device_ids": ids.split(",")} if ids else {"count": -1 if kind == "all" else int(kind)}
    return [DeviceRequest(capabilities=[["gpu"]], **chosen)]


def _archive(files: Iterable[Bind]) -> bytes:
    """A tar of *files*, by their places inside, root's."""

    def roots(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if "__pycache__" in member.name.split("/") else member

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for file in files:
            tar.add(file.source, file.target.lstrip("/"), filter=roots)
    return out.getvalue()


def _follow(
    api: Any,
    name: str,
    engine: Engine,
    stdin: int | None,
    outputs: tuple[BinaryIO, BinaryIO],
    signals: SimpleQueue[int],
) -> int:
    """Start it, pass everything through until it is gone."""
    from docker.errors import NotFound

    # Both before it starts, for it may have ended before anybody could ask.
    # Podman filters its events by names of its own ("died"), so the action is looked at here.
    events = api.events(filters={"container": name}, decode=True)
    wire = api.attach_socket(name, {"stdin": stdin is not None, "stdout": 1, "stderr": 1, "stream": 1})
    line: sockets.socket = getattr(wire, "_sock", wire)
    line.settimeout(None)
    answer = getattr(wire, "_response", wire)  # holds the connection, and the SDK closes it nowhere
    with contextlib.closing(events), contextlib.closing(answer):
        api.start(name)
        if stdin is not None:
            threading.Thread(target=_feed, args=(stdin, line), daemon=True).start()
        threading.Thread(target=_forward, args=(engine, name, signals), daemon=True).start()
        try:
            _pass_on(wire, outputs)
            code = _end(events, engine)
            with contextlib.suppress(NotFound):  # it is gone already
                api.wait(name, condition="removed")
            return code
        finally:
            signals.put(0)


def _pass_on(wire: Any, outputs: tuple[BinaryIO, BinaryIO]) -> None:
    from docker.utils.socket import frames_iter

    for number, piece in frames_iter(wire, tty=False):  # type: ignore[no-untyped-call]
        out = outputs[number == _STDERR]
        out.write(piece)
        out.flush()


def _end(events: Iterator[dict[str, Any]], engine: Engine) -> int:
    """The command's code, once it has ended."""
    for event in events:
        if event["Action"] == "die":
            return int(event["Actor"]["Attributes"]["exitCode"])
    raise ToolMissing(f"the engine at {engine.host} ended before the command", hint="docker ps --all")


def _feed(stdin: int, line: sockets.socket) -> None:
    """Everything from *stdin*, then its end."""
    with contextlib.suppress(OSError):  # the command is gone, or reads no more
        while piece := os.read(stdin, _PIECE):
            line.sendall(piece)
        line.shutdown(sockets.SHUT_WR)


def _forward(engine: Engine, name: str, signals: SimpleQueue[int]) -> None:
    """Each signal to the command, until 0 comes; with a connection of its own, for the other one is busy."""
    from docker.errors import DockerException

    heard = set()
    while number := signals.get():
        with contextlib.suppress(DockerException, OSError), connected(engine, _SILENCE) as client:
            client.api.kill(name, int(SIGKILL) if number in heard else number)
        heard.add(number)


def _not_executed(told: str) -> int:
    """126 or 127, as shells say it, where the engine could not execute the command."""
    if "executable file not found" in told or re.search(r'exec: ".*": stat .*no such file', told):
        return 127
    return 126 if re.search(r'exec: ".*": .*(permission denied|is a directory)', told) else 0


def _refused(engine: Engine, told: str, is_ours: bool) -> KilnError:
    """What the engine said, with what to do. *is_ours*: it says that the order was wrong."""
    hint = next(
        (hint for words, hint in _HINTS if re.search(words, told)), "the engine's own words stand above"
    )
    # Docker calls a taken port its own trouble, Podman the caller's.
    of_host = re.search(f"{_TAKEN}|CDI device", told)
    kind = ConfigError if (is_ours and not of_host) or "unable to find user" in told else ToolMissing
    return kind(f"the engine at {engine.host} does not run it: {told}", hint=hint)
