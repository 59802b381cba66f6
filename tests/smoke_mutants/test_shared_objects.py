"""The broken environments of shared_objects.py, tried on a stand-in for cuDNN: each breaks what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.smoke_mutants.pretended import another_cudnn, without_library

pytestmark = needs_gcc
ASKED = (
    "import ctypes, sys; asker = ctypes.CDLL(sys.argv[1]); "
    "print(asker.number(), asker.minor(), asker.create())"
)


@pytest.fixture
def asker(tmp_path: Path) -> Path:
    """A library that needs a cuDNN 9.5.1, whose symbols have versions as the real one's have."""
    (tmp_path / "map").write_text("libcudnn.so.9 { global: *; };\n")
    real, asker = tmp_path / "libcudnn.so.9", tmp_path / "libasker.so"
    _build(
        "unsigned long cudnnGetVersion(void) { return 90501; }"
        "int cudnnGetProperty(int which, int *value) { *value = 5; return 0; }"
        "int cudnnCreate(void) { return 7; }",
        ["-o", str(real), "-Wl,-soname,libcudnn.so.9", f"-Wl,--version-script,{tmp_path}/map"],
    )
    _build(
        "unsigned long cudnnGetVersion(void); int cudnnGetProperty(int, int *); int cudnnCreate(void);"
        "int number(void) { return cudnnGetVersion(); } int create(void) { return cudnnCreate(); }"
        "int minor(void) { int value; cudnnGetProperty(1, &value); return value; }",
        ["-x", "none", str(real), "-o", str(asker), "-Wl,-rpath,$ORIGIN"],
    )
    return asker


@pytest.mark.parametrize(("version", "number"), [((9, 1, 0), 90100), ((8, 9, 7), 8907)])
def test_another_cudnn_answers_for_its_version_and_the_real_one_for_the_rest(
    version: tuple[int, int, int], number: int, asker: Path, tmp_path: Path
) -> None:
    assert _ask(asker, {}).stdout.split() == ["90501", "5", "7"]
    told = _ask(asker, another_cudnn(tmp_path, version))
    assert told.stdout.split() == [str(number), str(version[1]), "7"]


def test_a_library_that_is_hidden_is_not_found_and_others_are(asker: Path, tmp_path: Path) -> None:
    assert _ask(asker, without_library(tmp_path, "libcublas")).stdout.split() == ["90501", "5", "7"]
    told = _ask(asker, without_library(tmp_path, "libcudnn.so"))
    assert told.returncode != 0
    assert "cannot open shared object file" in told.stderr


def _build(source: str, options: list[str]) -> None:
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", *options]
    subprocess.run(command, input=source, text=True, check=True)


def _ask(asker: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", ASKED, str(asker)]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)
