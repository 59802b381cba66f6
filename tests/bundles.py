"""Makes bundles of a scene's image, and runs them in isolation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.docker.scene import TAG, Scene
from tests.programs import run_program


def made(scene: Scene, place: Path, *arguments: str) -> str:
    """The output of the command that makes a bundle at *place*."""
    ran = scene.command("smoke", TAG, "--images", str(scene.images), "--bundle", str(place), *arguments)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{place}\n"
    return ran.stderr


def started(bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python3 run.py` in isolation: with an empty PATH, without a network and a home folder."""
    argv = [shutil.which("unshare") or "unshare", "--net", sys.executable, "-I", "-S", str(bundle / "run.py")]
    return run_program([*argv, *arguments], env={"PATH": "/nowhere"}, cwd="/")
