"""Reads the Python version and the packages of a base, and refuses files that no base may have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import BuildFailed
from torchkiln.model.lock import OsPackage
from torchkiln.oci.compression import GZIP
from torchkiln.oci.tar_reader import TarEntry, TarReader, pieces_of
from torchkiln.util.deb822 import INSTALLED, PACKAGE, VERSION, paragraphs

_STATUS = "var/lib/dpkg/status"
_LIMIT = 64 << 20  # maximum bytes of the status file; with all packages of Debian it would be about as large
_FORBIDDEN = re.compile(
    r"etc/(machine-id|resolv\.conf|hostname|hosts|ssh/ssh_host_.*)|var/lib/dbus/machine-id|\.dockerenv"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseContents:
    python: str  # full version of /usr/bin/python3, "3.11.2"
    packages: tuple[OsPackage, ...]  # sorted by name


def inspect(blob: Path, *, name: str = "") -> BaseContents:
    """Read the tar+gzip *blob* once; messages call it *name*.

    :raises BuildFailed: *blob* is not a Debian root, or has forbidden files; the message names every fault.
    """
    name, status = name or blob.name, ""
    faults = []
    try:
        with GZIP.open(blob) as stream:
            tar = TarReader(pieces_of(stream))
            for entry in tar:
                faults += [f"{name}: {fault}" for fault in _faults(entry)]
                if entry.path == _STATUS and entry.size <= _LIMIT:
                    status = b"".join(tar.content()).decode(errors="replace")
    except (OSError, EOFError, ValueError) as error:
        raise BuildFailed(
            f"{name}: not the tar of a base: {error}", hint="build a base: torchkiln base build"
        ) from error
    if not status:
        faults.append(f"{name}: /var/lib/dpkg/status is missing: not a base")
    if faults:
        raise BuildFailed("\n".join(faults), hint="build a base: torchkiln base build")
    packages = parse_status(status)
    return BaseContents(python=_python(packages), packages=packages)


def parse_status(text: str) -> tuple[OsPackage, ...]:
    """The installed packages of a dpkg status file, sorted by name.

    :raises BuildFailed: the file is malformed, or a name or version is invalid.
    """
    found = []
    try:
        for fields in paragraphs(text.split("\n")):
            if fields.get("status") == INSTALLED:
                name, version = fields.get("package", ""), fields.get("version", "")
                if not (PACKAGE.fullmatch(name) and VERSION.fullmatch(version)):
                    raise ValueError(f"invalid package name or version: {name[:80]!r} {version[:80]!r}")
                found.append(OsPackage(name=name, version=version))
    except ValueError as error:
        raise BuildFailed(
            f"/var/lib/dpkg/status: {error}", hint="build a base: torchkiln base build"
        ) from None
    return tuple(sorted(found, key=lambda package: (package.name, package.version)))


def _python(packages: tuple[OsPackage, ...]) -> str:
    """ "3.11.2" from python3.11-minimal 3.11.2-6+deb12u6."""
    for package in packages:
        if re.fullmatch(r"python3\.\d+-minimal", package.name):
            return re.split(r"[-+~]", package.version)[0]
    raise BuildFailed("the base has no Python", hint="build a base: torchkiln base build")


def _faults(entry: TarEntry) -> Iterator[str]:
    path = entry.path
    if path.rpartition("/")[2].startswith(".wh."):
        yield f"{path} is a whiteout: it would delete files of other layers"
    if entry.kind in ("char", "block", "pipe"):
        yield f"{path} is a device or a pipe"
    if _FORBIDDEN.fullmatch(path):
        yield f"{path} identifies a machine and must not be in an image"
