"""Requires-Dist of torch -> what the facts tell apart: exact pins of NVIDIA's packages, triton, the rest.

Only what holds on Linux x86_64 counts. No name hangs on a CUDA ending: newer wheels drop it.
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
# Conditions that hold wherever our images run.
_HERE = re.compile(f"({'|'.join(f'{name} == .{value}.' for name, value in LINUX_AMD64.markers.items())})")


class Asked:
    """The requirements of one torch, sorted."""

    def __init__(self, requires: tuple[str, ...]) -> None:
        self.pins: dict[str, str] = {}
        self.toolkit: tuple[str, ...] = ()
        self.others: list[str] = []
        self.triton, self.triton_asks = "", ""  # the exact version; the requirement where it is no exact pin
        self.triton_below: str | None = None
        for text in requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                raise ConfigError(
                    f"torch requires {text[:100]!r}, which is no requirement",
                    hint="the index's metadata is at fault",
                ) from error
            pythons = [one for one in _PYTHONS if _holds(requirement.marker, one)]
            if pythons:
                self._sort(requirement, pythons)

    def _sort(self, requirement: Requirement, pythons: list[str]) -> None:
        name, pinned = canonicalize_name(requirement.name), exact(requirement)
        if name == "triton":
            self.triton = pinned or ""
            self.triton_asks = "" if pinned else f"triton{requirement.specifier}"
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
        """The CUDA minor of the build: of the toolkit that is required, or of the runtime library."""
        stems = ("cuda-toolkit", "nvidia-cuda-runtime")
        found = (value for stem in stems for name, value in self.pins.items() if _stem(name) == stem)
        return next(map(minor_of, found), None)

    def cudnn_major(self) -> int:
        """Of the cuDNN that is pinned; 0 where none is."""
        found = (value for name, value in self.pins.items() if _stem(name) == "nvidia-cudnn")
        return int(next(found, "0").split(".")[0])


def _stem(name: str) -> str:
    """`"nvidia-cudnn"` of `"nvidia-cudnn-cu12"` and of `"nvidia-cudnn"`: newer names drop the ending."""
    return re.sub(r"-cu\d+$", "", name)


def exact(requirement: Requirement) -> str | None:
    """The version of ``==X``; None for everything else, ``==X.*`` included."""
    one = next(iter(requirement.specifier), None)
    alone = one is not None and len(requirement.specifier) == 1
    return one.version if one and alone and one.operator == "==" and "*" not in one.version else None


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
    """The marker as the facts write it, without what holds wherever our images run."""
    parts = str(requirement.marker).split(" and ")
    kept = [part for part in parts if not _HERE.fullmatch(part)]
    return ";" + re.sub(r"\s*(==|!=|<=|>=|<|>)\s*", r"\1", " and ".join(kept)).replace('"', "'")


def _after(python: str) -> str:
    major, minor = python.split(".")
    return f"{major}.{int(minor) + 1}"
