"""Install torchkiln with pip and with uv, and build an image with the real torch from an empty folder."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.installed import Installed, installed
from tests.needs import nightly
from tests.programs import run_program
from tests.readmes import ENGLISH, blocks
from torchkiln.index.settings import index_settings
from torchkiln.util.places import ROOT

__all__ = ["installed"]

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("free_rootfs")]

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
CODE = "import torch; print(torch.__version__, (torch.ones(2, 2) @ torch.ones(2, 2)).sum().item())"


def test_from_an_empty_folder_to_torch(installed: Installed, tmp_path: Path) -> None:
    """Run `init`, `lock`, `build`, `run` and `smoke`. The wheels come from the user's index or cache.

    test_reproducible.py runs all checks of the suite in the committed image.
    """

    def kiln(*words: str) -> str:
        done = installed.kiln(*words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    kiln("init", "--torch", "2.7", "--cuda", "12.1")
    assert kiln("lock") == f"{TAG}\n"
    image = json.loads(kiln("build", "--json"))
    assert kiln("run", TAG, "--", "python", "-c", CODE) == "2.7.1+cu126 8.0\n"
    kiln("smoke", TAG, "--only", "import", "--only", "lock")

    assert image["tag"] == TAG
    assert {path.name for path in (tmp_path / "images").iterdir()} == {TAG, "base-debian12"}


@nightly
def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    """Unchanged: `uv tool install .` in the checkout, the other commands in an empty folder."""
    [block] = [block for block in blocks(ENGLISH.read_text(), "sh") if block.startswith("uv tool install")]
    install, *others = block.splitlines()
    project, programs = tmp_path / "project", tmp_path / "bin"
    project.mkdir()
    env = {
        **os.environ,
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(programs),
        "UV_DEFAULT_INDEX": index_settings(os.environ).default_url,  # uv does not read pip's configuration
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    for command, folder in ((install, ROOT), *((other, project) for other in others)):
        done = run_program(shlex.split(command), cwd=folder, env=env)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    [digest] = done.stdout.split()
    assert len(others) == 3
    assert (programs / "torchkiln").resolve().is_relative_to(tmp_path / "tools")
    names = json.loads((project / "dist/index.json").read_text())["manifests"]
    assert digest in {manifest["digest"] for manifest in names}
