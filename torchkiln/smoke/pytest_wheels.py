"""Install hash-locked requirements with pip into a folder of the cache, to be added to sys.path."""

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

_SECONDS = 600.0
# Only wheels for any platform, so that the folder works with the Python of every image.
_PURE = ("--python-version", "3.10", "--implementation", "py", "--abi", "none", "--platform", "any")
_PLATFORMS = (
    *("--platform", LINUX_AMD64.wheel_tag("manylinux_2_28")),
    *("--platform", LINUX_AMD64.wheel_tag("manylinux2014")),
)


def pytest_wheels(requirements: bytes, store: Store) -> Path:
    """The cached folder with the packages of *requirements* (a file's bytes), for Python 3.10 and newer.

    pip uses the user's own configuration of index, certificate and proxy.

    :raises BuildFailed: a wheel cannot be downloaded, or its hash does not match.
    """
    return _installed(requirements, store, _PURE, "pytest for the smoke tests")


def wheels_for(python: str, requirements: bytes, store: Store) -> Path:
    """As `pytest_wheels`, but also wheels with compiled modules, for CPython *python* ("3.11").

    :raises BuildFailed: a wheel cannot be downloaded, or its hash does not match.
    """
    tags = ("--python-version", python, "--implementation", "cp", *_PLATFORMS)
    return _installed(requirements, store, tags, f"packages for Python {python}")


def _installed(requirements: bytes, store: Store, tags: Sequence[str], what: str) -> Path:
    key = hashlib.sha256("\0".join(tags).encode() + b"\0" + requirements).hexdigest()
    folder = store.root / "pytest" / key
    if folder.is_dir():
        os.utime(folder)  # the time of the last use, for `cache prune`
        return folder
    temporary, file = store.temporary("pytest"), store.temporary("requirements.txt")
    try:
        with store.writable():
            file.write_bytes(requirements)  # the bytes that the key was computed from
        _install(file, temporary, tags, what)
        with store.writable():
            private_folder(folder.parent)
            try:
                temporary.rename(folder)
            except OSError:
                # Another process made the folder first; its content is the same.
                if not folder.is_dir():
                    raise
    finally:
        remove_tree(temporary)
        file.unlink(missing_ok=True)
    return folder


def _install(requirements: Path, folder: Path, tags: Sequence[str], what: str) -> None:
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:", *tags]
    command += ["--target", str(folder), "--requirement", str(requirements)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS
        )
        code, words = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        code, words = 1, f"timed out after {_SECONDS:g} seconds"
    if code:
        errors = [line for line in words.splitlines() if line.startswith("ERROR")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else words.strip()
        raise BuildFailed(
            f"cannot download {what}: {reason}",
            hint="check that pip can reach your package index; the versions are locked in requirements.txt",
        )
