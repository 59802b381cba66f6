"""Install wheels with the locked pip, which is downloaded once, and compare the result with our layers."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from packaging.version import Version

from tests.layers import Item, layer_of, pretended_code, sha256, tree_of_folder, tree_of_layer
from torchkiln.index.download import open_downloads
from torchkiln.locks.lock import load_locked
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT
from torchkiln.wheel.install import parse_name


@cache
def locked_pip() -> LockedWheel:
    """The newest wheel of pip in the committed locks."""
    locks = [load_locked(ROOT / "images", path.parent.name) for path in ROOT.glob("images/*/lock.json")]
    pips = [wheel for lock in locks for wheel in lock.wheels if wheel.name == "pip"]
    return max(pips, key=lambda wheel: Version(wheel.version))


def pip_folder(scratch: Path) -> Path:
    """A folder for sys.path with that pip, which the first call on a machine downloads."""
    store = Store(cache_root())
    wheel = open_downloads(os.environ, store).fetch_wheel(locked_pip(), store)
    folder = scratch / "pip"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def requirements(wheels: Sequence[Path]) -> str:
    """*wheels* as requirement lines with hashes."""
    lines = []
    for wheel in wheels:
        name = parse_name(wheel.name)
        lines.append(
            f"{name.distribution.replace('_', '-').lower()}=={name.version} --hash=sha256:{sha256(wheel)}"
        )
    return "\n".join([*lines, ""])


class RealPip:
    """A process in which pip installs one wheel after the other."""

    def __init__(self, folder: Path) -> None:
        driver = Path(__file__).with_name("pip_driver.py")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(driver), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def install(self, wheels: Sequence[Path], root: Path) -> None:
        """Install *wheels*, which are in one folder, below *root*; pip must succeed."""
        code, output = self.attempt(wheels, root)
        assert code == 0, output

    def attempt(self, wheels: Sequence[Path], root: Path, requirement_lines: str = "") -> tuple[int, str]:
        """Like `install`; returns exit code and output. *requirement_lines* default to those of *wheels*."""
        assert self._process.stdin
        assert self._process.stdout
        listed = root.with_name(root.name + ".txt")
        listed.write_text(requirement_lines or requirements(wheels))
        request = {"links": str(wheels[0].parent), "requirements": str(listed), "root": str(root)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["output"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


SITE = "opt/venv/lib/python3.11/site-packages"

# All allowed differences, with reasons. `as_ours` applies these, and no others, to pip's tree.
ALLOWED = {
    "INSTALLER": "contains the name of the installer: torchkiln or pip",
    "REQUESTED": "pip marks packages that the user named; in a lock all are, so it has no meaning",
    "*.pyc": "compiled by the image's Python, without a hash in RECORD; those in wheels are replaced",
    "RECORD's ghosts": "pip keeps lines of files that it did not install; ours lists the installed files",
    "mtime": "fixed; pip sets the time of installation",
}


def as_ours(pips: dict[str, Item]) -> dict[str, Item]:
    """pip's tree, changed as ALLOWED states and in no other way, so that it must equal torchkiln's tree."""
    tree = dict(pips)
    sources = [path for path in tree if path.startswith(SITE) and path.endswith(".py")]
    codes = {cached(path): pretended_code(f"/{path}") for path in sources}
    outdated = {path for path in tree if "/__pycache__/" in path and source_of(path) in sources}
    (record,) = (path for path in tree if re.fullmatch(rf"{SITE}/[^/]+\.dist-info/RECORD", path))
    info = record.removesuffix("RECORD")
    rows = {row[0]: row for row in csv.reader(io.StringIO(tree[record].data.decode(), newline=""))}
    for ghost in [path for path in rows if os.path.normpath(f"{SITE}/{path}") not in tree]:
        del rows[ghost]
    for path in (*outdated, f"{info}REQUESTED"):
        del tree[path], rows[os.path.relpath(path, SITE)]
    tree[f"{info}INSTALLER"] = Item(kind="file", mode=0o644, data=b"torchkiln\n")
    installer = os.path.relpath(f"{info}INSTALLER", SITE)
    request = base64.urlsafe_b64encode(hashlib.sha256(b"torchkiln\n").digest()).decode().rstrip("=")
    rows[installer] = [installer, f"sha256={request}", "10"]
    for path, code in codes.items():
        tree[path] = Item(kind="file", mode=0o644, data=code)
        for folder in Path(path).parents:
            if str(folder) != ".":
                tree.setdefault(str(folder), Item(kind="folder", mode=0o755))
        rows[os.path.relpath(path, SITE)] = [os.path.relpath(path, SITE), "", ""]
    out = io.StringIO(newline="")
    csv.writer(out).writerows(sorted(rows.values()))
    tree[record] = Item(kind="file", mode=0o644, data=out.getvalue().encode())
    return tree


def cached(source: str) -> str:
    folder, name = os.path.split(source)
    return f"{folder}/__pycache__/{name[:-3]}.cpython-311.pyc"


def source_of(pyc: str) -> str:
    """Like importlib.util.source_from_cache, but also for sources with dots in their names."""
    folder, name = os.path.split(pyc)
    stem = re.sub(r"(?<=.)\.opt-[^.]+$", "", name.removesuffix(".pyc")) if name.endswith(".pyc") else ""
    return f"{os.path.dirname(folder)}/{stem.rpartition('.')[0] or stem}.py"


def agree(wheel: Path, pip: RealPip, root: Path) -> None:
    """Require that the layer of *wheel* has the tree that pip installs below *root*.

    Paths are compared before contents, because a missing path is easier to read than a different tree.
    """
    pip.install([wheel], root)
    theirs = as_ours(tree_of_folder(root))
    ours = tree_of_layer(layer_of([wheel], code=pretended_code)[0])

    assert sorted(ours) == sorted(theirs)
    assert {path: item for path, item in ours.items() if theirs[path] != item} == {}
    shutil.rmtree(root)
