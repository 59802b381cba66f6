"""The files that an installer would write from a wheel, read by `zipfile`, without torchkiln's code."""

from __future__ import annotations

import io
import stat
import zipfile
import zlib

from tests.layers import Item

ROOT = "opt/venv"
SITE = f"{ROOT}/lib/python3.11/site-packages"
FOLDERS = {
    "purelib": SITE,
    "platlib": SITE,
    "scripts": f"{ROOT}/bin",
    "data": ROOT,
    "headers": f"{ROOT}/include/site/python3.11/bad",
}


class Refused(Exception):
    """The standard library rejects the wheel."""


def installed(wheel: bytes) -> dict[str, Item]:
    """The files that pip would write from the wheel's entries, without files that pip generates.

    :raises Refused: `zipfile` rejects the wheel.
    """
    found: dict[str, Item] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                path, script = place(info.filename)
                data = archive.read(info)
                mode = info.external_attr >> 16
                runs = stat.S_ISREG(mode) and mode & 0o111
                if script and data.startswith(b"#!python"):
                    data = b"#!/opt/venv/bin/python\n" + b"".join(data.partition(b"\n")[2:])
                item = Item(kind="file", mode=0o755 if runs else 0o644, data=data)
                if found.setdefault(path, item) != item:
                    raise Refused(f"{path} twice")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, zlib.error) as error:
        raise Refused(repr(error)) from error
    return found


def place(name: str) -> tuple[str, bool]:
    """The path to which an entry is installed, and whether it is a script."""
    top, *rest = name.split("/")
    if top.endswith(".data") and rest:
        return "/".join((FOLDERS[rest[0]], *rest[1:])), rest[0] == "scripts"
    return f"{SITE}/{name}", False
