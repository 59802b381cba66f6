"""Checks whether each service answers, for `doctor` and Docker's HEALTHCHECK."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from workplace.messages import message
from workplace.settings import runtime_folder
from workplace.supervision import Service

TIMEOUT = 4.0  # seconds; HEALTHCHECK has 5
_FILE = "services.json"
_ENTRYPOINT = "/opt/torchkiln/entrypoint"


def expect(folder: Path, services: Sequence[Service]) -> None:
    """Write to *folder* which services must answer."""
    values = [{"name": service.name, "port": service.port, "path": service.path} for service in services]
    (folder / _FILE).write_text(json.dumps(values))


def states(folder: Path) -> Iterator[tuple[str, str]]:
    """The name of each service, and its fault; empty if it answers.

    :raises FileNotFoundError: no service was started.
    """
    for service in json.loads((folder / _FILE).read_text("utf-8")):
        yield service["name"], _fault(service["port"], service["path"])


def main() -> int:
    """Exit code 0 if each service answers, or if the container runs a command of the user's."""
    try:
        faults = [f"{name}: {fault}" for name, fault in states(runtime_folder()) if fault]
    except FileNotFoundError:
        # The last argument of tini is the entrypoint only if the container has no command.
        command = Path("/proc/1/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        faults = [message("health.early")] if command[-1].decode() == _ENTRYPOINT else []
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _fault(port: int, path: str | None) -> str:
    """Why the service on *port* does not answer; empty if it does. A proxy in the environment is ignored."""
    try:
        if path is None:
            with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
                return "" if connection.recv(4) == b"SSH-" else message("health.not-ssh", port=port)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
            connection.request("GET", path)
            status = connection.getresponse().status
            return "" if status == 200 else message("health.status", port=port, status=status)
    except (OSError, http.client.HTTPException) as error:
        return message("health.error", port=port, error=error)
