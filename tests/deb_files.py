"""Makes .deb files without dpkg."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchkiln.model.lock import DebFile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TIME = 1_600_000_000
COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of data.tar."""

    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""
    mode: int = 0o644
    mtime: int = TIME


FOLDER = Entry(kind=tarfile.DIRTYPE, mode=0o755)


def link(target: str, *, hard: bool = False) -> Entry:
    return Entry(kind=tarfile.LNKTYPE if hard else tarfile.SYMTYPE, target=target, mode=0o777)


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package; `files` by path, in the order of its data.tar."""

    name: str
    files: Mapping[str, Entry] = field(default_factory=dict)
    control: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    compression: str = ".xz"
    version: str = "1.0"

    def deb(self) -> bytes:
        """The .deb file."""
        fields = {"Package": self.name, "Version": self.version, "Architecture": "amd64", **self.fields}
        text = "".join(f"{name}: {value}\n" for name, value in fields.items())
        control = {
            name: Entry(data=data.encode()) for name, data in {"control": text, **self.control}.items()
        }
        compress = COMPRESSIONS[self.compression]
        return ar(
            {
                "debian-binary": b"2.0\n",
                f"control.tar{self.compression}": compress(tar_of({"./": FOLDER, **_dotted(control)})),
                f"data.tar{self.compression}": compress(tar_of({"./": FOLDER, **_dotted(self.files)})),
            }
        )

    def file(self) -> DebFile:
        """Its description in an archive."""
        data = self.deb()
        return DebFile(
            name=self.name,
            version=self.version,
            architecture="amd64",
            source=self.name,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            path=f"pool/main/{self.name[0]}/{self.name}/{self.name}_{self.version}_amd64.deb",
        )


def ar(members: Mapping[str, bytes]) -> bytes:
    """An ar archive."""
    out = b"!<arch>\n"
    for name, data in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode()
        out += data + b"\n" * (len(data) % 2)
    return out


def tar_of(entries: Mapping[str, Entry]) -> bytes:
    """A tar with *entries* in their order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, entry in entries.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode, info.mtime = (
                entry.kind,
                entry.target,
                entry.mode,
                entry.mtime,
            )
            info.size = len(entry.data)
            tar.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def _dotted(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return {f"./{path}": entry for path, entry in entries.items()}
