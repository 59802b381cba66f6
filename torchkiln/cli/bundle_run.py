#!/usr/bin/env python3
"""Runs the checks of the bundle that contains it: python3 run.py [options of `torchkiln smoke run`].

In the bundle of a project these are the project's checks, with the options of `torchkiln project smoke`, and
`python3 run.py smoke [options of torchkiln smoke run]` runs the smoke tests in the project's image.
`python3 run.py run [options of torchkiln run] -- COMMAND` runs a command in the bundle's image instead.
`python3 run.py --have` lists the layers on this host, for `torchkiln smoke run --bundle FOLDER --have FILE`.
`python3 run.py --from FOLDER ...` copies the layers that a bundle made with --have lacks from the bundle in
FOLDER. --from is repeatable and precedes the other options; the default is every bundle beside this one.

Needs Python 3.8 or newer, Linux on x86-64, and root or user namespaces; no network, no packages, no Docker.
The host's Python only verifies the bundle. The bundle's own Python does the rest; it is started through its
own loader, so that it uses neither the host's Python nor its C library. Without --report the report is
report.json beside this file. Exit codes are those of `torchkiln smoke run`, or of the command.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shlex
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

HERE = os.path.dirname(os.path.realpath(__file__))
LAUNCH = os.path.join(HERE, "python", "usr", "launch")
PYTHON = os.path.join(LAUNCH, "python3")
USAGE, UNWRITABLE, MACHINE, DAMAGED = 2, 6, 8, 12  # exit codes
HAVE, FROM = "--have", "--from"
PROJECT = "checkout/project"  # only the bundle of a project has it
LARGEST = 64 << 20  # bytes of bundle.json
LARGE = 1_000_000_000  # bytes; a smaller bundle is verified in about two seconds, so prints no progress
# The loader uses the libraries of the bundle; Python finds its standard library by --argv0.
LAUNCHER = """#!/bin/sh
exec {loader} --inhibit-cache --library-path {libraries} --argv0 "$0" {program} "$@"
"""


def main() -> None:
    """Verify the bundle, then run this file again with the bundle's Python, which runs `smoke run`."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        leave(MACHINE, f"the image is for Linux on x86-64, this is {sys.platform} on {platform.machine()}")
    try:
        with opened("bundle.json") as file:
            bundle = described(json.loads(file.read(LARGEST).decode()))
    except (OSError, ValueError, RecursionError) as error:
        leave(DAMAGED, f"the bundle is damaged: bundle.json: {error}; copy it here again")
    if sys.executable == PYTHON:
        run(bundle, sys.argv[1:])
    else:
        start(bundle, sys.argv[1:])


def described(value: Any) -> dict[str, Any]:
    """*value*, the content of bundle.json.

    :raises ValueError: it does not describe a bundle.
    """
    kinds = {"files": dict, "held": dict, "arguments": list, "tag": str, "python": str, "loader": str}
    if not isinstance(value, dict) or any(not isinstance(value.get(key), kinds[key]) for key in kinds):
        raise ValueError("not the description of a bundle")
    files: dict[str, Any] = value["files"]
    names = (value["python"], value["loader"], *files)
    outside = any(not part.strip(".") for name in names for part in name.split("/"))
    if outside or not all(isinstance(text, str) for text in (*files.values(), *value["arguments"])):
        raise ValueError("it has a file outside of the bundle, or a value that is not text")
    return value


def opened(name: str) -> BinaryIO:
    """A file of the bundle, opened for reading; it does not block on a pipe.

    :raises OSError: it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(os.path.join(HERE, *name.split("/")), os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return open(descriptor, "rb")


def start(bundle: dict[str, Any], arguments: list[str]) -> NoReturn:
    """Run this file with the bundle's own Python, if no file of the bundle is damaged."""
    progress = Progress(bundle["files"])
    files = sorted(bundle["files"].items())
    wrong = [name for name, digest in files if sha256(name, progress.advance) != digest]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        leave(DAMAGED, f"the bundle is damaged: {', '.join(wrong[:3])}{more}; copy it here again")
    environ = dict(os.environ, TORCHKILN_CACHE=os.path.join(HERE, "cache"))
    environ["PATH"] = LAUNCH + os.pathsep + environ.get("PATH", os.defpath)
    try:
        write_launchers(bundle)
        os.execve(PYTHON, [PYTHON, "-I", "-S", "-B", os.path.abspath(__file__), *arguments], environ)
    except OSError as error:
        needs = "the bundle needs a writable folder on a file system without noexec"
        leave(UNWRITABLE, f"{LAUNCH}: {error.strerror}; {needs}")


def run(bundle: dict[str, Any], arguments: list[str]) -> None:
    """Run torchkiln with the options of the bundle and *arguments*. This runs in the bundle's own Python."""
    sys.path[:0] = [os.path.join(HERE, "checkout"), os.path.join(HERE, "packages")]
    from torchkiln.cli import main as torchkiln
    from torchkiln.cli.bundle_layers import list_layers, take_layers

    folders, have, arguments = own_options(arguments)
    if have:
        sys.exit(list_layers(Path(HERE), folders))
    if code := take_layers(Path(HERE), bundle, folders):
        sys.exit(code)
    layout = os.path.join(HERE, "layout")
    if arguments[:1] == ["run"]:
        torchkiln(["run", "--output", layout, *arguments[1:]])
        return
    words, report = ["smoke", "run", bundle["tag"]], "report.json"
    of_project = any(name.startswith(f"{PROJECT}/") for name in bundle["files"])
    if of_project and arguments[:1] == ["smoke"]:
        report, arguments = "suite.json", arguments[1:]
    else:
        words = ["project", "smoke", os.path.join(HERE, PROJECT)] if of_project else words
        words += bundle["arguments"]
    words += ["--output", layout]
    words += ["--images", os.path.join(HERE, "checkout", "images")]
    words += ["--matrix", os.path.join(HERE, "checkout", "matrix.yaml")]
    torchkiln([*words, "--report", os.path.join(HERE, report), *arguments])


def own_options(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """The folders of --from, whether --have is given, and the other *arguments*."""
    rest, folders, have = list(arguments), [], False
    while rest and rest[0].partition("=")[0] in (HAVE, FROM):
        name, equals, value = rest.pop(0).partition("=")
        if name == HAVE and not equals:
            have = True
        elif name == FROM and (value or (rest and not equals)):
            folders.append(value or rest.pop(0))
        else:
            leave(USAGE, f"{name}{equals}{value}: write --have, or --from FOLDER")
    if have and rest:
        leave(USAGE, f"{HAVE} runs nothing: {' '.join(rest)} cannot be used with it")
    if rest[:1] != ["run"] and any(word.partition("=")[0] in (HAVE, FROM) for word in rest):
        leave(USAGE, f"{HAVE} and {FROM} come before the other options")
    return folders, have, rest


class Progress:
    """Prints a line for each tenth of a large bundle that is verified."""

    def __init__(self, names: Iterable[str]) -> None:
        self.total = sum(size_of(name) for name in names)
        self.done = self.printed = 0

    def advance(self, count: int) -> None:
        """Count bytes that were read."""
        self.done += count
        tenths = 10 * self.done // max(self.total, 1)
        if self.total >= LARGE and tenths > self.printed:
            self.printed = tenths
            amount = f"{self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB"
            sys.stderr.write(f"smoke: verified {amount} of the bundle\n")


def size_of(name: str) -> int:
    """The bytes of a file of the bundle; 0 if it is missing."""
    try:
        return os.path.getsize(os.path.join(HERE, *name.split("/")))
    except OSError:
        return 0


def sha256(name: str, advance: Callable[[int], None]) -> str | None:
    """The hash of a file of the bundle, hex; None if the file cannot be read."""
    digest = hashlib.sha256()
    try:
        with opened(name) as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
                advance(len(piece))
    except OSError:
        return None
    return digest.hexdigest()


def write_launchers(bundle: dict[str, Any]) -> None:
    """Write the scripts that start the bundle's Python and tar: they need the bundle's path on this host."""
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
    """Exit with an error message, in which control characters are escaped."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message)
    sys.stderr.write(f"error: {shown}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
