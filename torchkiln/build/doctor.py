"""Checks what this host lacks for each engine and runtime, and how to install it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torchkiln.base.recipe import recipe
from torchkiln.model.operating_system import DEFAULT_OS

Part = Literal["embedded engine", "docker engine", "rootfs runtime", "tests"]
_SPACE = 12_000_000_000  # bytes: wheels, layers and an unpacked image of one cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The result of one check; `cure` says what to do if it is not ok."""

    part: Part
    what: str
    ok: bool
    found: str
    cure: str = ""


def examine(cache: Path) -> tuple[Probe, ...]:
    """All checks, by part; nothing is changed."""
    checks = (_python, _base_tools, _privileges, _space, _docker, _readers)
    probes = [probe for check in checks for probe in check(cache)]
    order = get_args(Part)
    return tuple(sorted(probes, key=lambda probe: order.index(probe.part)))


def _python(_: Path) -> Iterator[Probe]:
    yield Probe(
        part="embedded engine",
        what="Python",
        ok=sys.version_info >= (3, 10),
        found=sys.version.split()[0],
        cure="use Python 3.10 or newer: make setup PYTHON=python3.11",
    )


def _base_tools(_: Path) -> Iterator[Probe]:
    yield _program("embedded engine", "mmdebstrap", "builds the base")
    base = recipe(DEFAULT_OS)
    keyring = Path(base.keyring)
    yield Probe(
        part="embedded engine",
        what=f"{base.distribution.capitalize()}'s archive keys",
        ok=keyring.exists(),
        found=str(keyring) if keyring.exists() else "missing",
        cure=f"apt-get install {base.keyring_package}",
    )


def _privileges(_: Path) -> Iterator[Probe]:
    root = os.geteuid() == 0
    spaces = root or _succeeds(["unshare", "--user", "--map-root-user", "true"])
    found = "root" if root else "user namespaces" if spaces else "neither root nor user namespaces"
    parts: tuple[Part, ...] = ("embedded engine", "rootfs runtime")
    for part in parts:
        yield Probe(
            part=part,
            what="root or user namespaces",
            ok=spaces,
            found=found,
            cure="run as root, or: sysctl kernel.unprivileged_userns_clone=1; apt-get install uidmap",
        )
    yield _program("rootfs runtime", "unshare", "makes the namespaces", package="util-linux")
    yield _program("rootfs runtime", "tar", "unpacks layers")


def _space(cache: Path) -> Iterator[Probe]:
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    yield Probe(
        part="embedded engine",
        what="space in the cache",
        ok=free >= _SPACE and os.access(existing, os.W_OK),
        found=f"{free / 1e9:.0f} GB free at {cache}"
        + ("" if os.access(existing, os.W_OK) else ", not writable"),
        cure=f"one cell needs {_SPACE / 1e9:.0f} GB; set TORCHKILN_CACHE to another disk",
    )


def _docker(_: Path) -> Iterator[Probe]:
    yield _program("docker engine", "docker", "the client", package="docker-cli")
    if shutil.which("docker") is None:
        return
    for what, command, cure in (
        ("buildx", ["docker", "buildx", "version"], "apt-get install docker-buildx"),
        (
            "an engine that answers",
            ["docker", "version", "--format", "{{.Server.Version}}"],
            "start dockerd, or set DOCKER_HOST",
        ),
    ):
        yield Probe(
            part="docker engine",
            what=what,
            ok=(works := _succeeds(command)),
            found="yes" if works else "no",
            cure=cure,
        )


def _readers(_: Path) -> Iterator[Probe]:
    for name in ("skopeo", "umoci"):
        yield _program("tests", name, "reads the images")


def _program(part: Part, name: str, why: str, *, package: str = "") -> Probe:
    path = shutil.which(name)
    return Probe(
        part=part,
        what=f"{name} ({why})",
        ok=path is not None,
        found=path or "missing",
        cure=f"apt-get install {package or name}",
    )


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
