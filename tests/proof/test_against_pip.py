"""Every wheel of the real set: our unpacked layers equal what real pip installs, in a real Dockerfile."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import marshal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from tests.needs import nightly
from tests.proof.headline import NAME, SITE
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof

# All allowed differences, with reasons.
#   INSTALLER   names who installed
#   REQUESTED   pip writes it for packages on the command line; a lock names all
#   RECORD      has our INSTALLER, and the .pyc files that pip does not make here
#   .pyc        a few files: marshal writes a constant once or twice, depending on what was interned
#               before; their loaded code is compared instead
METADATA_THAT_DIFFERS = {"INSTALLER", "REQUESTED", "RECORD"}
MOST_PYC_THAT_DIFFER = 10


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file or folder; `data` only of files that are compared in parts."""

    mode: int
    is_folder: bool
    sha256: bytes
    data: bytes = field(repr=False)


Members = dict[str, Member]


def members(stream: IO[bytes]) -> Iterator[tuple[str, Member]]:
    """What is below opt/venv in a tar archive, read by the standard library alone."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as tar:
        for member in tar:
            if member.name.startswith("opt/venv/"):
                file = tar.extractfile(member) if member.isfile() else None
                data = file.read() if file else b""
                kept = data if member.name.endswith((".pyc", "/RECORD")) else b""
                sha256 = hashlib.sha256(data).digest()
                yield (
                    member.name,
                    Member(mode=member.mode, is_folder=member.isdir(), sha256=sha256, data=kept),
                )


@pytest.fixture(scope="module")
def ours(image: dict[str, Any]) -> Members:
    """Every file and folder in the wheel layers of the image."""
    found = {}
    blobs = Path(image["layout"]) / "blobs" / "sha256"
    for layer in image["layers"][1:-1]:
        with gzip.open(blobs / layer["digest"].removeprefix("sha256:")) as stream:
            found |= dict(members(stream))
    return found


@pytest.fixture(scope="module")
def theirs(by_docker: Mapping[str, str]) -> Members:
    """The environment in the image that pip made there, as `docker export` sends it."""

    def docker(*words: str) -> str:
        argv = ["docker", *words]
        return subprocess.run(argv, env=dict(by_docker), capture_output=True, text=True, check=True).stdout

    made = docker("create", NAME).strip()
    with subprocess.Popen(["docker", "export", made], env=dict(by_docker), stdout=subprocess.PIPE) as sent:
        assert sent.stdout
        found = dict(members(sent.stdout))
        sent.stdout.read()
    assert sent.returncode == 0
    docker("rm", "--volumes", made)
    return found


def in_metadata(path: str) -> bool:
    return ".dist-info/" in path and path.rpartition("/")[2] in METADATA_THAT_DIFFERS


@nightly  # tests/docker/test_parity.py has a small image
def test_both_engines_images_are_the_same(image: dict[str, Any], by_docker: Mapping[str, str]) -> None:
    """Every path and setting by `diff --files`, except for its list and those .pyc files."""
    argv = ["diff", "--files", "--json", "--allow", str(ROOT / "torchkiln/data/parity.yaml")]
    argv += ["--output", image["layout"], f"docker:{NAME}", image["ref"]]
    result = json.loads(kiln(argv, by_docker))

    other_paths = {difference["at"] for difference in result["differences"]}
    assert {Path(path).suffix for path in other_paths} <= {".pyc"}
    assert {difference["what"] for difference in result["differences"]} <= {"content"}
    assert len(other_paths) <= MOST_PYC_THAT_DIFFER, other_paths
    assert (result["idle"], result["b"]["paths"] > 50_000) == ([], True)


@nightly  # the same
@pytest.mark.usefixtures("free_rootfs")
def test_pip_does_the_same_in_both(image: dict[str, Any], by_docker: Mapping[str, str]) -> None:
    listed = "pip list --format=freeze"
    script = f"{listed}; pip check; pip uninstall --yes tqdm; {listed}; pip check; ls /opt/venv/bin"
    command = ["sh", "-c", f"({script}) 2>&1"]
    docker = ["docker", "run", "--rm", "--entrypoint", "", NAME, *command]
    theirs = subprocess.run(docker, env=dict(by_docker), capture_output=True, text=True, check=True).stdout
    words = ["run", "--no-entrypoint", "--output", image["layout"], image["ref"], "--", *command]
    ours = kiln(words, by_docker)

    assert "Successfully uninstalled tqdm" in ours
    assert ours.count("torch==2.7.1") == 2
    assert ours == theirs


def test_our_layers_have_what_pip_installs(ours: Members, theirs: Members) -> None:
    """Paths, types, modes and contents; no file of pip's is missing."""
    faults: list[str] = []
    different_pyc: list[str] = []
    for path, member in ours.items():
        other = theirs.get(path)
        if other is None:
            faults.append(f"{path}: pip has none")
            continue
        if (other.is_folder, other.mode) != (member.is_folder, member.mode):
            faults.append(f"{path}: {other.mode:o} by pip, ours {member.mode:o}")
        if in_metadata(path) or other.sha256 == member.sha256:
            continue
        if not path.endswith(".pyc"):
            faults.append(f"{path}: another content")
        elif same_code(marshal.loads(other.data[16:]), marshal.loads(member.data[16:])):
            different_pyc.append(path)
        else:
            faults.append(f"{path}: loads to other code")
    for path, other in theirs.items():
        folder, _, name = path.rpartition("/")
        of_venv = folder == "opt/venv/bin" and name.lower().startswith(("activate", "python"))
        compared = path.startswith(f"{SITE}/") or folder == "opt/venv/bin"
        if compared and path not in ours and not (other.is_folder or of_venv or in_metadata(path)):
            faults.append(f"{path}: only pip has it")
    assert faults == []
    assert len(different_pyc) <= MOST_PYC_THAT_DIFFER, different_pyc
    assert len(ours) > 20_000


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
    """Whether two marshalled values mean the same, code objects compared part by part."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same_code, left, right))
    if hasattr(left, "co_code"):
        names = [n for n in dir(left) if n.startswith("co_") and not callable(getattr(left, n))]
        return all(same_code(getattr(left, n), getattr(right, n)) for n in names)
    return bool(left == right)
