"""base blob → what is in it: interpreter and packages; and what must not be in it."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torchkiln.deb822 import INSTALLED, PACKAGE, VERSION, paragraphs
from torchkiln.errors import BuildFailed
from torchkiln.nouns import LockedBase, OsPackage
from torchkiln.oci.encode import ENCODER, Encoded
from torchkiln.oci.gunzip import open_gzip
from torchkiln.oci.read_tar import open_tar

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


def locked_base(os_name: str, encoded: Encoded, contents: Contents) -> LockedBase:
    """What a lock says of the base of *os_name* with these bytes and this content."""
    return LockedBase(
        os=os_name,
        python=contents.python,
        digest=encoded.digest,
        diff_id=encoded.diff_id,
        size=encoded.size,
        unpacked=encoded.unpacked,
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
        with open_gzip(blob) as stream:
            for member, data in _walk(stream):
                path = member.name.removeprefix("./")
                faults += [f"{called}: {fault}" for fault in _faults(path, member)]
                if path == _STATUS and data is not None:
                    status = data.decode(errors="replace")
    # ValueError and OverflowError: what tarfile lets through of a header's numbers.
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
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


def _walk(stream: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Each entry, with the data of those that `inspect` reads."""
    with open_tar(stream) as tar:
        for member in tar:
            wanted = member.isfile() and member.name.removeprefix("./") == _STATUS
            opened = tar.extractfile(member) if wanted and member.size <= _LIMIT else None
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
