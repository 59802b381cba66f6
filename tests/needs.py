"""What tests want of the machine: who lacks it skips, and the reason says how to get it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler: apt-get install gcc")
needs_ldconfig = pytest.mark.skipif(
    not Path("/sbin/ldconfig").exists(), reason="no ldconfig to put into an image: apt-get install libc-bin"
)
needs_mmdebstrap = pytest.mark.skipif(
    not shutil.which("mmdebstrap"), reason="mmdebstrap is not installed: apt-get install mmdebstrap"
)
without_gpus = pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="this host has GPUs, and it is tested what happens without"
)


def tool(name: str) -> None:
    """Skip where the program *name* is not installed; Debian's package has its name."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")


def give_up(reason: str) -> NoReturn:
    """What an engine takes is not here: a skip, or a failure where `.ci/run` set TORCHKILN_NEEDS_ENGINE."""
    (pytest.fail if os.environ.get("TORCHKILN_NEEDS_ENGINE") else pytest.skip)(reason)
