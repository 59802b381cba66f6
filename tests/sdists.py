"""Small sdists with in-tree build backends, and a root file system to build them with this host's Python."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchkiln.projects.sources.workshop import Limits, run_enclosed
from torchkiln.runtimes.command import Bind, Exited, Program

PYPROJECT = '[build-system]\nrequires = {requires}\nbuild-backend = "backend"\nbackend-path = ["."]\n'
# A build backend that writes a wheel with one module, whose source is the file `text`.
BACKEND = """
import base64, hashlib, os, zipfile

NAME, VERSION, TAG = "{name}", "{version}", "py3-none-any"
METADATA = "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{requires}"

def get_requires_for_build_wheel(config_settings=None):
    return {more}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    stem = NAME.replace("-", "_") + "-" + VERSION
    files = {{
        NAME.replace("-", "_") + ".py": open("text").read() + extra(),
        stem + ".dist-info/METADATA": METADATA,
        stem + ".dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: " + TAG + "\\n",
    }}
    record = stem + ".dist-info/RECORD"
    rows = [record + ",,"]
    name = stem + "-" + TAG + ".whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(path + ",sha256=" + digest + "," + str(len(text.encode())))
        wheel.writestr(zipfile.ZipInfo(record), "\\n".join(rows) + "\\n")
    return name

def extra():
    return ""
"""


def sdist(files: Mapping[str, str], name: str = "tool", version: str = "1.0") -> tuple[str, bytes]:
    """The file name and the bytes of an sdist with *files*."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", gzip.compress(out.getvalue(), mtime=0)


def files_of(
    name: str = "tool",
    version: str = "1.0",
    *,
    requires: str = "[]",
    more: str = "[]",
    needs: str = "",
    code: str = "",
) -> dict[str, str]:
    """The files of an sdist with an in-tree build backend.

    :param requires: the build requirements; *more*: those that the backend adds.
    :param needs: a requirement of the wheel; *code*: source that is appended to the backend.
    """
    lines = f"Requires-Dist: {needs}\\n" if needs else ""
    return {
        "pyproject.toml": PYPROJECT.format(requires=requires),
        "backend.py": BACKEND.format(name=name, version=version, more=more, requires=lines) + code,
        "text": "VALUE = 1\n",
    }


def host_root(folder: Path) -> Path:
    """A root file system in which `run_on_host` binds this host's programs."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("usr", "tmp", "in"):
        (folder / name).mkdir()
    (folder / "tmp").chmod(0o1777)
    return folder


def run_on_host(root: Path, program: Program, limits: Limits) -> Exited:
    """Like `run_enclosed`, but with the Python of this process instead of the image's Python."""
    binds = (Bind(source=Path(folder), target=folder) for folder in sorted({"/usr", sys.base_prefix}))
    argv = program.argv
    if argv[0].startswith("/usr/bin/python"):
        argv = (os.path.realpath(sys.executable), *argv[1:])
    return run_enclosed(root, replace(program, argv=argv, binds=(*program.binds, *binds)), limits)
