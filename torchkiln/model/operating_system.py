"""The operating systems that images are made on, a row each.

Beside a row, `data/matrix.schema.json` names each system, and `smoke_tests/tag.py` has the default's name:
the suite runs without torchkiln.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from torchkiln.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingSystem:
    """What is known of one, whatever an image takes of its archive."""

    name: str  # in matrix.yaml, locks and tags: "debian12"
    suite: str  # "bookworm"
    components: tuple[str, ...]  # of its archive
    variables: tuple[str, str, str]  # by which a user names another mirror, security mirror and keyring
    keyring: PurePosixPath  # of its archive, on the build host
    keyring_package: str  # what brings it there
    python: str  # major.minor of the suite's interpreter
    glibc: tuple[int, int]  # with it a wheel's manylinux tag is judged
    gcc: int  # major version of its own compiler
    docker_base: str  # what a Dockerfile starts from by hand


SYSTEMS: Mapping[str, OperatingSystem] = {
    one.name: one
    for one in (
        OperatingSystem(
            name="debian12",
            suite="bookworm",
            components=("main",),
            variables=(
                "TORCHKILN_DEBIAN_MIRROR",
                "TORCHKILN_DEBIAN_SECURITY_MIRROR",
                "TORCHKILN_DEBIAN_KEYRING",
            ),
            keyring=PurePosixPath("/usr/share/keyrings/debian-archive-keyring.gpg"),
            keyring_package="debian-archive-keyring",
            python="3.11",
            glibc=(2, 36),
            gcc=12,
            docker_base="debian:12-slim",
        ),
        OperatingSystem(
            name="ubuntu22.04",
            suite="jammy",
            components=("main", "universe"),  # tini and python3-venv are in universe
            variables=(
                "TORCHKILN_UBUNTU_MIRROR",
                "TORCHKILN_UBUNTU_SECURITY_MIRROR",
                "TORCHKILN_UBUNTU_KEYRING",
            ),
            keyring=PurePosixPath("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
            keyring_package="ubuntu-keyring",
            python="3.10",
            glibc=(2, 35),
            gcc=11,
            docker_base="ubuntu:22.04",
        ),
    )
}

DEFAULT_OS = "debian12"
"""The system whose images bear no ending. It is part of what a published tag means, so no matrix sets it."""


def operating_system(name: str) -> OperatingSystem:
    """The row of *name*.

    :raises ConfigError: there is none.
    """
    try:
        return SYSTEMS[name]
    except KeyError:
        raise ConfigError(f"no base is known for os {name!r}", hint=f"known: {', '.join(SYSTEMS)}") from None
