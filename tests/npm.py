"""npm's packages that tests run by node: fetched once, into a cache of the tests, there whole or not."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import platformdirs

from tests.needs import give_up


def kept(name: str, make: Callable[[Path], Path]) -> Path:
    """The folder *name* of that cache; where it is not there, what *make* makes in the folder it is given."""
    root = Path(platformdirs.user_cache_dir("torchkiln-tests"))
    root.mkdir(parents=True, exist_ok=True)
    place = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=root) as folder:
                make(Path(folder)).rename(place)
    return place


def npm(arguments: Sequence[str], folder: Path, what: str) -> None:
    """Run npm in *folder* to get *what*; where it cannot, the test skips, and in CI it fails."""
    argv = [program("npm"), *arguments, "--loglevel=error"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        give_up(f"npm gives no {what}: {done.stderr.strip()[-200:]}")


def program(name: str) -> str:
    """node or npm."""
    found = shutil.which(name)
    return found or give_up(f"there is no {name}: tools/system-packages tests")
