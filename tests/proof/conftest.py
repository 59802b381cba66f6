"""The real 2.7.1 set, built once for all proofs, and what pip makes of the same wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchkiln.cli.options import cache_root
from torchkiln.lock import load_locked
from torchkiln.nouns import LockedCell
from torchkiln.places import ROOT
from torchkiln.store import Store

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
SITE = "opt/venv/lib/python3.11/site-packages"


def build(output: Path, *arguments: str, cache: Path | None = None) -> dict[str, Any]:
    """`build.py --json` of the headline cell, as a user runs it."""
    command = [sys.executable, str(ROOT / "build.py"), "--torch", "2.7", "--cuda", "12.1", "--json"]
    environ = dict(os.environ) | ({"TORCHKILN_CACHE": str(cache)} if cache else {})
    done = subprocess.run(
        [*command, "--output", str(output), *arguments], env=environ, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="session")
def locked() -> LockedCell:
    return load_locked(ROOT / "images", TAG)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The headline image in a layout of its own."""
    return build(tmp_path_factory.mktemp("proof") / "dist")


@pytest.fixture(scope="module")  # 6 GB: gone before the next module takes as much
def installed_by_pip(
    image: dict[str, Any], locked: LockedCell, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A root in which the image's own Python ran real pip and compileall over the locked wheels."""
    if os.geteuid() != 0:
        pytest.skip("needs root: pip must run inside the base, by chroot")
    store = Store(cache_root())
    root = tmp_path_factory.mktemp("pip") / "root"
    root.mkdir()
    base = store.blob(image["layers"][0]["digest"])
    subprocess.run(["tar", "-xzf", base, "-C", root], check=True)
    wheels = root / "wheels"
    wheels.mkdir()
    for wheel in locked.wheels:
        try:
            os.link(store.wheel(wheel), wheels / wheel.filename)
        except OSError:
            shutil.copy(store.wheel(wheel), wheels)
    (pip,) = (wheel.filename for wheel in locked.wheels if wheel.name == "pip")
    python = "/opt/venv/bin/python"
    install = f"{python} -B /wheels/{pip}/pip install --quiet --no-index --find-links /wheels --no-deps"
    pins = " ".join(f"{wheel.name}=={wheel.version}" for wheel in locked.wheels)
    script = f"""
        set -e; umask 022; cd /
        {install} --no-compile --no-warn-script-location --root-user-action=ignore {pins}
        {python} -m compileall -q -f --invalidation-mode unchecked-hash /{SITE}
    """
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    subprocess.run(["chroot", root, "/bin/bash", "-c", script], check=True, env=environ)
    yield root
    shutil.rmtree(root)
