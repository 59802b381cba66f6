"""The locked pip, had once, kept in the cache, and asked to install wheels as the Dockerfile does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from tests.layers import sha256
from torchkiln.index.download import open_downloads
from torchkiln.lock.lock import load_locked
from torchkiln.model.lock import LockedWheel
from torchkiln.store.root import cache_root
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT
from torchkiln.wheel.install import parse_name


def locked_pip() -> LockedWheel:
    """The newest pip of the committed locks."""
    locks = [load_locked(ROOT / "images", path.parent.name) for path in ROOT.glob("images/*/lock.json")]
    pips = [wheel for lock in locks for wheel in lock.wheels if wheel.name == "pip"]
    return max(pips, key=lambda wheel: Version(wheel.version))


def pip_folder(scratch: Path) -> Path:
    """A folder to put on sys.path that holds that pip; from the index at the first call on a machine."""
    store = Store(cache_root())
    wheel = open_downloads(os.environ, store).fetch_wheel(locked_pip(), store)
    folder = scratch / "pip"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def requirements(wheels: Sequence[Path]) -> str:
    """*wheels* as lines with hashes."""
    lines = []
    for wheel in wheels:
        name = parse_name(wheel.name)
        lines.append(
            f"{name.distribution.replace('_', '-').lower()}=={name.version} --hash=sha256:{sha256(wheel)}"
        )
    return "\n".join([*lines, ""])


class RealPip:
    """One process in which pip installs wheel after wheel."""

    def __init__(self, folder: Path) -> None:
        driver = Path(__file__).with_name("pip_driver.py")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        self._process = subprocess.Popen(
            [sys.executable, "-B", str(driver), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def install(self, wheels: Sequence[Path], root: Path) -> None:
        """Install *wheels*, which lie in one folder, below *root*; it must go well."""
        code, talk = self.attempt(wheels, root)
        assert code == 0, talk

    def attempt(self, wheels: Sequence[Path], root: Path, wanted: str = "") -> tuple[int, str]:
        """The same, if it goes well: the exit code, and what was said. *wanted*: other requirements' text."""
        assert self._process.stdin
        assert self._process.stdout
        listed = root.with_name(root.name + ".txt")
        listed.write_text(wanted or requirements(wheels))
        told = {"links": str(wheels[0].parent), "requirements": str(listed), "root": str(root)}
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["talk"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
