"""Make real wheels from WheelSpecs with Python's zipfile, for tests of pip and of our installer."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import random
import re
import stat
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest.mock import patch

Scheme = Literal["", "purelib", "platlib", "headers", "scripts", "data"]


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a wheel. `scheme`: "" is the root, others are under `<name>-<version>.data/<scheme>/`."""

    path: str
    data: bytes
    scheme: Scheme = ""
    mode: int = 0o644
    stored: bool = False


@dataclass(frozen=True, kw_only=True)
class WheelSpec:
    """The content of a wheel, from which METADATA, WHEEL, entry_points.txt and RECORD are made."""

    name: str
    version: str = "1.0"
    files: tuple[File, ...]
    console: tuple[tuple[str, str], ...] = ()  # ("tool", "package.module:main")
    gui: tuple[tuple[str, str], ...] = ()
    requires: tuple[str, ...] = ()
    tag: str = "py3-none-any"
    purelib: bool = True  # Root-Is-Purelib
    folders: bool = False  # also entries for folders, as some build tools write them
    streamed: bool = False  # sizes and CRC in data descriptors after the data
    zip64: bool = False  # every size and offset in a zip64 field
    shuffle: int | None = None  # seed for a random order of the entries, in which RECORD may come first

    @property
    def stem(self) -> str:
        """`name-version` as in file names."""
        return f"{re.sub(r'[-_.]+', '_', self.name)}-{self.version}"

    @property
    def filename(self) -> str:
        """The file name of the wheel."""
        return f"{self.stem}-{self.tag}.whl"


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    executable: Iterable[str] = (),
    **options: object,
) -> Path:
    """Write a wheel of *files* into *folder*; paths may be in `.data`; *options* are fields of WheelSpec."""
    runs = frozenset(executable)
    listed = tuple(
        File(path=path, data=data, mode=0o755 if path in runs else 0o644) for path, data in files.items()
    )
    return write_wheel(WheelSpec(name=name, version=version, files=listed, **options), folder)  # type: ignore[arg-type]


def write_wheel(spec: WheelSpec, folder: Path) -> Path:
    """Write the wheel of *spec* into *folder*, always with the same bytes."""
    entries = [_placed(spec, file) for file in (*spec.files, *_metadata(spec))]
    entries.append(_record(spec, entries))
    if spec.folders:
        entries = [*_folders(entries), *entries]
    if spec.shuffle is not None:
        random.Random(spec.shuffle).shuffle(entries)
    out = io.BytesIO()
    # zipfile uses zip64 for sizes above this limit. With a negative limit, it does so for every size.
    limit = -1 if spec.zip64 else zipfile.ZIP64_LIMIT
    target = _Pipe(out) if spec.streamed else out
    with patch("zipfile.ZIP64_LIMIT", limit), zipfile.ZipFile(target, "w") as archive:  # type: ignore[arg-type]
        for entry in entries:
            _write(archive, entry, zip64=spec.zip64)
    path = folder / spec.filename
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(out.getvalue())
    return path


class _Pipe:
    """A stream that cannot seek, so that zipfile uses data descriptors."""

    def __init__(self, out: io.BytesIO) -> None:
        self.write, self.flush = out.write, out.flush


def _write(archive: zipfile.ZipFile, entry: File, *, zip64: bool) -> None:
    info = zipfile.ZipInfo(entry.path, (1980, 1, 1, 0, 0, 0))
    folder = entry.path.endswith("/")
    kind = stat.S_IFDIR if folder else stat.S_IFREG
    info.create_system = 3
    info.external_attr = (kind | entry.mode) << 16 | (0x10 if folder else 0)
    info.compress_type = zipfile.ZIP_STORED if entry.stored else zipfile.ZIP_DEFLATED
    info.file_size = len(entry.data)
    with archive.open(info, "w", force_zip64=zip64) as out:
        out.write(entry.data)


def _placed(spec: WheelSpec, file: File) -> File:
    if not file.scheme:
        return file
    path = f"{spec.stem}.data/{file.scheme}/{file.path}"
    return File(path=path, data=file.data, mode=file.mode, stored=file.stored)


def _metadata(spec: WheelSpec) -> list[File]:
    metadata = ["Metadata-Version: 2.1", f"Name: {spec.name}", f"Version: {spec.version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in spec.requires]
    root = "true" if spec.purelib else "false"
    wheel = [
        "Wheel-Version: 1.0",
        "Generator: torchkiln-tests",
        f"Root-Is-Purelib: {root}",
        f"Tag: {spec.tag}",
    ]
    points: list[str] = []
    for group, listed in (("console_scripts", spec.console), ("gui_scripts", spec.gui)):
        if listed:
            points += [f"[{group}]", *(f"{name} = {target}" for name, target in listed), ""]
    texts = {"METADATA": metadata, "WHEEL": wheel, "entry_points.txt": points}
    return [
        File(path=f"{spec.stem}.dist-info/{name}", data="\n".join([*lines, ""]).encode())
        for name, lines in texts.items()
        if lines
    ]


def _record(spec: WheelSpec, entries: Iterable[File]) -> File:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    for entry in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.data).digest()).decode().rstrip("=")
        rows.writerow((entry.path, f"sha256={digest}", len(entry.data)))
    path = f"{spec.stem}.dist-info/RECORD"
    rows.writerow((path, "", ""))
    return File(path=path, data=out.getvalue().encode())


def _folders(entries: Iterable[File]) -> list[File]:
    found: dict[str, None] = {}
    for entry in entries:
        parts = entry.path.split("/")[:-1]
        found.update(dict.fromkeys("/".join(parts[:depth]) + "/" for depth in range(1, len(parts) + 1)))
    return [File(path=path, data=b"", mode=0o755, stored=True) for path in found]
