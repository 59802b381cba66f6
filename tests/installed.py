"""Install torchkiln from its wheel into a new virtual environment, as users do, and run it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from torchkiln.util.places import ROOT


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An environment with torchkiln, and with the libraries of the Python that runs the tests."""

    folder: Path
    wheel: Path
    environ: Mapping[str, str] = field(default_factory=dict)  # in addition to this process's

    @property
    def site(self) -> Path:
        """The environment's site-packages."""
        return self.folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)

    def kiln(self, *words: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `torchkiln WORDS...` in *folder*."""
        return self.run(str(self.folder / "bin/torchkiln"), *words, folder=folder, **environ)

    def python(self, code: str, *, folder: Path, **environ: str) -> str:
        """The output of *code* in the environment's Python."""
        done = self.run(str(self.folder / "bin/python"), "-c", code, folder=folder, **environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *argv: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run *argv* in *folder*."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        inherited["PATH"] = f"{self.folder / 'bin'}:{inherited.get('PATH', '/usr/bin:/bin')}"
        env = {**inherited, **self.environ, **environ}
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel of this checkout, built and installed without an index."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed: make setup")
    place = tmp_path_factory.mktemp("installed")
    words = ("--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "-q")
    _pip(sys.executable, "wheel", *words, "--no-build-isolation", "-w", str(place), str(ROOT))
    [wheel] = place.glob("torchkiln-*.whl")
    made = Installed(folder=place / "venv", wheel=wheel)
    venv.create(made.folder, with_pip=True, symlinks=True)
    # The folder of the libraries may have a .pth file of an editable torchkiln. Python ignores this file,
    # because it reads no .pth files in folders that a .pth file adds.
    (made.site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _pip(str(made.folder / "bin/python"), "install", *words, str(wheel))
    return made


def _pip(python: str, *words: str) -> None:
    done = subprocess.run([python, "-m", "pip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
