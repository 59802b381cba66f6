"""Sigstore's verifier in JavaScript, of npm's: another reader of our bundles, which shares no code with ours.

tests/node/sigstore/package-lock.json holds the hash of each package; they are fetched once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.npm import kept, npm, program
from torchkiln.util.places import ROOT

_HERE = ROOT / "tests/node/sigstore"


def complaint(**asked: Any) -> str:
    """Why it does not believe a bundle; empty where it does. What it takes stands in verify.js."""
    done = subprocess.run(
        [program("node"), str(_packages() / "verify.js")],
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

    def make(folder: Path) -> Path:
        made = folder / "made"
        made.mkdir()
        for file in files:
            shutil.copy(file, made)
        npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], made, "@sigstore/verify")
        return made

    return kept(f"sigstore-js-{digest}", make)
