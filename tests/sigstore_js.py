"""Sigstore's verifier in JavaScript, of npm's: another reader of our bundles, which shares no code with ours.

tests/node/sigstore/package-lock.json holds the hash of each package; they are fetched once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import platformdirs
import pytest

from torchkiln.places import ROOT

_HERE = ROOT / "tests/node/sigstore"


def complaint(**asked: Any) -> str:
    """Why it does not believe a bundle; empty where it does. What it takes stands in verify.js."""
    done = subprocess.run(
        [_program("node"), str(_packages() / "verify.js")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(done.stdout).get("error", ""))


def _packages() -> Path:
    """A folder with them and the program; its name holds the digest of what is in it."""
    files = [_HERE / name for name in ("package.json", "package-lock.json", "verify.js")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    root = Path(platformdirs.user_cache_dir("torchkiln-tests"))
    root.mkdir(parents=True, exist_ok=True)
    place = root / f"sigstore-js-{digest}"
    with (root / "sigstore-js.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=root) as folder:
                made = Path(folder, "made")
                made.mkdir()
                for file in files:
                    shutil.copy(file, made)
                _install(made)
                made.rename(place)
    return place


def _install(folder: Path) -> None:
    done = subprocess.run(
        [_program("npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        _missing(f"npm gives no @sigstore/verify: {done.stderr.strip()[-200:]}")


def _program(name: str) -> str:
    return shutil.which(name) or _missing(f"there is no {name}: tools/system-packages tests")


def _missing(what: str) -> NoReturn:
    """As for an engine: a test skips, and says why; in CI it fails."""
    if os.environ.get("TORCHKILN_NEEDS_ENGINE"):
        pytest.fail(what)
    pytest.skip(what)
