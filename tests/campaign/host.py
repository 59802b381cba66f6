"""Faults of the machine during a build: disks, file descriptors, limits, clocks. Each occurs in one run."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.campaign.scene import Ran, Trial
from tests.campaign.tracer import OPS
from tests.campaign.trials import Disturbance

YEAR = 365.25 * 86400
_FULL = r"(?s)error: .*(no space|No space).*hint: .*(free space|free disk space)"
_READ_ONLY = "(?s)error: .*Read-only file system.*hint: "


def can_mount() -> bool:
    """Whether this process may create a mount namespace and mount in it, which requires root."""
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("nsenter")):
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


def faults() -> Iterator[Disturbance]:
    """Yield each fault with the expected result.

    Faults that need a mount are omitted if this process cannot mount.
    """
    if can_mount():
        yield _mounted(
            "full disk under the cache, small wheels", _FULL, _tmpfs("cache", "1m"), _grow("cache")
        )
        yield _mounted("full disk under the cache, downloads", _FULL, _tmpfs("cache", "20m"), _grow("cache"))
        yield _mounted("full disk under the cache, layers", _FULL, _tmpfs("cache", "70m"), _grow("cache"))
        yield _mounted("full disk under the output", _FULL, _tmpfs("output", "30m"), _grow("output"))
        yield _mounted("read-only cache", _READ_ONLY, _read_only("cache"), _writable("cache"))
        yield _mounted("read-only output", _READ_ONLY, _read_only("output"), _writable("output"))
    for count in (10, 24, 40):
        yield _limited(
            f"{count} file descriptors", resource.RLIMIT_NOFILE, count, "Too many open files|cannot"
        )
    yield _limited("files of 2 MB at most", resource.RLIMIT_FSIZE, 2_000_000, "File too large")
    yield _limited("300 MB of address space", resource.RLIMIT_AS, 300_000_000, "ulimit -v is 300 MB")
    yield _limited("2 GB of address space", resource.RLIMIT_AS, 2_000_000_000, "", codes=(0,))
    for op, number in (
        ("write", errno.EIO),
        ("rename", errno.EIO),
        ("sync", errno.EIO),
        ("link", errno.EDQUOT),
    ):
        yield _failing(op, number)
    back, ahead = 1990 * YEAR - 1970 * YEAR, 2090 * YEAR - 1970 * YEAR
    yield _clock("clock in 1990", f"{back - time.time():.0f} 0 0")
    yield _clock("clock in 2090", f"{ahead - time.time():.0f} 0 0")
    yield _clock("clock that jumps a year to and fro", f"0 {YEAR:.0f} 0.3")
    yield _clock("clock that jumps back by ten years", f"0 {-10 * YEAR:.0f} 0.5")
    yield _disturbance("times in the cache from 1971 and 2099", (0,), "", _strange_times, start="part")


def _disturbance(
    name: str,
    codes: tuple[int, ...],
    sentence: str,
    run: Callable[[Trial], Ran],
    *,
    start: str = "empty",
    around: Callable[[Trial], AbstractContextManager[None]] = lambda trial: contextlib.nullcontext(),
    undo: Callable[[Trial], None] = lambda trial: None,
) -> Disturbance:
    return Disturbance(
        group="host",
        name=name,
        codes=codes,
        sentence=sentence,
        start=start,
        run=run,
        around=around,
        undo=undo,
    )


def _limited(
    name: str, what: int, limit: int, sentence: str, *, codes: tuple[int, ...] = (0, 6, 8)
) -> Disturbance:
    def limits() -> None:
        resource.setrlimit(what, (limit, limit))

    return _disturbance(
        name, codes, f"^torchkiln: |{sentence}|cannot be loaded", lambda trial: trial.run(preexec=limits)
    )


def _failing(op: str, number: int) -> Disturbance:
    """Every operation *op* fails with the error *number*, which file systems rarely report."""
    part = "/dist/" if op in ("sync", "link") else "/cache/"
    environ = {"TRACER_FAIL": f"{part} {OPS.index(op)} {number}"}
    codes = (0,) if op == "link" else (6,)  # torchkiln copies a file if it cannot make a hard link
    sentence = "" if op == "link" else os.strerror(number)
    name = f"{errno.errorcode[number]} at each {op}"
    return _disturbance(name, codes, sentence, lambda trial: trial.run(environ=environ))


def _clock(name: str, offsets: str) -> Disturbance:
    return _disturbance(name, (0,), "", lambda trial: trial.run(environ={"TRACER_CLOCK": offsets}))


def _strange_times(trial: Trial) -> Ran:
    for number, path in enumerate(sorted(trial.cache.rglob("*"))):
        if path.is_file() and path.stat().st_nlink == 1:
            when = (2099 - 1970 if number % 2 else 1) * YEAR
            os.utime(path, (when, when))
    return trial.run()


# --- mounts, in a namespace that ends with its first process ---------------------------------


def _mounted(
    name: str, sentence: str, mount: Callable[[Trial], None], undo: Callable[[Trial], None]
) -> Disturbance:
    @contextlib.contextmanager
    def around(trial: Trial) -> Iterator[None]:
        with subprocess.Popen(
            ["unshare", "-m", "--propagation=private", "sh", "-c", "echo ready; exec sleep 3600"],
            stdout=subprocess.PIPE,
            cwd="/",
        ) as holder:
            try:
                assert holder.stdout
                holder.stdout.readline()
                trial.prefix = ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--")
                trial.root = Path(f"/proc/{holder.pid}/root")
                mount(trial)
                yield
            finally:
                holder.kill()

    return _disturbance(name, (6,), sentence, lambda trial: trial.run(), around=around, undo=undo)


def _do(trial: Trial, *command: str) -> None:
    subprocess.run([*trial.prefix, *command], check=True, capture_output=True)


def _folder(trial: Trial, which: str) -> str:
    """The folder to mount on: the cache, or the parent of the output, because the build makes the output."""
    folder = trial.cache if which == "cache" else trial.output.parent
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _tmpfs(which: str, size: str) -> Callable[[Trial], None]:
    return lambda trial: _do(
        trial, "mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "campaign", _folder(trial, which)
    )


def _grow(which: str) -> Callable[[Trial], None]:
    return lambda trial: _do(trial, "mount", "-o", "remount,size=400m", _folder(trial, which))


def _read_only(which: str) -> Callable[[Trial], None]:
    def mount(trial: Trial) -> None:
        folder = _folder(trial, which)
        _do(trial, "mount", "--bind", folder, folder)
        _do(trial, "mount", "-o", "remount,ro,bind", folder)

    return mount


def _writable(which: str) -> Callable[[Trial], None]:
    return lambda trial: _do(trial, "mount", "-o", "remount,rw,bind", _folder(trial, which))
