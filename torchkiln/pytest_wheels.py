"""Hash-locked requirements -> a folder of pytest and what it needs, for any Python from 3.10 on."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from torchkiln.errors import BuildFailed


def pytest_wheels(requirements: Path, cache: Path) -> Path:
    """The folder that *requirements* gives, made once and kept in *cache* under the file's digest.

    The index, its certificate and proxy are the user's own pip configuration.

    :raises BuildFailed: a wheel cannot be had, or has another hash.
    """
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()
    place = cache / "pytest" / key
    if place.is_dir():
        os.utime(place)  # when it was last used, for `cache prune`
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{key}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        _install(requirements, temporary)
        try:
            temporary.rename(place)
        except OSError:
            # Another process was faster; what it made is the same.
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return place


def _install(requirements: Path, folder: Path) -> None:
    # Only wheels for any platform: the same folder serves 3.10 and 3.11, and no host's ABI gets in.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    command += ["--python-version", "3.10", "--implementation", "py", "--abi", "none", "--platform", "any"]
    command += ["--target", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr.strip()
        ]
        raise BuildFailed(
            f"pytest for the smoke tests could not be fetched: {said[-1].removeprefix('ERROR: ')}",
            hint=f"it is locked in {requirements.name}; see that pip reaches your package index",
        )
