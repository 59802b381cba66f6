"""Sorts torch's Requires-Dist for the facts: exact pins of NVIDIA's packages, triton, and the rest.

Only requirements for Linux x86_64 count. Names of NVIDIA's packages may have a CUDA
suffix (nvidia-cudnn-cu12) or none.
"""

from __future__ import annotations

import re

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchkiln.errors import ConfigError
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.util.versions import minor_of

_PYTHONS = tuple(f"3.{minor}" for minor in range(6, 40))
# Conditions that are true in every image.
_HERE = re.compile(f"({'|'.join(f'{name} == .{value}.' for name, value in LINUX_AMD64.markers.items())})")


class TorchRequirements:
    """The requirements of one torch release, sorted.

    :raises ConfigError: a requirement is invalid.
    """

    def __init__(self, requires: tuple[str, ...]) -> None:
        self.pins: dict[str, str] = {}
        self.toolkit: tuple[str, ...] = ()
        self.others: list[str] = []
        self.triton = ""  # the exact version, or a specifier, "~=3.9.0"
        self.triton_below: str | None = None
        for text in requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                raise ConfigError(
                    f"torch has the invalid requirement {text[:100]!r}",
                    hint="the metadata on the index is invalid; try another index",
                ) from error
            pythons = [python for python in _PYTHONS if _holds(requirement.marker, python)]
            if pythons:
                self._sort(requirement, pythons)

    def _sort(self, requirement: Requirement, pythons: list[str]) -> None:
        name, pinned = canonicalize_name(requirement.name), exact(requirement)
        if name == "triton":
            self.triton = pinned or str(requirement.specifier)
            self.triton_below = None if pythons[-1] == _PYTHONS[-1] else _after(pythons[-1])
        elif pinned and name.startswith(("nvidia-", "cuda-")):
            self.pins[name] = pinned
            if name == "cuda-toolkit":
                self.toolkit = tuple(sorted(requirement.extras))
        else:
            everywhere = len(pythons) == len(_PYTHONS)
            self.others.append(
                f"{name}{requirement.specifier}{'' if everywhere else _condition(requirement)}"
            )

    def cuda(self) -> str | None:
        """The CUDA minor of the build, from the pinned cuda-toolkit or the runtime library; None: neither."""
        stems = ("cuda-toolkit", "nvidia-cuda-runtime")
        found = (value for stem in stems for name, value in self.pins.items() if _stem(name) == stem)
        return next(map(minor_of, found), None)

    def cudnn_major(self) -> int:
        """The major version of the pinned cuDNN; 0: none."""
        found = (value for name, value in self.pins.items() if _stem(name) == "nvidia-cudnn")
        return int(next(found, "0").split(".")[0])


def _stem(name: str) -> str:
    """`"nvidia-cudnn"` of `"nvidia-cudnn-cu12"` and of the newer name `"nvidia-cudnn"`."""
    return re.sub(r"-cu\d+$", "", name)


def exact(requirement: Requirement) -> str | None:
    """The version of ``==X``; None for every other requirement, including ``==X.*``."""
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        return None
    return specifiers[0].version


def _holds(marker: Marker | None, python: str) -> bool:
    here = {
        **LINUX_AMD64.markers,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "extra": "",
    }
    return marker is None or marker.evaluate(here)


def _condition(requirement: Requirement) -> str:
    """The marker in the form of the facts, without conditions that are true in every image."""
    parts = str(requirement.marker).split(" and ")
    needed = [part for part in parts if not _HERE.fullmatch(part)]
    return ";" + re.sub(r"\s*(==|!=|<=|>=|<|>)\s*", r"\1", " and ".join(needed)).replace('"', "'")


def _after(python: str) -> str:
    major, minor = python.split(".")
    return f"{major}.{int(minor) + 1}"
