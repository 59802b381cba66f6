"""Makes .deb files without dpkg."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.roots import entry, tar_of
from torchkiln.model.lock import DebFile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
#: Paths in their order in a tar: a folder ends with "/"; a file has its content, or arguments of `entry`.
Files = Mapping[str, bytes | Mapping[str, Any]]


def link(to: str, *, hard: bool = False) -> Mapping[str, Any]:
    return {"kind": tarfile.LNKTYPE if hard else tarfile.SYMTYPE, "to": to}


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package; `files` of its data.tar, `control` files by name, additional `fields`."""

    name: str
    files: Files = field(default_factory=dict)
    control: Mapping[str, bytes] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    compression: str = ".xz"

    def deb(self) -> bytes:
        """The .deb file."""
        fields = {"Package": self.name, "Version": "1.0", "Architecture": "amd64", **self.fields}
        text = "".join(f"{name}: {value}\n" for name, value in fields.items())
        parts: dict[str, Files] = {"control": {"control": text.encode(), **self.control}, "data": self.files}
        compress = COMPRESSIONS[self.compression]
        tars = {f"{name}.tar{self.compression}": compress(_tar(files)) for name, files in parts.items()}
        return ar({"debian-binary": b"2.0\n", **tars})

    def file(self) -> DebFile:
        """Its description in an archive."""
        data = self.deb()
        return DebFile(
            name=self.name,
            version="1.0",
            architecture="amd64",
            source=self.name,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            path=f"pool/main/{self.name[0]}/{self.name}/{self.name}_1.0_amd64.deb",
        )


def ar(members: Mapping[str, bytes]) -> bytes:
    """An ar archive."""
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out


def _tar(files: Files) -> bytes:
    entries = []
    for path, what in {"": b"", **files}.items():
        values = {"data": what, "mode": 0o644} if isinstance(what, bytes) else what
        folder = {"kind": tarfile.DIRTYPE, "mode": 0o755} if path.endswith("/") or not path else {}
        entries.append(entry(f"./{path}", **{**values, **folder}))
    return tar_of(entries, tarfile.GNU_FORMAT)
