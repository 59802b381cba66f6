"""A real package that is on the default index only as source code: built in the real base, twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs_namespaces
from torchkiln.project.file import load_project
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.network, needs_namespaces]
LINES = "hydra-core==1.3.2\n"  # requires antlr4-python3-runtime 4.9, of which there is no wheel


def test_a_dependency_without_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    (tmp_path / "torchkiln.toml").write_text('build = ["antlr4-python3-runtime"]\n')
    command = [sys.executable, str(ROOT / "build.py"), "lock", "--project", str(tmp_path)]
    command += ["--torch", "2.7", "--cuda", "12.1"]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    found = load_project(tmp_path)
    assert found is not None
    (origin,) = found.origins
    assert origin.name == "antlr4-python3-runtime"
    assert origin.built is not None
    assert origin.built.sdist == "antlr4-python3-runtime-4.9.3.tar.gz"
    assert origin.built.reproducible
    assert "setuptools" in [wheel.name for wheel in origin.built.requires]
