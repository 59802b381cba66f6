"""base blob → what is in it: interpreter and packages; and what must not be in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import BuildFailed
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedBase, OsPackage
from torchkiln.oci.compression import GZIP
from torchkiln.oci.encode import ENCODER
from torchkiln.oci.tar_reader import Entry, TarReader, pieces_of
from torchkiln.util.deb822 import INSTALLED, PACKAGE, VERSION, paragraphs

_STATUS = "var/lib/dpkg/status"
_LIMIT = 64 << 20  # bytes of it; Debian's whole archive has as much
_FORBIDDEN = re.compile(
    r"etc/(machine-id|resolv\.conf|hostname|hosts|ssh/ssh_host_.*)|var/lib/dbus/machine-id|\.dockerenv"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a base says of itself."""

    python: str  # full version of /usr/bin/python3, "3.11.2"
    packages: tuple[OsPackage, ...]  # sorted by name


def locked_base(os_name: str, blob: Blob, contents: Contents) -> LockedBase:
    """What a lock says of the base of *os_name* with these bytes and this content."""
    return LockedBase(
        os=os_name,
        python=contents.python,
        **asdict(blob),
        encoder=ENCODER,
        packages=contents.packages,
    )


def inspect(blob: Path, *, name: str = "") -> Contents:
    """Read the tar+gzip *blob* once; messages call it *name*.

    :raises BuildFailed: it is no Debian root, or holds what no base may hold; every fault is named.
    """
    called, status = name or blob.name, ""
    faults = []
    try:
        with GZIP.open(blob) as stream:
            for entry, data in _walk(stream):
                faults += [f"{called}: {fault}" for fault in _faults(entry)]
                if entry.path == _STATUS and data is not None:
                    status = data.decode(errors="replace")
    except (OSError, EOFError, ValueError) as error:
        raise BuildFailed(
            f"{called} is not the tar of a base: {error}", hint="make a base with: torchkiln base build"
        ) from error
    if not status:
        faults.append(f"{called}: no dpkg status in it, so it is no base")
    if faults:
        raise BuildFailed("\n".join(faults), hint="make a base with: torchkiln base build")
    packages = parse_status(status)
    return Contents(python=_python(packages), packages=packages)


def parse_status(text: str) -> tuple[OsPackage, ...]:
    """The installed packages of a dpkg status file, sorted by name.

    :raises BuildFailed: it is no such file, or a name or a version is none.
    """
    found = []
    try:
        for fields in paragraphs(text.split("\n")):
            if fields.get("status") == INSTALLED:
                name, version = fields.get("package", ""), fields.get("version", "")
                if not (PACKAGE.fullmatch(name) and VERSION.fullmatch(version)):
                    raise ValueError(f"names no package: {name[:80]!r} {version[:80]!r}")
                found.append(OsPackage(name=name, version=version))
    except ValueError as error:
        raise BuildFailed(f"dpkg's status: {error}", hint="make a base with: torchkiln base build") from None
    return tuple(sorted(found, key=lambda package: (package.name, package.version)))


def _python(packages: tuple[OsPackage, ...]) -> str:
    """ "3.11.2" from python3.11-minimal 3.11.2-6+deb12u6."""
    for package in packages:
        if re.fullmatch(r"python3\.\d+-minimal", package.name):
            return re.split(r"[-+~]", package.version)[0]
    raise BuildFailed("the base has no Python", hint="its packages must hold python3")


def _walk(stream: BinaryIO) -> Iterator[tuple[Entry, bytes | None]]:
    """Each entry, with the data of those that `inspect` reads."""
    tar = TarReader(pieces_of(stream))
    for entry in tar:
        wanted = entry.kind == "file" and entry.path == _STATUS and entry.size <= _LIMIT
        yield entry, b"".join(tar.content()) if wanted else None


def _faults(entry: Entry) -> Iterator[str]:
    path = entry.path
    if path.rpartition("/")[2].startswith(".wh."):
        yield f"{path} would delete files of other layers"
    if entry.kind in ("char", "block", "pipe"):
        yield f"{path} is a device or a pipe"
    if _FORBIDDEN.fullmatch(path):
        yield f"{path} belongs to one machine, not to an image"
