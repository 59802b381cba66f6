"""Sdists of the default index and packages of a Git repository are built twice in the real base."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import needs_namespaces
from tests.servers.git_server import GitServer, needs_git_server
from torchkiln.projects.file import load_project
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.network, needs_namespaces]
LINES = "hydra-core==1.3.2\n"  # requires antlr4-python3-runtime 4.9, which has no wheel


def lock(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "build.py"), "project", "lock", str(folder)]
    command += ["--torch", "2.7", "--cuda", "12.1"]
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)


def test_a_dependency_without_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(LINES)
    (tmp_path / "torchkiln.toml").write_text('build = ["antlr4-python3-runtime"]\n')
    done = lock(tmp_path)

    assert done.returncode == 0, done.stderr
    found = load_project(tmp_path)
    assert found is not None
    (origin,) = found.origins
    assert origin.name == "antlr4-python3-runtime"
    assert origin.built is not None
    assert origin.built.sdist == "antlr4-python3-runtime-4.9.3.tar.gz"
    assert origin.built.reproducible
    assert "setuptools" in [wheel.name for wheel in origin.built.requires]


PYPROJECT = """\
[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"
[project]
name = "tool"
version = "1.5.dev0"
"""
SETUP = """\
from setuptools import Extension, setup
setup(ext_modules=[Extension("_tool", ["_tool.c"], include_dirs=["../ext/lib"])])
"""
MODULE = """\
#include <Python.h>
#include "answer.h"
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_tool", 0, ANSWER};
PyMODINIT_FUNC PyInit__tool(void) { return PyModule_Create(&module); }
"""


def test_a_package_in_c_of_a_repository(tmp_path: Path) -> None:
    """The package is in a subdirectory, and includes a header of another folder."""
    needs_git_server()
    (tmp_path / "server").mkdir()
    (tmp_path / "project").mkdir()
    with GitServer(tmp_path / "server") as server:
        files = {"pkg/pyproject.toml": PYPROJECT, "pkg/setup.py": SETUP, "pkg/_tool.c": MODULE}
        commit = server.commit("tool", {**files, "ext/lib/answer.h": "#define ANSWER -1\n"})
        line = f"tool @ git+{server.url('tool')}@main#subdirectory=pkg\n"
        (tmp_path / "project" / "requirements.txt").write_text(line)
        (tmp_path / "project" / "torchkiln.toml").write_text('build = ["tool"]\n')
        done = lock(tmp_path / "project")

    assert done.returncode == 0, done.stderr
    found = load_project(tmp_path / "project")
    assert found is not None
    (origin,) = found.origins
    assert origin.git is not None
    assert origin.built is not None
    assert (origin.git.commit, origin.git.subdirectory) == (commit, "pkg")
    assert origin.built.reproducible
    assert found.wheels[0].filename == "tool-1.5.dev0-cp311-cp311-linux_x86_64.whl"
