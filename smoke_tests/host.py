"""This machine -> what the report says of it, and what it lacks that a check needs. No torch here."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smoke_tests.gpus import lacking
from smoke_tests.probe import probe

SHM = Path("/dev/shm")
SHM_NEEDED = 64 << 20  # bytes: Docker's own default
IMAGE_FACTS = Path("/etc/torchkiln/image.json")


def host_facts() -> dict[str, Any]:
    """Kernel, cores, memory and shared memory (bytes), the driver and its GPUs (see probes/driver.py), and
    the digest of the image's account of itself."""
    return {
        "kernel": os.uname().release,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "shm": shm_bytes(),
        "uid": os.getuid(),
        "driver": _driver(),
        "image_json_sha256": _sha256(IMAGE_FACTS),
    }


def fault(check: str, tier: int, host: Mapping[str, Any], claims: Mapping[str, Any]) -> str | None:
    """The sentence that says what this host lacks for *check*; None: it can carry it."""
    if check in ("cpu-train", "loader") and host["shm"] < SHM_NEEDED:
        has = f"{host['shm'] >> 20} MiB" if host["shm"] else "nothing that can be written"
        return f"host: /dev/shm has {has}, DataLoader workers need {SHM_NEEDED >> 20} MiB (--shm-size)"
    return lacking(tier, host, claims)


def shm_bytes(folder: Path = SHM) -> int:
    """Free bytes of the shared memory; 0 where it is absent or cannot be written."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            room = os.statvfs(folder)
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


def _driver() -> dict[str, Any]:
    try:
        found: dict[str, Any] = probe("driver")
    except (
        AssertionError
    ) as error:  # a driver that kills who asks it is this host's, and must not end the run
        return {"fault": str(error), "gpus": [], "peers": []}
    return found


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
