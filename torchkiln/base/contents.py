"""base blob → what is in it: interpreter and packages; and what must not be in it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import BuildFailed
from torchkiln.nouns import OsPackage
from torchkiln.oci.gunzip import open_gzip

_STATUS = "var/lib/dpkg/status"
_FORBIDDEN = re.compile(
    r"etc/(machine-id|resolv\.conf|hostname|hosts|ssh/ssh_host_.*)|var/lib/dbus/machine-id|\.dockerenv"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a base says of itself."""

    python: str  # full version of /usr/bin/python3, "3.11.2"
    packages: tuple[OsPackage, ...]  # sorted by name


def inspect(blob: Path) -> Contents:
    """Read the tar+gzip *blob* once.

    :raises BuildFailed: it is no Debian root, or holds what no base may hold; every fault is named.
    """
    status = ""
    faults = []
    try:
        with open_gzip(blob) as stream:
            for member, data in _walk(stream):
                name = member.name.removeprefix("./")
                faults += [f"{blob.name}: {fault}" for fault in _faults(name, member)]
                if name == _STATUS and data is not None:
                    status = data.decode(errors="replace")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BuildFailed(f"{blob.name} is not a gzipped tar: {error}") from error
    if not status:
        faults.append(f"{blob.name}: no dpkg status in it, so it is no base")
    if faults:
        raise BuildFailed("\n".join(faults), hint="make a base with: torchkiln base build")
    packages = parse_status(status)
    return Contents(python=_python(packages), packages=packages)


def parse_status(text: str) -> tuple[OsPackage, ...]:
    """The installed packages of a dpkg status file, sorted by name."""
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Status") == "install ok installed":
            found.append(OsPackage(name=fields["Package"], version=fields["Version"]))
    return tuple(sorted(found, key=lambda package: (package.name, package.version)))


def _python(packages: tuple[OsPackage, ...]) -> str:
    """ "3.11.2" from python3.11-minimal 3.11.2-6+deb12u6."""
    for package in packages:
        if re.fullmatch(r"python3\.\d+-minimal", package.name):
            return re.split(r"[-+~]", package.version)[0]
    raise BuildFailed("the base has no Python", hint="its packages must hold python3")


def _walk(stream: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Each entry, with the data of those that `inspect` reads."""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            wanted = member.isfile() and member.name.removeprefix("./") == _STATUS
            opened = tar.extractfile(member) if wanted else None
            yield member, opened.read() if opened else None


def _faults(name: str, member: tarfile.TarInfo) -> Iterator[str]:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        yield f"{name} lies outside the root"
    if parts[-1].startswith(".wh."):
        yield f"{name} would delete files of other layers"
    if member.ischr() or member.isblk() or member.isfifo():
        yield f"{name} is a device or a pipe"
    if _FORBIDDEN.fullmatch(name):
        yield f"{name} belongs to one machine, not to an image"
