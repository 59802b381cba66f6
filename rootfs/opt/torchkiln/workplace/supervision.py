"""Starts the services, restarts those that exit, and stops all of them together."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from workplace.messages import message

GRACE = 1.0  # seconds between SIGTERM and SIGKILL, well below the 10 of `docker stop`
POLL = 0.2  # seconds
MOST = 3  # exits of one service within WITHIN seconds, after which the container exits
WITHIN = 60.0
NOT_STARTED = 127  # exit code, as shells use it


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """A program that keeps running. `path`: the HTTP path for health checks; None: it is an SSH server.

    `ids`: the uid and gid as which it runs, if not those of this process.
    """

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    port: int
    path: str | None
    ids: tuple[int, int] | None = None


class _NotStarted(Exception):
    """A service that could not be started, and why."""


def supervise(services: Sequence[Service], *, restart: bool, say: Callable[[str], None]) -> int:
    """Run *services* until one fails for good; return its exit code as shells do. SystemExit stops all."""
    running: dict[str, tuple[Service, subprocess.Popen[bytes]]] = {}
    exits: dict[str, list[float]] = {service.name: [] for service in services}
    try:
        for service in services:
            running[service.name] = (service, _start(service))
        while True:
            time.sleep(POLL)
            for name, (service, process) in running.items():
                if (status := process.poll()) is None:
                    continue
                now = time.monotonic()
                recent = [when for when in exits[name] if now - when < WITHIN] + [now]
                exits[name] = recent
                if not restart or len(recent) >= MOST:
                    key = "service.ends-often" if len(recent) > 1 else "service.ends"
                    what = _describe(status)
                    say(message(key, name=name, what=what, count=len(recent), seconds=WITHIN))
                    return _code(status)
                say(message("service.restarts", name=name, what=_describe(status)))
                running[name] = (service, _start(service))
    except _NotStarted as why:
        say(str(why))
        return NOT_STARTED
    finally:
        _end([process for _, process in running.values()])


def _start(service: Service) -> subprocess.Popen[bytes]:
    try:
        environ = dict(service.environ)
        if service.ids is None:
            return subprocess.Popen(service.command, env=environ, stdin=subprocess.DEVNULL)
        uid, gid = service.ids
        return subprocess.Popen(
            service.command, env=environ, stdin=subprocess.DEVNULL, user=uid, group=gid, extra_groups=[]
        )
    except OSError as error:
        program = service.command[0]
        raise _NotStarted(
            message("service.not-started", name=service.name, program=program, error=error.strerror)
        ) from error


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Send SIGTERM to all, then SIGKILL to those that are still running."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _describe(status: int) -> str:
    if status >= 0:
        return message("exit.status", status=status)
    names = {known.value: known.name for known in signal.Signals}  # most real-time signals have no name
    key = "exit.memory" if -status == signal.SIGKILL else "exit.signal"
    return message(key, signal=names.get(-status) or message("exit.number", number=-status))


def _code(status: int) -> int:
    """The container's exit code: never 0, because a service should not exit."""
    return 128 - status if status < 0 else status or 1
