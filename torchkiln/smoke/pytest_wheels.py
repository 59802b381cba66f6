"""Hash-locked requirements -> a folder of what their wheels hold, to be put on a Python's path as it is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from torchkiln.errors import BuildFailed
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.store.store import Store
from torchkiln.util.files import private_folder, remove_tree

# Only wheels for any platform: the same folder serves every Python of an image, and no host's ABI gets in.
_PURE = ("--python-version", "3.10", "--implementation", "py", "--abi", "none", "--platform", "any")
_PLATFORMS = (
    *("--platform", LINUX_AMD64.wheel_tag("manylinux_2_28")),
    *("--platform", LINUX_AMD64.wheel_tag("manylinux2014")),
)


def pytest_wheels(requirements: bytes, store: Store) -> Path:
    """The folder that *requirements* (a file's bytes) gives for any Python from 3.10 on, made once and kept.

    The index, its certificate and proxy are the user's own pip configuration.

    :raises BuildFailed: a wheel cannot be had, or has another hash.
    """
    return _kept(requirements, store, _PURE, "pytest for the smoke tests")


def wheels_for(python: str, requirements: bytes, store: Store) -> Path:
    """As `pytest_wheels`, with compiled modules for CPython *python* ("3.11").

    :raises BuildFailed: a wheel cannot be had, or has another hash.
    """
    wanted = ("--python-version", python, "--implementation", "cp", *_PLATFORMS)
    return _kept(requirements, store, wanted, f"packages for Python {python}")


def _kept(requirements: bytes, store: Store, wanted: Sequence[str], what: str) -> Path:
    key = hashlib.sha256("\0".join(wanted).encode() + b"\0" + requirements).hexdigest()
    place = store.root / "pytest" / key
    if place.is_dir():
        os.utime(place)  # when it was last used, for `cache prune`
        return place
    temporary, listed = store.temporary("pytest"), store.temporary("requirements.txt")
    try:
        with store.writable():
            listed.write_bytes(requirements)  # what was digested, and not what lies there by now
        _install(listed, temporary, wanted, what)
        with store.writable():
            private_folder(place.parent)
            try:
                temporary.rename(place)
            except OSError:
                # Another process was faster; what it made is the same.
                if not place.is_dir():
                    raise
    finally:
        remove_tree(temporary)
        listed.unlink(missing_ok=True)
    return place


def _install(requirements: Path, folder: Path, wanted: Sequence[str], what: str) -> None:
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:", *wanted]
    command += ["--target", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr.strip()
        ]
        raise BuildFailed(
            f"{what} could not be fetched: {said[-1].removeprefix('ERROR: ')}",
            hint="it is locked in requirements.txt; see that pip reaches your package index",
        )
