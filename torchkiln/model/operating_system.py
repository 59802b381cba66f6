"""Defines the operating systems that images are based on.

A new system also needs its name in `data/matrix.schema.json`. `smoke_tests/expected.py` repeats the default's
name, because the smoke suite runs without torchkiln. A system with a different Python than its own is called
"python312-debian12". The smoke suite reads the system from the last part of a tag, and ignores "python312"
because it has no dot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath

from torchkiln.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingSystem:
    """One operating system and its package archive."""

    name: str  # in matrix.yaml, locks and tags: "debian12"
    suite: str  # "bookworm"
    components: tuple[str, ...]  # of its archive
    variables: tuple[str, str, str]  # environment variables for mirror, security mirror and keyring
    keyring: PurePosixPath  # path on the build host: the keys that sign the archive
    keyring_package: str  # the package that installs the keyring
    python: str  # major.minor of the suite's interpreter
    glibc: tuple[int, int]  # decides which manylinux wheels fit
    gcc: int  # major version of its default compiler
    oldest_gcc: int  # oldest major version in its archive; an old nvcc needs an older gcc than the default
    snapshot: str  # address of the archive's snapshots
    snapshot_parts: tuple[str, str]  # below it, of main and security archive: "debian/", before the time
    docker_base: str  # the FROM of a Dockerfile
    docker_user: str = ""  # a user of docker_base who has the uid 1000 of the image's own user

    @property
    def distribution(self) -> str:
        """The distribution: "debian". All systems of a distribution are in one package archive."""
        return base_name(self.name).rstrip("0123456789.")


_DEBIAN = partial(
    OperatingSystem,
    components=("main",),
    variables=(
        "TORCHKILN_DEBIAN_MIRROR",
        "TORCHKILN_DEBIAN_SECURITY_MIRROR",
        "TORCHKILN_DEBIAN_KEYRING",
    ),
    keyring=PurePosixPath("/usr/share/keyrings/debian-archive-keyring.gpg"),
    keyring_package="debian-archive-keyring",
    snapshot="https://snapshot.debian.org/archive",
    snapshot_parts=("debian/", "debian-security/"),
)
_UBUNTU = partial(
    OperatingSystem,
    components=("main", "universe"),  # tini and python3-venv are in universe
    variables=(
        "TORCHKILN_UBUNTU_MIRROR",
        "TORCHKILN_UBUNTU_SECURITY_MIRROR",
        "TORCHKILN_UBUNTU_KEYRING",
    ),
    keyring=PurePosixPath("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
    keyring_package="ubuntu-keyring",
    snapshot="https://snapshot.ubuntu.com/ubuntu",
    snapshot_parts=("", ""),
)
SYSTEMS: Mapping[str, OperatingSystem] = {
    system.name: system
    for system in (
        _DEBIAN(
            name="debian12",
            suite="bookworm",
            python="3.11",
            glibc=(2, 36),
            gcc=12,
            oldest_gcc=11,
            docker_base="debian:12-slim",
        ),
        _DEBIAN(
            name="debian13",
            suite="trixie",
            python="3.13",
            glibc=(2, 41),
            gcc=14,
            oldest_gcc=12,
            docker_base="debian:13-slim",
        ),
        _UBUNTU(
            name="ubuntu22.04",
            suite="jammy",
            python="3.10",
            glibc=(2, 35),
            gcc=11,
            oldest_gcc=9,
            docker_base="ubuntu:22.04",
        ),
        _UBUNTU(
            name="ubuntu24.04",
            suite="noble",
            python="3.12",
            glibc=(2, 39),
            gcc=13,
            oldest_gcc=9,
            docker_base="ubuntu:24.04",
            docker_user="ubuntu",
        ),
    )
}

DEFAULT_OS = "debian12"
"""The system whose tags have no suffix. Published tags depend on it, so no matrix can change it."""


_OTHER_PYTHON = re.compile(r"python3(?P<minor>[0-9]{1,2})-(?P<base>.+)")

NAMES = rf"(?:python3[0-9]{{1,2}}-)?(?:{'|'.join(re.escape(name) for name in SYSTEMS)})"
"""A pattern for the names of all systems, with or without another Python."""


def with_python(base: str, python: str) -> str:
    """The name of the system *base* with another *python*, "3.12": "python312-debian12"."""
    return f"python{python.replace('.', '')}-{base}"


def base_name(name: str) -> str:
    """The name without another Python: "debian12" of "python312-debian12" and of "debian12"."""
    found = _OTHER_PYTHON.fullmatch(name)
    return found["base"] if found else name


def operating_system(name: str) -> OperatingSystem:
    """The operating system called *name*; another Python changes only `name` and `python`.

    :raises ConfigError: it is not supported.
    """
    base, found = SYSTEMS.get(base_name(name)), _OTHER_PYTHON.fullmatch(name)
    if base is None:
        raise ConfigError(f"os {name!r} is not supported", hint=f"use one of {', '.join(SYSTEMS)}")
    return replace(base, name=name, python=f"3.{int(found['minor'])}") if found else base
