"""Services → processes that are started, watched, started again, and ended together."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

GRACE = 1.0  # seconds between SIGTERM and SIGKILL: `docker stop` shall not wait for its own limit
LOOK = 0.2  # seconds between two looks at the processes
MOST = 3  # deaths of one service within WITHIN seconds; after that it is no accident
WITHIN = 60.0
NOT_STARTED = 127  # exit code, as shells have it


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """A program that stays. `path`: what its port answers by HTTP; None: it speaks SSH."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    port: int
    path: str | None


class _NotStarted(Exception):
    """Which service could not be, and why."""


def supervise(services: Sequence[Service], *, restart: bool, say: Callable[[str], None]) -> int:
    """Run them until one dies for good; its exit code, as shells count. SystemExit ends them too."""
    running: dict[str, tuple[Service, subprocess.Popen[bytes]]] = {}
    deaths: dict[str, list[float]] = {service.name: [] for service in services}
    try:
        for service in services:
            running[service.name] = (service, _start(service))
        while True:
            time.sleep(LOOK)
            for name, (service, process) in running.items():
                if (status := process.poll()) is None:
                    continue
                now = time.monotonic()
                recent = [when for when in deaths[name] if now - when < WITHIN] + [now]
                deaths[name] = recent
                if not restart or len(recent) >= MOST:
                    often = f", {len(recent)} times within {WITHIN:.0f} s" if len(recent) > 1 else ""
                    say(f"{name} {_told(status)}{often}: the container ends")
                    return _code(status)
                say(f"{name} {_told(status)}: it is started again")
                running[name] = (service, _start(service))
    except _NotStarted as why:
        say(f"{why}: the container ends")
        return NOT_STARTED
    finally:
        _end([process for _, process in running.values()])


def _start(service: Service) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(service.command, env=dict(service.environ), stdin=subprocess.DEVNULL)
    except OSError as error:
        raise _NotStarted(
            f"{service.name} cannot be started: {service.command[0]}: {error.strerror}"
        ) from error


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to all, SIGKILL to those that stay."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _told(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    names = {known.value: known.name for known in signal.Signals}  # most real-time signals have none
    often = " (often for want of memory)" if -status == signal.SIGKILL else ""
    return f"was killed by {names.get(-status, f'signal {-status}')}{often}"


def _code(status: int) -> int:
    """Of a service that should not have ended at all, so never 0."""
    return 128 - status if status < 0 else status or 1
