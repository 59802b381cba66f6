"""Every wheel of the real set: what our layers unpack to is what real pip installs."""

from __future__ import annotations

import csv
import gzip
import io
import marshal
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proof.conftest import SITE

pytestmark = pytest.mark.proof

# All that may differ, each with its reason.
#   INSTALLER   names who installed
#   REQUESTED   pip writes it for what the command line names; a lock names everything
#   RECORD      has our INSTALLER, and the .pyc files that pip was told not to make
#   .pyc        a few files: marshal writes a constant once or twice, by what the interpreter had interned
#               before; what they load to is compared instead
METADATA_THAT_DIFFERS = {"INSTALLER", "REQUESTED", "RECORD"}
MOST_PYC_THAT_DIFFER = 10


def members(image: dict[str, Any]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Every file and folder in the wheel layers of the image, read by the standard library alone."""
    blobs = Path(image["layout"]) / "blobs" / "sha256"
    for layer in image["layers"][1:-1]:
        with (
            gzip.open(blobs / layer["digest"].removeprefix("sha256:")) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            for member in tar:
                file = tar.extractfile(member)
                yield member, file.read() if file else b""


def in_metadata(path: str) -> bool:
    return ".dist-info/" in path and path.rpartition("/")[2] in METADATA_THAT_DIFFERS


def test_our_layers_unpack_to_what_pip_installs(image: dict[str, Any], installed_by_pip: Path) -> None:
    """Paths, kinds, modes and contents; and nothing of pip's is missing from ours."""
    ours: set[str] = set()
    faults: list[str] = []
    other_pyc: list[str] = []
    for member, data in members(image):
        path = member.name.rstrip("/")
        ours.add(path)
        theirs = installed_by_pip / path
        if not os.path.lexists(theirs):
            faults.append(f"{path}: pip has none")
            continue
        mode = theirs.lstat().st_mode
        if (stat.S_ISDIR(mode), stat.S_IMODE(mode)) != (member.isdir(), member.mode):
            faults.append(f"{path}: {stat.filemode(mode)} by pip, ours {member.mode:o}")
        if member.isdir() or in_metadata(path) or theirs.read_bytes() == data:
            continue
        if path.endswith(".pyc"):
            other_pyc.append(path)
            if not same_code(marshal.loads(data[16:]), marshal.loads(theirs.read_bytes()[16:])):
                faults.append(f"{path}: loads to other code")
        else:
            faults.append(f"{path}: another content")
    for folder, _, names in os.walk(installed_by_pip / SITE):
        for name in names:
            path = str(Path(folder, name).relative_to(installed_by_pip))
            if path not in ours and not in_metadata(path):
                faults.append(f"{path}: only pip has it")
    for script in os.listdir(installed_by_pip / "opt/venv/bin"):
        of_venv = script.lower().startswith(("activate", "python"))
        if not of_venv and f"opt/venv/bin/{script}" not in ours:
            faults.append(f"bin/{script}: only pip has it")
    assert faults == []
    assert len(other_pyc) <= MOST_PYC_THAT_DIFFER, other_pyc
    assert len(ours) > 20_000


def test_records_differ_in_what_is_ours_alone(image: dict[str, Any], installed_by_pip: Path) -> None:
    """RECORD, line by line: the same but for INSTALLER, REQUESTED and .pyc files."""

    def lines(text: bytes) -> set[tuple[str, ...]]:
        rows = csv.reader(io.StringIO(text.decode(), newline=""))
        kept = ("INSTALLER", "REQUESTED")
        return {tuple(row) for row in rows if not row[0].endswith((".pyc", *kept))}

    seen = 0
    for member, data in members(image):
        if member.name.endswith(".dist-info/RECORD"):
            seen += 1
            assert lines(data) == lines((installed_by_pip / member.name).read_bytes()), member.name
    assert seen > 100


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
