"""Running services → whether each of them answers; Docker's HEALTHCHECK asks."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from workplace.settings import runtime_folder
from workplace.supervision import Service

LIMIT = 4.0  # seconds; the engine's own is 5
_FILE = "services.json"
_ENTRYPOINT = "/opt/torchkiln/entrypoint"


def expect(folder: Path, services: Sequence[Service]) -> None:
    """Note in *folder* who has to answer."""
    told = [{"name": one.name, "port": one.port, "path": one.path} for one in services]
    (folder / _FILE).write_text(json.dumps(told))


def states(folder: Path) -> Iterator[tuple[str, str]]:
    """Each service that was asked for, and what is wrong with it, empty if nothing.

    :raises FileNotFoundError: none was started.
    """
    for one in json.loads((folder / _FILE).read_text("utf-8")):
        yield one["name"], _fault(one["port"], one["path"])


def main() -> int:
    """0: each service answers, or the container runs something else, of which we know nothing."""
    try:
        faults = [f"{name}: {fault}" for name, fault in states(runtime_folder()) if fault]
    except FileNotFoundError:
        # tini's last argument is the entrypoint only when no command was given.
        command = Path("/proc/1/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        faults = ["the services have not been started yet"] if command[-1].decode() == _ENTRYPOINT else []
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _fault(port: int, path: str | None) -> str:
    """Asked directly: a proxy of the environment has no part in it."""
    try:
        if path is None:
            with socket.create_connection(("127.0.0.1", port), LIMIT) as connection:
                return "" if connection.recv(4) == b"SSH-" else f"port {port} does not speak SSH"
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)) as asked:
            asked.request("GET", path)
            status = asked.getresponse().status
            return "" if status == 200 else f"port {port} answers {status}"
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}"
