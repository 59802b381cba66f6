"""The layers of the real image have the files that pip installs by the Dockerfile's commands.

`make proof` runs them in the unpacked base; BuildKit runs them with NIGHTLY=yes.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import marshal
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs_namespaces, nightly
from tests.parity import allowed, compare
from tests.proof.headline import NAME, SITE, TAG
from torchkiln.model.lock import LockedCell
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof

# All allowed differences, with reasons.
#   INSTALLER   names the installer
#   REQUESTED   pip writes it for packages on the command line; a lock names all
#   RECORD      has torchkiln's INSTALLER, and .pyc files, which pip does not make here
#   .pyc        a few files: marshal writes a constant once or twice, depending on what was interned
#               before; the test compares the unmarshalled code instead
METADATA_THAT_DIFFERS = {"INSTALLER", "REQUESTED", "RECORD"}
MOST_PYC_THAT_DIFFER = 10


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file or folder. Only files that are compared in parts have `data`."""

    mode: int
    is_folder: bool
    sha256: bytes
    data: bytes = field(repr=False)


Members = dict[str, Member]


def member(path: str, mode: int, data: bytes | None) -> Member:
    """The `Member` of a file with *data*, or of a folder without."""
    content = data or b""
    return Member(
        mode=mode,
        is_folder=data is None,
        sha256=hashlib.sha256(content).digest(),
        data=content if path.endswith((".pyc", "/RECORD")) else b"",
    )


@pytest.fixture(scope="module")
def ours(image: dict[str, Any]) -> Members:
    """Every file and folder in the wheel layers of the image, read by the standard library alone."""
    found = {}
    blobs = Path(image["layout"]) / "blobs" / "sha256"
    for layer in image["layers"][:-2]:
        with (
            gzip.open(blobs / layer["digest"].removeprefix("sha256:")) as stream,
            tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as tar,
        ):
            for info in tar:
                file = tar.extractfile(info)
                found[info.name] = member(info.name, info.mode, file.read() if file else None)
    return found


INSTALLS = """
set -e
mount --rbind /dev "$1/dev"
for command in "$2" "$3"; do chroot "$1" /bin/sh -ec "$command"; done
"""


@pytest.fixture(scope="module")
def theirs(locked: LockedCell, room: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """The files and folders in the environment of the base in which pip installed all wheels."""
    root, store = tmp_path_factory.mktemp("pip") / "root", Store(cache_root())
    (root / "wheels").mkdir(parents=True)
    base = ["tar", "-xzf", str(store.blob(locked.base.digest)), "--no-same-owner", "-C", str(root)]
    subprocess.run(base, check=True)
    for wheel in locked.wheels:
        place_file(store.wheel(wheel), root / "wheels" / wheel.filename)
    shutil.copy(ROOT / "images" / TAG / "requirements.txt", root)
    dockerfile = (ROOT / "images" / TAG / "Dockerfile").read_text()
    [install] = set(re.findall(r"(/opt/venv/bin/python -B /pip\S+ install (?:.*\\\n)*.*) -r ", dockerfile))
    [byte_code] = re.findall(r"^RUN (.* -m compileall .*)$", dockerfile, re.MULTILINE)
    install = install.replace(" /pip-", " /wheels/pip-") + " -r /requirements.txt"
    argv = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    argv += ["sh", "-c", INSTALLS, "sh", str(root), install, byte_code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for folder, _, names in os.walk(root / "opt"):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            data = None if path.is_dir() and not path.is_symlink() else path.read_bytes()
            name, mode = str(path.relative_to(root)), stat.S_IMODE(path.lstat().st_mode)
            found[name] = member(name, mode, data)
    yield found
    shutil.rmtree(root)


def place_file(source: Path, target: Path) -> None:
    """Make a hard link, or a copy if the file systems differ."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy(source, target)


def in_metadata(path: str) -> bool:
    return ".dist-info/" in path and path.rpartition("/")[2] in METADATA_THAT_DIFFERS


@nightly  # tests/docker/test_parity.py compares a small image
def test_both_engines_images_are_the_same(image: dict[str, Any], by_docker: Mapping[str, str]) -> None:
    """No file differs except those of the allow list and a few .pyc files."""
    found = compare(f"docker:{NAME}", image["ref"], Path(image["layout"]), by_docker, allowed())

    other_paths = {difference.at for difference in found.left}
    assert {Path(path).suffix for path in other_paths} <= {".pyc"}
    assert {difference.what for difference in found.left} <= {"content"}
    assert len(other_paths) <= MOST_PYC_THAT_DIFFER, other_paths
    assert (found.idle, found.paths > 50_000) == ((), True)


@nightly  # as above
def test_pip_does_the_same_in_both(
    image: dict[str, Any], by_docker: Mapping[str, str], tmp_path: Path
) -> None:
    listed = "pip list --format=freeze"
    script = f"{listed}; pip check; pip uninstall --yes tqdm; {listed}; pip check; ls /opt/venv/bin"
    command = ["sh", "-c", f"({script}) 2>&1"]
    docker = ["docker", "run", "--rm", "--entrypoint", "", NAME, *command]
    theirs = subprocess.run(docker, env=dict(by_docker), capture_output=True, text=True, check=True).stdout
    words = ["run", "--no-entrypoint", "--output", image["layout"], image["ref"], "--", *command]
    try:  # with another cache, because another process may delete the root file system in the usual one
        ours = kiln(words, {**by_docker, "TORCHKILN_CACHE": str(tmp_path / "cache")})
    finally:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    assert "Successfully uninstalled tqdm" in ours
    assert ours.count("torch==2.7.1") == 2
    assert ours == theirs


@needs_namespaces
def test_our_layers_have_what_pip_installs(ours: Members, theirs: Members) -> None:
    """Paths, types, modes and contents are equal, and no file that pip installs is missing."""
    faults: list[str] = []
    different_pyc: list[str] = []
    for path, member in ours.items():
        other = theirs.get(path)
        if other is None:
            faults.append(f"{path}: not installed by pip")
            continue
        if (other.is_folder, other.mode) != (member.is_folder, member.mode):
            faults.append(f"{path}: {other.mode:o} by pip, ours {member.mode:o}")
        if in_metadata(path) or other.sha256 == member.sha256:
            continue
        if not path.endswith(".pyc"):
            faults.append(f"{path}: content differs")
        elif same_code(marshal.loads(other.data[16:]), marshal.loads(member.data[16:])):
            different_pyc.append(path)
        else:
            faults.append(f"{path}: code differs")
    for path, other in theirs.items():
        folder, _, name = path.rpartition("/")
        of_venv = folder == "opt/venv/bin" and name.lower().startswith(("activate", "python"))
        compared = path.startswith(f"{SITE}/") or folder == "opt/venv/bin"
        if compared and path not in ours and not (other.is_folder or of_venv or in_metadata(path)):
            faults.append(f"{path}: only installed by pip")
    assert faults == []
    assert len(different_pyc) <= MOST_PYC_THAT_DIFFER, different_pyc
    assert len(ours) > 20_000


@needs_namespaces
def test_records_differ_only_in_our_own_files(ours: Members, theirs: Members) -> None:
    """RECORD, line by line: the same except for INSTALLER, REQUESTED and .pyc files."""

    def lines(text: bytes) -> set[tuple[str, ...]]:
        rows = csv.reader(io.StringIO(text.decode(), newline=""))
        different = ("INSTALLER", "REQUESTED")
        return {tuple(row) for row in rows if not row[0].endswith((".pyc", *different))}

    records = [path for path in ours if path.endswith(".dist-info/RECORD")]
    assert len(records) > 100
    for path in records:
        assert lines(ours[path].data) == lines(theirs[path].data), path


def kiln(arguments: list[str], environ: Mapping[str, str]) -> str:
    """The stdout of build.py."""
    argv = [sys.executable, str(ROOT / "build.py"), *arguments]
    done = subprocess.run(argv, env=dict(environ), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same_code(left: Any, right: Any) -> bool:
    """Whether two unmarshalled values are equal; code objects are compared part by part."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same_code, left, right))
    if hasattr(left, "co_code"):
        names = [n for n in dir(left) if n.startswith("co_") and not callable(getattr(left, n))]
        return all(same_code(getattr(left, n), getattr(right, n)) for n in names)
    return bool(left == right)
