#!/usr/bin/env python3
"""Release on one machine, as the workflows do: build changed cells, test, check the gate, publish, verify.

`make release TO=REGISTRY/REPOSITORY KEY=KEY.pem` runs all steps on a machine with GPUs. With REPORTS=FOLDER,
no tests run: the reports come from other machines (docs/deploy.md). If a cell fails, the next ones continue.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from torchkiln.attest.dsse import PASSPHRASE, private_key
from torchkiln.errors import KilnError

ROOT = Path(__file__).resolve().parent.parent
KILN = [sys.executable, str(ROOT / "build.py")]


def main(arguments: Sequence[str]) -> int:
    """Release all cells; returns their highest exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", required=True, metavar="REGISTRY/REPOSITORY")
    parser.add_argument("--key", required=True, metavar="KEY.pem", type=Path, help="signs what is published")
    parser.add_argument(
        "--since", metavar="GIT_REF", help="only cells that changed since; else all locked cells"
    )
    parser.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="reports of other machines; no tests run here"
    )
    parser.add_argument("--trust", action="append", default=[], metavar="PUB.pem", help="of laboratories")
    parser.add_argument("--tier", default="2", help="of the checks that run here")
    options = parser.parse_args(arguments)
    since = ["--changed-since", options.since] if options.since else []
    # Every step is a command that you can repeat separately.
    listed = subprocess.run([*KILN, "ci", "matrix", "--all", *since], stdout=subprocess.PIPE, check=False)
    if listed.returncode:
        return listed.returncode
    cells = json.loads(listed.stdout)["include"]
    if not cells:
        say("no cell to release")
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder) / "public.pem"
        try:
            public.write_bytes(public_half(options.key))
        except (OSError, KilnError) as error:
            parser.error(f"--key {options.key}: {error}")
        ended = {cell["tag"]: release(cell, options, public) for cell in cells}
    for tag, code in ended.items():
        say(f"{tag}: {f'failed ({code})' if code else 'published and verified'}")
    return max(ended.values(), default=0)


def release(cell: dict[str, str], options: argparse.Namespace, public: Path) -> int:
    """Release a cell; returns the exit code of the first step that fails, else 0."""
    tag, reports = cell["tag"], []
    laboratories = [f"laboratory={key}" for key in (public, *options.trust)]
    steps = [["build", tag, "--locked", "--no-smoke"]]  # `smoke`, or another machine, tests it
    if options.reports:
        reports = ["--report", str(options.reports)]
        reports += [word for key in laboratories for word in ("--trust", key)]
    else:  # the gate accepts the run on this machine
        steps.append(["smoke", "run", tag, "--tier", options.tier])
    steps.append(["gate", tag, *reports])
    steps.append(["publish", tag, "--to", options.to, *reports, "--key", str(options.key)])
    keys = [word for key in (f"publisher={public}", *laboratories) for word in ("--key", key)]
    steps.append(["verify", f"{options.to}:{tag}", *keys])
    for step in steps:
        say(f"{tag}: {step[0]}")
        if code := subprocess.run([*KILN, *step], check=False).returncode:
            return code
    return 0


def public_half(key: Path) -> bytes:
    """The public key of the private key in the file *key*, as PEM."""
    # PASSPHRASE stays in the environment: `publish` reads it too.
    found = private_key(key.read_bytes(), os.environ.get(PASSPHRASE) or None, where=str(key))
    return found.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def say(line: str) -> None:
    """Print to stderr; stdout is for the output of the commands."""
    sys.stderr.write(f"release: {line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
