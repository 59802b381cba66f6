"""The engine's Debian root, made once, and its daemons in their own namespaces."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

SUITE = "trixie"  # Docker 26.1; Debian 12 has 20.10, which reads no OCI layout
PACKAGES = (
    *("docker.io", "docker-cli", "docker-buildx", "docker-registry"),
    *("ca-certificates", "iproute2", "nftables", "iptables", "pigz", "zstd"),
)
_CLIENT, _PLUGIN = "usr/bin/docker", "usr/libexec/docker/cli-plugins/docker-buildx"

_TIMEOUT, _INTERVAL = 300.0, 0.1  # seconds
T = TypeVar("T")


class NoEngine(Exception):
    """No engine is available on this machine; the message has the reason."""


def home() -> Path:
    """The folder of engines. It is next to torchkiln's cache, because tests empty the cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchkiln-engine"


def ensure(folder: Path) -> Path:
    """The root in *folder*, made if it is missing (a minute, 250 MB to download, 550 MB on the disk).

    :raises NoEngine: this user or this machine cannot make one.
    """
    return made(folder / "root", SUITE, PACKAGES, "--variant=minbase")


def made(root: Path, suite: str, packages: Sequence[str], *options: str) -> Path:
    """The folder *root* with *packages* of Debian, made by mmdebstrap with *options* if it is missing.

    :raises NoEngine: this user or this machine cannot make it.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_name(f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.is_dir():
            return root
        if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
            raise NoEngine(f"{', '.join(packages[:2])}: downloading them requires root and mmdebstrap")
        new = root.with_name(f"{root.name}.new")
        shutil.rmtree(new, ignore_errors=True)  # left by an interrupted run
        argv = ["mmdebstrap", "--mode=root", *options, f"--include={','.join(packages)}", suite, str(new)]
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise NoEngine(f"mmdebstrap could not install {', '.join(packages[:2])}: {done.stderr[-600:]}")
        new.rename(root)
    return root


def client(root: Path, folder: Path) -> Path:
    """The engine's client and BuildKit's plugin for this host, in *folder*/bin and *folder*/config.

    :raises NoEngine: they do not run on this host.
    """
    program = runnable(root, _CLIENT, folder / "bin" / "docker")
    runnable(root, _PLUGIN, folder / "config" / "cli-plugins" / "docker-buildx")
    return program


def runnable(root: Path, name: str, target: Path) -> Path:
    """Make *target*, which runs the program *name* of the root with the host's C library or the root's.

    :raises NoEngine: neither works.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(root / name, target)
    if not _runs(target):
        libraries = root / "usr/lib/x86_64-linux-gnu"
        loader = libraries / "ld-linux-x86-64.so.2"
        target.write_text(f'#!/bin/sh\nexec {loader} --library-path {libraries} {root / name} "$@"\n')
        if not _runs(target):
            raise NoEngine(f"{root / name} does not run on this host")
    return target


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program, "version"], capture_output=True, timeout=300).returncode in (0, 1)
    except OSError:
        return False


_TIMEOUT = 300.0  # seconds until the kernel has ended all processes
_LOOK = 0.2


def start(root: Path, place: Path, daemon: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start *daemon* in *root*, with *place* as its /srv (see inside.py); its output goes to *place*/log."""
    flags = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        flags.append("--cgroup")
    inside = Path(__file__).with_name("inside.py")
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *flags, sys.executable, "-I", str(inside)]
    argv += [str(root), str(place), *daemon]
    with (place / "log").open("wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def first_process(daemon: subprocess.Popen[bytes], ready: Callable[[int], T | None]) -> T | None:
    """Wait until *ready* returns a value for the namespaces' first process; None after a timeout."""
    end = time.monotonic() + _TIMEOUT
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    while time.monotonic() < end and daemon.poll() is None:
        with suppress(OSError):  # the process has just ended
            for pid in children.read_text().split():
                arranged = Path(f"/proc/{pid}/comm").read_text().startswith("tini")
                if arranged and (found := ready(int(pid))) is not None:
                    return found
        time.sleep(_INTERVAL)
    return None


def stop(daemon: subprocess.Popen[bytes], cgroup: str) -> None:
    """Kill the namespaces' first process, and with it all containers, which are in *cgroup*."""
    daemon.kill()  # unshare --kill-child then kills the first process
    daemon.wait()
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end and not _remove_leftovers(cgroup):
        time.sleep(_LOOK)


def _remove_leftovers(cgroup: str) -> bool:
    """Remove the cgroups that containers left; returns whether none remains."""
    leftovers = [found for found in Path("/sys/fs/cgroup").glob(f"**/{cgroup}") if found.is_dir()]
    for cgroups in leftovers:
        folders = [folder for folder in cgroups.rglob("*") if folder.is_dir()]
        for folder in (*sorted(folders, key=lambda found: -len(found.parts)), cgroups):
            with suppress(OSError):
                folder.rmdir()
    return not any(found.exists() for found in leftovers)
