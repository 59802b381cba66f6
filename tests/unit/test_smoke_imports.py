"""Required imports: torch, numpy and torchvision always, torchaudio if it is locked or installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.expected import expected
from tests.planned import ROOT
from tests.programs import run_program

TORCH = """
__version__ = "2.15.0+cu132"
class __config__:
    show = staticmethod(lambda: "")
class Sum(list):
    add = numpy = lambda self, *_: self
    tolist = lambda self: [1, 2, 3]
from_numpy = Sum
"""
ALL = {"torch": TORCH, "numpy": "__version__ = '2.4'\narange = range", "torchvision": "__version__ = '0.29'"}


def imported(folder: Path, modules: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The result of the probe, for *modules* in place of the real packages."""
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    return run_program(
        [sys.executable, "-B", str(ROOT / "smoke_tests/probes/imports.py")],
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


@pytest.mark.parametrize("audio", [None, "__version__ = '2.11.0'"])
def test_torchaudio_is_imported_if_it_is_installed(tmp_path: Path, audio: str | None) -> None:
    ran = imported(tmp_path, ALL if audio is None else {**ALL, "torchaudio": audio})
    versions = json.loads(ran.stdout)["versions"]

    assert sorted(versions) == sorted([*ALL, *(["torchaudio"] if audio else [])])


def test_a_torchaudio_that_refuses_this_torch_fails(tmp_path: Path) -> None:
    ran = imported(tmp_path, {**ALL, "torchaudio": "raise RuntimeError('other CUDA')"})

    assert (ran.returncode, "other CUDA" in ran.stderr) == (1, True)


def test_other_packages_must_not_be_missing(tmp_path: Path) -> None:
    assert imported(tmp_path, {**ALL, "torchvision": "import nothing_like_it"}).returncode == 1


@pytest.mark.parametrize(
    ("locked", "promised"),
    [
        ({"torch": "2.7.1+cu126", "torchaudio": "2.7.1"}, {"torchaudio": "2.7.1", "numpy": None}),
        ({"torch": "2.15.0"}, {"numpy": None, "torchvision": None}),
    ],
)
def test_a_locked_torchaudio_is_expected(locked: dict[str, str], promised: dict[str, Any]) -> None:
    """If the lock has it and it is not installed, the versions differ, and the check fails."""
    facts = {"wheels": [{"name": name, "version": version} for name, version in locked.items()]}
    found = expected("promised_versions", facts, {})

    assert promised.items() <= found.items()
    assert ("torchaudio" in found) is ("torchaudio" in locked)
