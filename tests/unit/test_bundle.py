"""The content of a bundle of checks, which is written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.programs import run_program
from torchkiln.errors import VerificationFailed
from torchkiln.smoke.bundle.contents import BundleFile
from torchkiln.smoke.bundle.write import write_folder, write_parts, write_tar
from torchkiln.util.places import ROOT

HOSTILE: dict[str, str | None] = {
    "a pipe": None,
    "not a mapping": "[]",
    "a key is missing": '{"files": {}}',
    "deep": "[" * 100_000,
    "control characters": '{"files": {"\\u001b]0;owned": ""}, %s}',
    "a file elsewhere": '{"files": {"../x": ""}, %s}',
    "an absolute file": '{"files": {"/etc/passwd": ""}, %s}',
    "a digest of another type": '{"files": {"x": 7}, %s}',
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_description_is_refused(tmp_path: Path, case: str) -> None:
    rest = '"held": {}, "arguments": [], "tag": "a", "python": "a", "loader": "b"'
    shutil.copy(ROOT / "torchkiln/cli/bundle_run.py", tmp_path / "run.py")
    if (text := HOSTILE[case]) is None:
        os.mkfifo(tmp_path / "bundle.json")
    else:
        (tmp_path / "bundle.json").write_text(text.replace("%s", rest))
    command = [sys.executable, "-I", "-S", str(tmp_path / "run.py")]
    done = run_program(command, timeout=60)
    assert (done.returncode, done.stdout) == (12, ""), done.stderr
    assert done.stderr.startswith("error: the bundle is damaged: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.strip().isprintable()


FORMS: dict[str, Callable[[Sequence[BundleFile], Path], None]] = {
    "folder": write_folder,
    "tar": write_tar,
    "parts": lambda files, target: write_parts(files, target, 1 << 20),
}


def carried(folder: Path) -> list[BundleFile]:
    """A small file in memory, and a file on disk that is copied in more than two pieces."""
    large = folder / "large"
    large.write_bytes(b"layer" * (1 << 19))
    files = {"run.py": b"print()\n", "layout/blobs/sha256/large": large}
    return [
        BundleFile(path=path, source=source, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for path, source in files.items()
        for data in [source if isinstance(source, bytes) else source.read_bytes()]
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("harm", ["changed", "longer", "shorter"])
def test_a_file_that_changed_leaves_no_bundle(form: str, harm: str, tmp_path: Path) -> None:
    files, target = carried(tmp_path), tmp_path / "out" / "bundle"
    target.parent.mkdir()
    source = files[1].source
    assert isinstance(source, Path)
    data = source.read_bytes()
    source.write_bytes({"changed": b"L" + data[1:], "longer": data + b"r", "shorter": data[:-1]}[harm])

    with pytest.raises(VerificationFailed, match="large"):
        FORMS[form](files, target)
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_the_same_files_unchanged_are_a_bundle(form: str, tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    FORMS[form](carried(tmp_path), target)
    assert target.exists()


@pytest.mark.parametrize("form", FORMS)
def test_bytes_with_a_wrong_digest_are_refused(form: str, tmp_path: Path) -> None:
    run, *rest = carried(tmp_path)
    with pytest.raises(VerificationFailed, match="run"):
        FORMS[form]([replace(run, source=b"exit()\n\n"), *rest], tmp_path / "bundle")


REQUIREMENTS = ROOT / "torchkiln/smoke/bundle/requirements.txt"

IMPORTED = """
import sys, torchkiln.cli.bundle_layers, torchkiln.cli.run, torchkiln.cli.smoke, torchkiln.smoke.session
import torchkiln.cli.project, torchkiln.cli.shared.project, torchkiln.projects.smoke.carried
import torchkiln.projects.smoke.session
print("\\n".join({name.partition(".")[0] for name in sys.modules}))
"""


def pinned() -> set[str]:
    lines = REQUIREMENTS.read_text().splitlines()
    names = (line.rstrip(" \\") for line in lines if line and not line.startswith((" ", "#")))
    return {Requirement(name).name for name in names}


def test_every_package_that_smoke_imports_is_in_the_bundle() -> None:
    """The bundle's host has no packages installed: if one is missing, run.py cannot start."""
    ran = run_program([sys.executable, "-c", IMPORTED], check=True, cwd=Path(ROOT))
    known = packages_distributions()
    imported = {
        known[name][0].lower().replace("_", "-").replace(".", "-")
        for name in ran.stdout.split()
        if name in known
    }
    assert {"click", "msgspec"} <= imported
    assert imported - {"torchkiln", "setuptools"} <= pinned()  # a .pth file of setuptools loads it at startup
