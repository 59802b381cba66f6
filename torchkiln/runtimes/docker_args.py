"""Describes a container of an engine, and writes the `docker run` command line for it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Any

from torchkiln.docker.daemon import CDI_KIND
from torchkiln.errors import ConfigError
from torchkiln.runtimes.command import Bind


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
