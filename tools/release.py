#!/usr/bin/env python3
"""The way of the workflows on one machine: build what changed, prove it, ask the gate, publish, verify.

`make release TO=REGISTRY/REPOSITORY KEY=KEY.pem` is all of it on a machine with GPUs. With REPORTS=FOLDER
nothing is run here: the reports were made elsewhere (docs/gpu-hosts/). One cell's failure stops no other.
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
    """The exit code: the worst of the cells'."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", required=True, metavar="REGISTRY/REPOSITORY")
    parser.add_argument("--key", required=True, metavar="KEY.pem", type=Path, help="signs what is published")
    parser.add_argument(
        "--since", metavar="GIT_REF", help="cells that changed since; else all that are locked"
    )
    parser.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="of runs elsewhere; nothing is run here"
    )
    parser.add_argument("--trust", action="append", default=[], metavar="PUB.pem", help="who signed those")
    parser.add_argument("--tier", default="2", help="of the checks that are run here")
    asked = parser.parse_args(arguments)
    since = ["--changed-since", asked.since] if asked.since else []
    # As a person would in between: every step is a command that can be repeated alone.
    listed = subprocess.run([*KILN, "list", "--all", "--github", *since], stdout=subprocess.PIPE, check=False)
    if listed.returncode:
        return listed.returncode
    cells = json.loads(listed.stdout)["include"]
    if not cells:
        say("no cell to release")
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder) / "public.pem"
        try:
            public.write_bytes(public_half(asked.key))
        except (OSError, KilnError) as error:
            parser.error(f"--key {asked.key}: {error}")
        ended = {cell["tag"]: release(cell, asked, public) for cell in cells}
    for tag, code in ended.items():
        say(f"{tag}: {f'failed ({code})' if code else 'published and verified'}")
    return max(ended.values(), default=0)


def release(cell: dict[str, str], asked: argparse.Namespace, public: Path) -> int:
    """The exit code of the first step that fails, else 0."""
    tag, keys, reports = cell["tag"], (public, *asked.trust), []
    chosen = [word for name in ("torch", "cuda", "flavor", "os") for word in (f"--{name}", cell[name])]
    steps = [["build", *chosen, "--locked"]]
    if asked.reports:
        reports = ["--report", str(asked.reports)]
        reports += [word for key in keys for word in ("--trust", str(key))]
    else:  # and the gate takes this machine's own run
        steps.append(["smoke", "run", tag, "--tier", asked.tier])
    steps.append(["gate", tag, *reports])
    steps.append(["publish", tag, "--to", asked.to, *reports, "--key", str(asked.key)])
    steps.append(["verify", f"{asked.to}:{tag}", *(word for key in keys for word in ("--key", str(key)))])
    for step in steps:
        say(f"{tag}: {step[0]}")
        if code := subprocess.run([*KILN, *step], check=False).returncode:
            return code
    return 0


def public_half(key: Path) -> bytes:
    """PEM of the public key that belongs to the private one in the file *key*."""
    # Not taken out of the environment: `publish` asks for it too.
    found = private_key(key.read_bytes(), os.environ.get(PASSPHRASE) or None, where=str(key))
    return found.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def say(line: str) -> None:
    """stderr is talk; stdout is what the commands print."""
    sys.stderr.write(f"release: {line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
