"""Describe this machine for the report, and find requirements of a check that it lacks. Imports no torch."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smoke_tests.gpus import lacking
from smoke_tests.probe import probe

SHM = Path("/dev/shm")
SHM_NEEDED = 64 << 20  # bytes: Docker's own default
IMAGE_FACTS = Path("/etc/torchkiln/image.json")
DRIVER_LIMIT = 120.0  # seconds; eight GPUs without nvidia-persistenced take about twenty
SMI_LIMIT = 60.0
_IMPORT_LIMIT = 240.0
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{7,}")


def host_facts() -> dict[str, Any]:
    """Kernel, cores, memory and shared memory (bytes), the reason why no process can run as another user
    (None: it can), the driver and its GPUs (see `driver_probe`), and the digest of image.json."""
    return {
        "kernel": os.uname().release,
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "shm": shm_bytes(),
        "uid": os.getuid(),
        "other_users": probe("user", "fault"),
        "driver": _driver(),
        "image_json_sha256": _sha256(IMAGE_FACTS),
    }


def host_texts() -> dict[str, str | None]:
    """The output of other programs, which only people read in the report."""
    return {"nvidia_smi": _nvidia_smi(), "torch_config": _torch_config()}


def fault(check: str, tier: int, host: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Why this host cannot run *check*, as a sentence; None: it can."""
    claims = facts["claims"]
    if check in ("cpu-train", "loader") and host["shm"] < SHM_NEEDED:
        state = f"has {host['shm'] >> 20} MiB free" if host["shm"] else "cannot be written"
        return f"host: /dev/shm {state}, but DataLoader workers need {SHM_NEEDED >> 20} MiB (--shm-size)"
    if check == "user" and host["other_users"]:
        return (
            f"host: no process can run as another user here ({host['other_users']}): "
            "run as root, or allow user namespaces (sysctl user.max_user_namespaces)"
        )
    if check == "device-code" and (absent := _absent_wheels(facts)):
        return (
            f"host: nothing to compare with: the wheels of {', '.join(absent)} are not here; "
            "run the check by the runtime rootfs where the image was built"
        )
    return lacking(tier, host, claims)


def _absent_wheels(facts: Mapping[str, Any]) -> list[str]:
    """The wheels that were cut and that the host did not mount."""
    mounted = facts.get("wheel_files", {})
    return [name for name in facts["device_code"]["wheels"] if name not in mounted]


def shm_bytes(folder: Path = SHM) -> int:
    """Free bytes of the shared memory; 0 if it is absent or cannot be written."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            space = os.statvfs(folder)
    except OSError:
        return 0
    return space.f_bavail * space.f_frsize


def without_uuids(text: str) -> str:
    """*text* without the UUIDs of GPUs, which identify a machine.

    >>> without_uuids("GPU 0: NVIDIA H100 (UUID: GPU-01234567-89ab-cdef-0123-456789abcdef)")
    'GPU 0: NVIDIA H100 (UUID: GPU-...)'
    """
    return _UUID.sub(r"\1-...", text)


def _driver() -> dict[str, Any]:
    """The driver's data, from a child process: a broken driver can kill or block its caller."""
    try:
        found: dict[str, Any] = probe("driver", limit=DRIVER_LIMIT)
    except AssertionError as error:
        lines = str(error).splitlines()
        message = f"{lines[0]}: {lines[-1]}" if len(lines) > 1 else lines[0]
        return {"fault": message, "gpus": [], "peers": []}
    return found | {"visible": found["visible"] and without_uuids(found["visible"])}


def _nvidia_smi() -> str | None:
    """The output of a program; None if it is not installed."""
    if not shutil.which("nvidia-smi"):
        return None
    try:
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=SMI_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}"
    return without_uuids((done.stdout + done.stderr).strip())


def _torch_config() -> str | None:
    """The output of torch.__config__.show(); None if torch cannot be imported, which the checks report."""
    try:
        return str(probe("torch_config", limit=_IMPORT_LIMIT))
    except AssertionError:
        return None


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
