"""Lists the files of each package of an image, from the RECORD files in a layer or in wheels."""

from __future__ import annotations

import csv
import posixpath
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from torchkiln.errors import BadWheel, VerificationFailed
from torchkiln.model.lock import LockedWheel
from torchkiln.oci.opening import open_layer
from torchkiln.oci.read_tar import DAMAGED, layer_contents
from torchkiln.wheel import install
from torchkiln.wheel.install import Scheme

_RECORD = ".dist-info/RECORD"
_MOST_RECORD = 16 << 20  # bytes; that of torch has 2 MB

#: Path relative to / -> its hash as RECORD writes it, empty if RECORD has none.
Files = Mapping[str, str]


def files_in_layer(blob: Path, scheme: Scheme) -> dict[str, Files]:
    """The files, with byte-code, of each package that was installed into the layer *blob*, by package name.

    :raises VerificationFailed: the layer is damaged, or a RECORD names a file outside of the environment.
    """
    try:
        with open_layer(blob) as stream:
            texts = layer_contents(stream, lambda path: path.endswith(_RECORD)).texts
    except DAMAGED as error:
        raise VerificationFailed(f"{blob.name}: {error}", hint="the cache is damaged: build again") from error
    return files_of_records(texts, scheme)


def files_of_records(texts: Mapping[str, str], scheme: Scheme) -> dict[str, Files]:
    """The files of each distribution in site-packages, by its name.

    :param texts: path -> contents of each RECORD of an image or a layer.
    :raises VerificationFailed: a RECORD names a file outside of the environment.
    """
    found: dict[str, Files] = {}
    for path, text in texts.items():
        folder, _, info = path.removesuffix("/RECORD").rpartition("/")
        if folder == scheme.site:
            name = canonicalize_name(info.removesuffix(".dist-info").rpartition("-")[0])
            found[name] = {
                _absolute(row[0], path, scheme): row[1] for row in csv.reader(text.splitlines()) if row
            }
    return found


def _absolute(row: str, record: str, scheme: Scheme) -> str:
    """The path in *row* of *record*, relative to /."""
    path = posixpath.normpath(f"{scheme.site}/{row}")
    if row.startswith("/") or not path.startswith(f"{scheme.prefix[1:]}/"):
        raise VerificationFailed(f"/{record} names a file outside of {scheme.prefix}: {row[:200]!r}")
    return path


def files_of_wheel(path: Path, wheel: LockedWheel, scheme: Scheme) -> Files:
    """The files that an installation of *wheel*, which is at *path*, creates; without byte-code.

    :raises BadWheel: the wheel cannot be read.
    """
    name = install.parse_name(wheel.filename)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.namelist() if not entry.endswith("/")]
            info = install.dist_info(entries, name)
            record = install.parse_record(_text(archive, f"{info}/RECORD"), name)
            points = f"{info}/entry_points.txt"
            text = _text(archive, points) if points in entries else b""
    except (OSError, ValueError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise BadWheel(wheel.filename, f"RECORD cannot be read: {error}") from error
    launchers = dict.fromkeys(install.launchers(text, name, scheme), "")
    return launchers | {
        install.destination(entry, name, scheme): record.get(entry, ("", ""))[0] for entry in entries
    }


def _text(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        data = file.read(_MOST_RECORD + 1)
    if len(data) > _MOST_RECORD:
        raise ValueError(f"{name} is longer than {_MOST_RECORD} bytes")
    return data
