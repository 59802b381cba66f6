#!/usr/bin/env python3
"""Runs the checks of the bundle that it lies in: python3 run.py [options of `torchkiln smoke run`].

Needs Python 3.8 or newer, Linux on x86-64, and root or user namespaces; no network, no package, no Docker.
That Python only looks whether the bundle is whole. The rest is done by the bundle's own, which is started
through its own loader, so that nothing of the host's Python or C library takes part. Without --report the
report is report.json beside this file. Exit codes are those of `torchkiln smoke`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
from typing import Any, NoReturn

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCH = os.path.join(HERE, "python", "usr", "launch")
PYTHON = os.path.join(LAUNCH, "python3")
UNWRITABLE, MACHINE, DAMAGED = 6, 8, 12  # exit codes
# Started so, a program of the bundle finds its own libraries, and Python itself by its own name.
LAUNCHER = """#!/bin/sh
exec {loader} --inhibit-cache --library-path {libraries} --argv0 "$0" {program} "$@"
"""


def main() -> None:
    """Look at the bundle, then start its Python with this file again, which ends as `smoke run`."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        leave(MACHINE, f"the image is for Linux on x86-64, this is {sys.platform} on {platform.machine()}")
    try:
        with open(os.path.join(HERE, "bundle.json"), "rb") as file:
            bundle = json.loads(file.read().decode())
    except (OSError, ValueError) as error:
        leave(DAMAGED, f"the bundle is damaged: bundle.json: {error}; bring it here again")
    if sys.executable == PYTHON:
        run(bundle, sys.argv[1:])
    else:
        start(bundle, sys.argv[1:])


def start(bundle: dict[str, Any], arguments: list[str]) -> NoReturn:
    """This file by the bundle's own Python, if the bundle is whole."""
    wrong = [name for name, digest in sorted(bundle["files"].items()) if sha256(name) != digest]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        leave(DAMAGED, f"the bundle is damaged: {', '.join(wrong[:3])}{more}; bring it here again")
    environ = dict(os.environ, TORCHKILN_CACHE=os.path.join(HERE, "cache"))
    environ["PATH"] = LAUNCH + os.pathsep + environ.get("PATH", os.defpath)
    try:
        write_launchers(bundle)
        os.execve(PYTHON, [PYTHON, "-I", "-S", "-B", os.path.abspath(__file__), *arguments], environ)
    except OSError as error:
        needs = "the bundle needs a folder that can be written to, of a file system without noexec"
        leave(UNWRITABLE, f"{LAUNCH}: {error.strerror}; {needs}")


def run(bundle: dict[str, Any], arguments: list[str]) -> None:
    """In the bundle's own Python: what was asked for when it was made, then what is asked for now."""
    sys.path[:0] = [os.path.join(HERE, "checkout"), os.path.join(HERE, "packages")]
    from torchkiln.cli import main as torchkiln

    told = ["smoke", "run", bundle["tag"], "--output", os.path.join(HERE, "layout")]
    told += ["--images", os.path.join(HERE, "checkout", "images")]
    told += ["--matrix", os.path.join(HERE, "checkout", "matrix.yaml")]
    told += ["--report", os.path.join(HERE, "report.json")]
    torchkiln([*told, *bundle["arguments"], *arguments])


def sha256(name: str) -> str | None:
    """Of a file of the bundle, hex; None if it cannot be read."""
    seen = hashlib.sha256()
    try:
        with open(os.path.join(HERE, *name.split("/")), "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                seen.update(piece)
    except OSError:
        return None
    return seen.hexdigest()


def write_launchers(bundle: dict[str, Any]) -> None:
    """Small scripts with the place of the bundle in them, which is known only now."""
    root = os.path.join(HERE, "python")
    os.makedirs(LAUNCH, exist_ok=True)
    for name, program in (("python3", bundle["python"]), ("tar", "usr/bin/tar")):
        text = LAUNCHER.format(
            loader=shlex.quote(os.path.join(root, bundle["loader"])),
            libraries=shlex.quote(os.path.join(root, os.path.dirname(bundle["loader"]))),
            program=shlex.quote(os.path.join(root, program)),
        )
        place = os.path.join(LAUNCH, name)
        with open(f"{place}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(file.name, 0o755)
        os.replace(file.name, place)


def leave(code: int, message: str) -> NoReturn:
    """End with one sentence."""
    sys.stderr.write(f"error: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
