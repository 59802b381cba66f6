"""Runs a command in a container of a Docker engine, and removes the container.

`run` passes streams and signals through with the Docker SDK. A terminal needs the Docker client instead: see
`client_command`.

Podman's Docker API ignores device requests (issue 19338 of containers/podman), so there a container with GPUs
is created by CDI with Podman's own API at the same socket. Tested with Podman 4.3.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import socket as sockets
import tarfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from signal import SIGKILL
from typing import Any

from torchkiln.docker.daemon import CDI_KIND, Engine, connected
from torchkiln.errors import ConfigError, KilnError, ToolMissing
from torchkiln.runtimes.capture import LineSink, OnLine, Sink, Tail
from torchkiln.runtimes.command import Bind, Exited

_TIMEOUT = 60  # seconds until a request must be answered; attached streams have no timeout
_CHUNK = 1 << 16
_PORT_IN_USE = "port is already allocated|address already in use"
_HINTS = (  # by the engine's error message
    (_PORT_IN_USE, "publish another port of the host: -p 127.0.0.1:8889:8888"),
    (
        "CDI device",
        "create a CDI specification of the GPU: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        "could not select device driver|nvidia",
        "the engine does not support GPUs: install nvidia-container-toolkit on its host, or pass --gpus none",
    ),
    ("unable to find user", "the image has no such user: pass a numeric --user UID:GID"),
    ("bind source path does not exist", "the path must exist on the engine's host"),
)
_STDERR = 2  # the number of stderr in the frames that the engine sends
_CREATE = "/v4.0.0/libpod/containers/create"  # the oldest API with CDI; newer versions support it too


def captured(container: Container, engine: Engine, *, timeout_s: float, on_line: OnLine) -> Exited:
    """Run *container* without input; it is killed after *timeout_s* seconds. Returns the end of its stderr.

    Each line of stdout is passed to *on_line* when it is complete.

    :raises ConfigError: as `run`.
    :raises ToolMissing: as `run`.
    """
    out, err, signals, timed_out = LineSink(on_line), Tail(), SimpleQueue[int](), threading.Event()

    def kill() -> None:
        timed_out.set()
        signals.put(SIGKILL)

    timer = threading.Timer(timeout_s, kill)
    timer.daemon = True
    timer.start()
    try:
        code = run(container, engine, stdin=None, stdout=out, stderr=err, signals=signals)
    finally:
        timer.cancel()
    out.close()
    return Exited(code=code, stdout=b"", stderr=err.getvalue(), timed_out=timed_out.is_set())


def run(
    container: Container,
    engine: Engine,
    *,
    stdin: int | None,
    stdout: Sink,
    stderr: Sink,
    signals: SimpleQueue[int],
) -> int:
    """Run *container* on *engine* and return its exit code: 128 plus the number of a signal that killed it.

    Signals that are put into *signals* meanwhile are sent to the command. A repeated signal kills it, because
    process 1 ignores signals that it has no handler for.

    :param stdin: a descriptor to read from; None: the command gets no input.
    :raises ConfigError: a port, a bind or another option is invalid.
    :raises ToolMissing: the engine does not start the container, or the connection is lost.
    """
    from docker.errors import APIError, DockerException

    try:
        with connected(engine, _TIMEOUT) as client:
            files = _archive(container.files)
            name = _create(client, container, engine, stdin is not None)
            try:
                if container.files:
                    client.api.put_archive(name, "/", files)
                return _follow(client.api, name, engine, stdin, (stdout, stderr), signals)
            finally:
                with contextlib.suppress(DockerException, OSError):  # a started container removes itself
                    client.api.remove_container(name, force=True, v=True)
    except APIError as error:
        reason = str(error.explanation or error)
        if code := _not_executed(reason):
            stderr.write(f"{reason.strip()}\n".encode())
            return code
        raise _refused(engine, reason, error.is_client_error()) from error
    except BrokenPipeError:
        raise  # stdout or stderr is closed, not the connection to the engine
    except (DockerException, OSError) as error:
        raise ToolMissing(
            f"lost the connection to the engine at {engine.host}: {error}", hint="run: docker ps --all"
        ) from error


def _create(client: Any, container: Container, engine: Engine, open_stdin: bool) -> str:
    from docker.types import Mount

    ports: dict[str, Any] = {}
    for port in container.ports:
        for inside, outside in parse_port(port).items():
            ports.setdefault(inside, []).extend(outside or [None])
    if engine.kind == "Podman" and container.gpus:
        return create(client.api, container, ports, open_stdin=open_stdin)
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
        stdin_open=open_stdin,
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
    selected = {"device_ids": ids.split(",")} if ids else {"count": -1 if kind == "all" else int(kind)}
    return [DeviceRequest(capabilities=[["gpu"]], **selected)]


def _archive(files: Iterable[Bind]) -> bytes:
    """A tar of *files* at their paths in the container, owned by root."""

    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if "__pycache__" in member.name.split("/") else member

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for file in files:
            tar.add(file.source, file.target.lstrip("/"), filter=owned_by_root)
    return out.getvalue()


def _follow(
    api: Any,
    name: str,
    engine: Engine,
    stdin: int | None,
    outputs: tuple[Sink, Sink],
    signals: SimpleQueue[int],
) -> int:
    """Start the container, and pass streams and signals through until it is removed."""
    from docker.errors import NotFound

    # Events and streams are opened before the start, because the container may exit at once. The events are
    # filtered here and not by the engine, because Podman's filter has other names for actions ("died").
    events = api.events(filters={"container": name}, decode=True)
    attached = api.attach_socket(name, {"stdin": stdin is not None, "stdout": 1, "stderr": 1, "stream": 1})
    connection: sockets.socket = getattr(attached, "_sock", attached)
    connection.settimeout(None)
    response = getattr(attached, "_response", attached)  # holds the connection; the SDK never closes it
    with contextlib.closing(events), contextlib.closing(response):
        api.start(name)
        if stdin is not None:
            threading.Thread(target=_send_stdin, args=(stdin, connection), daemon=True).start()
        threading.Thread(target=_forward_signals, args=(engine, name, signals), daemon=True).start()
        try:
            _copy_output(attached, outputs)
            code = _exit_code(events, engine)
            with contextlib.suppress(NotFound):  # the container is removed already
                api.wait(name, condition="removed")
            return code
        finally:
            signals.put(0)


def _copy_output(attached: Any, outputs: tuple[Sink, Sink]) -> None:
    from docker.utils.socket import frames_iter

    for number, chunk in frames_iter(attached, tty=False):  # type: ignore[no-untyped-call]
        out = outputs[number == _STDERR]
        out.write(chunk)
        out.flush()


def _exit_code(events: Iterator[dict[str, Any]], engine: Engine) -> int:
    """Wait until the command ends, and return its exit code."""
    for event in events:
        if event["Action"] == "die":
            return int(event["Actor"]["Attributes"]["exitCode"])
    raise ToolMissing(f"the engine at {engine.host} stopped before the command", hint="run: docker ps --all")


def _send_stdin(stdin: int, connection: sockets.socket) -> None:
    with contextlib.suppress(OSError):  # the command has ended, or closed its input
        while chunk := os.read(stdin, _CHUNK):
            connection.sendall(chunk)
        connection.shutdown(sockets.SHUT_WR)


def _forward_signals(engine: Engine, name: str, signals: SimpleQueue[int]) -> None:
    """Send each signal to the command until a 0 is read, on a second connection: the first one is in use."""
    from docker.errors import DockerException

    sent = set()
    while number := signals.get():
        with contextlib.suppress(DockerException, OSError), connected(engine, _TIMEOUT) as client:
            client.api.kill(name, int(SIGKILL) if number in sent else number)
        sent.add(number)


def _not_executed(reason: str) -> int:
    """126 or 127, as in shells, if the engine could not execute the command; else 0."""
    if "executable file not found" in reason or re.search(r'exec: ".*": stat .*no such file', reason):
        return 127
    return 126 if re.search(r'exec: ".*": .*(permission denied|is a directory)', reason) else 0


def _refused(engine: Engine, reason: str, client_error: bool) -> KilnError:
    """The error for a request that *engine* refused; *client_error*: it answered with a status of 4xx."""
    hint = next(
        (hint for words, hint in _HINTS if re.search(words, reason)), "see the engine's message above"
    )
    # For a port in use Docker answers 5xx and Podman 4xx.
    of_host = re.search(f"{_PORT_IN_USE}|CDI device", reason)
    invalid = (client_error and not of_host) or "unable to find user" in reason
    return (ConfigError if invalid else ToolMissing)(
        f"the engine at {engine.host} cannot run the container: {reason}", hint=hint
    )


def create(api: Any, container: Container, ports: dict[str, Any], *, open_stdin: bool) -> str:
    """Create *container* with the SDK's client *api*, and return its id.

    :param ports: in the SDK's form, such as "8888/tcp" → ports of the host; None: any free port.
    :raises APIError: Podman refuses.
    """
    spec = {
        "image": container.image,
        "command": list(container.command) or None,
        "env": dict(line.partition("=")[::2] for line in container.env),
        "user": container.user,
        "work_dir": container.workdir,
        "mounts": [
            {
                "type": "bind",
                "source": str(bind.source.absolute()),
                "destination": bind.target,
                "options": ["rbind", "rw" if bind.writable else "ro"],
            }
            for bind in container.binds
        ],
        "portmappings": [_mapping(inside, host) for inside, hosts in ports.items() for host in hosts],
        "publish_image_ports": False,
        "devices": [{"path": name} for name in cdi_devices(container.gpus)],
        "shm_size": container.shm_size,
        "stdin": open_stdin,
        "remove": True,
    }
    if not container.entrypoint:
        spec["entrypoint"] = [""]
    body = {name: value for name, value in spec.items() if value is not None}
    response = api.post(f"{api.base_url}{_CREATE}", json=body, timeout=api.timeout)
    api._raise_for_status(response)
    return str(response.json()["Id"])


def _mapping(inside: str, host: Any) -> dict[str, Any]:
    """One of `portmappings` in Podman's API; *host* is None, "8888", or ("127.0.0.1", "8888")."""
    number, _, protocol = inside.partition("/")
    address, port = host if isinstance(host, tuple) else ("", host)
    mapping: dict[str, Any] = {"container_port": int(number), "protocol": protocol or "tcp"}
    return mapping | ({"host_port": int(port)} if port else {}) | ({"host_ip": address} if address else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """A container to run; `ports` are in the format of Docker's -p.

    `gpus` is "", "all", a number, or "device=" and numbers or UUIDs, separated by commas; with `cdi` they are
    requested by their CDI names.
    """

    image: str
    command: tuple[str, ...]
    entrypoint: bool = True  # False: without the image's entrypoint
    env: tuple[str, ...] = ()  # NAME=VALUE
    user: str | None = None
    workdir: str | None = None
    binds: tuple[Bind, ...] = ()
    ports: tuple[str, ...] = ()
    gpus: str = ""
    cdi: bool = False
    shm_size: int = 1 << 30
    files: tuple[Bind, ...] = ()  # copied into the container: a remote engine cannot mount local folders


def client_command(container: Container, *, terminal: bool, podman_at: str = "") -> list[str]:
    """The `docker run` command line that is equivalent to `docker.run`; with *terminal*, it has `--tty`.

    :param podman_at: the address of a Podman engine; only Podman's own client can request its GPUs.
    """
    argv = ["podman", "--url", podman_at] if podman_at and container.gpus else ["docker"]
    argv += ["run", "--rm", "--interactive", *(["--tty"] if terminal else [])]
    if container.gpus and container.cdi:
        argv += [word for name in cdi_devices(container.gpus) for word in ("--device", name)]
    elif container.gpus:  # the client parses the value as CSV
        argv += ["--gpus", f'"{container.gpus}"' if "," in container.gpus else container.gpus]
    argv += ["--shm-size", str(container.shm_size)]
    for bind in container.binds:
        argv += ["--mount", _mount_option(bind)]
    for option, values in (("--publish", container.ports), ("--env", container.env)):
        argv += [word for value in values for word in (option, value)]
    for option, value in (("--user", container.user), ("--workdir", container.workdir)):
        argv += [option, value] if value else []
    argv += [] if container.entrypoint else ["--entrypoint", ""]
    return [*argv, container.image, *container.command]


def cdi_devices(gpus: str) -> list[str]:
    """Docker's --gpus as CDI names: "all", "2" (the first two GPUs), "device=1,GPU-3f…"."""
    kind, _, ids = gpus.partition("=")
    names = ids.split(",") if ids else [kind] if kind == "all" else [str(index) for index in range(int(kind))]
    return [f"{CDI_KIND}={name}" for name in names]


def parse_port(text: str) -> dict[str, Any]:
    """Parse `[[IP:]HOST:]CONTAINER[/udp]` into the SDK's form.

    :raises ConfigError: *text* is not a valid port mapping.
    """
    from docker.utils.ports import build_port_bindings

    try:
        bindings: dict[str, Any] = build_port_bindings([text])
        for number in re.findall(r"\d+", text.rpartition("]")[2]):
            if int(number) > 65535:
                raise ValueError(f"port {number} is out of range (0 to 65535)")
    except ValueError as error:
        hint = "write 8888:8888, or 127.0.0.1:8888:8888"
        raise ConfigError(f"--publish {text}: {error}", hint=hint) from None
    return bindings


def _mount_option(bind: Bind) -> str:
    """The value of --mount, which Docker's client parses as CSV."""
    words = ["type=bind", f"source={bind.source.absolute()}", f"target={bind.target}"]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([*words, *([] if bind.writable else ["readonly"])])
    return line.getvalue()
