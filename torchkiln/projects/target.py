"""Gives the values of environment markers (PEP 508) in an image."""

from __future__ import annotations

from packaging.requirements import Requirement

from torchkiln.model.platform import LINUX_AMD64


def environment_of(python: str) -> dict[str, str]:
    """The values of markers for CPython *python*, "3.11.2" or "3.11", on Linux; `extra` is empty."""
    release = python if python.count(".") > 1 else f"{python}.0"
    return {
        "implementation_name": "cpython",
        "implementation_version": release,
        "os_name": "posix",
        "platform_machine": LINUX_AMD64.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": release,
        "python_version": ".".join(release.split(".")[:2]),
        "sys_platform": "linux",
        "extra": "",
    }


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Whether the marker of *requirement* is true in *environment*."""
    return requirement.marker is None or requirement.marker.evaluate(dict(environment))
