"""Archives in the format of python-build-standalone: invented, or made from a CPython of this machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.planned import locked as planned_lock
from tests.roots import entries_of, entry, tar_of
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix, load
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import Selection, select
from torchkiln.model.cell import PythonArchive
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, LockedStandalone

Entries = Iterable[tuple[tarfile.TarInfo, bytes]]

NAME = "cpython-3.12.8+20241219-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
PROGRAM = b"\x7fELF\x02\x01".ljust(18, b"\0") + b"\x3e\x00 a program"
HEADER = b'#define PY_MAJOR_VERSION 3\n#define PY_VERSION             "3.12.8"\n'
LINK, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
SMALL = (
    entry("python/", kind=FOLDER),
    entry("python/bin/python3.12", PROGRAM, mode=0o775),
    entry("python/bin/python3", kind=LINK, to="python3.12"),
    entry("python/include/python3.12/patchlevel.h", HEADER, mode=0o664),
    entry("python/lib/python3.12/os.py", b"# os\n", mode=0o600),
)
MATRIX = """
torch: ["2.7.1"]
cuda: ["12.1"]
flavors: [runtime, devel]
os: {debian12: {python: "3.11"}}
packages: [numpy]
repository: pytorch-cuda
"""


def archive_in(folder: Path, entries: Entries = SMALL, *, name: str = NAME) -> tuple[Path, PythonArchive]:
    """An archive of *entries* in *folder*, and its lock."""
    path = folder / name
    path.write_bytes(gzip.compress(tar_of(entries), 1, mtime=0))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return path, PythonArchive(filename=name, sha256=sha256)


def matrix_with(path: str, sha256: str, facts: Facts, python: str = "3.12") -> Matrix:
    """A matrix with torch 2.7.1 for CUDA 12.1, whose debian12 also has *python* from that archive."""
    entry = {"python": python, "os": "debian12", "archive": path, "sha256": sha256}
    return load(f"{MATRIX}pythons: {json.dumps([entry])}\n", facts)


def standalone_lock(facts: Facts) -> LockedCell:
    """An invented lock of 2.7.1 for CUDA 12.1 with Python 3.12.8 on debian12."""
    grid = matrix_with(NAME, "3" * 64, facts)
    (cell,) = select(Selection(os=("python312-debian12",)), grid)
    standalone = LockedStandalone(
        version="3.12.8",
        filename=NAME,
        sha256="3" * 64,
        archive_size=30_000_000,
        digest=Digest("sha256:" + "e" * 64),
        diff_id=Digest("sha256:" + "f" * 64),
        size=31_000_000,
        unpacked=90_000_000,
        encoder="libdeflate 0.9.0 level 6",
    )
    return replace(planned_lock(), resolution=resolve(cell, grid, facts), standalone=standalone)


def another_python(than: str) -> Path:
    """The folder of pyenv's newest CPython other than *than*, such as "3.11"; skips if there is none."""
    versions = sorted((Path.home() / ".pyenv" / "versions").glob("3.1[0-9].*"))
    found = [path for path in versions if not path.name.startswith(f"{than}.")]
    if not found:
        pytest.skip("no other CPython: pyenv install 3.12")
    return found[-1]


def minor_of(python: Path) -> str:
    """The minor version of that CPython, such as "3.12"."""
    return ".".join(python.name.split(".")[:2])


def real_archive(python: Path, folder: Path) -> tuple[Path, PythonArchive]:
    """An archive of the CPython in *python*, without the modules that a small test does not need."""
    left_out = (
        *("test", "tests", "site-packages", "idlelib", "tkinter", "lib2to3", "turtledemo", "pydoc_data"),
        *("ensurepip", "share", "__pycache__", "*.a", "distutils", "unittest", "asyncio", "config-*"),
        *("multiprocessing", "xml*", "http", "sqlite3", "curses", "ctypes"),
        *("turtle.py", "_py*.py", "_test*", "_decimal*", "_ctypes*", "_codecs_*", "_sqlite3*", "_tkinter*"),
        *("pyexpat*", "_elementtree*", "_ssl*", "_curses*", "internal", "dbm", "wsgiref", "venv"),
    )
    root = folder / "tree"
    shutil.copytree(python, root / "python", symlinks=True, ignore=shutil.ignore_patterns(*left_out))
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-unneeded", *root.rglob("*.so"), *root.rglob("libpython3*.so.1.0")])
    return archive_in(folder, entries_of(root), name=f"cpython-{python.name}.tar.gz")
