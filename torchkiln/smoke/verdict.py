"""Findings -> Verdict, from the raw values: a success that its own values do not bear out is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from torchkiln.model.report import Finding, Verdict


class _Text(Protocol):
    """Looks for a host's fault in what a check said."""

    def search(self, message: str, /) -> object: ...


class _OthersMemory:
    """torch's "CUDA out of memory" (c10/cuda/CUDACachingAllocator.cpp), where by its own figures other
    processes hold more of the GPU than this one, and without them there would have been room."""

    _amount = r"([\d.]+) (bytes|[KMG]iB)"
    _tried = re.compile(rf"CUDA out of memory\. Tried to allocate {_amount}")
    _room = re.compile(
        rf"total capaci?ty of {_amount} of which {_amount} is free"  # from 2.1 on, at first spelt so
        rf"|{_amount} total capacity; .*?{_amount} free"  # before
    )
    _own = re.compile(
        rf"this process has {_amount} memory in use"  # where NVML knows the processes
        rf"|{_amount} is allocated by PyTorch(?:.*?, and {_amount} is reserved)?"
        rf"|{_amount} reserved in total by PyTorch"  # before 2.1
    )
    _context = 1 << 30  # bytes that a process holds beside its tensors: CUDA's context, cuBLAS, NCCL
    _units: ClassVar[Mapping[str, int]] = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

    def search(self, message: str) -> bool:
        """Whether *message* says so."""
        tried, room, own = (
            self._bytes(text.search(message)) for text in (self._tried, self._room, self._own)
        )
        if not (tried and room and own):
            return False
        (total, free), mine = room, sum(own) + self._context
        return total - free - mine > mine and mine + tried[0] <= total

    def _bytes(self, found: re.Match[str] | None) -> list[float]:
        words = [word for word in (found.groups() if found else ()) if word is not None]
        return [
            float(number) * self._units[unit] for number, unit in zip(words[::2], words[1::2], strict=True)
        ]


# Errors that only a host can cause, however the check that met them ended; whose sources have them. No text
# that a broken image could give too: "out of memory" without figures, "unknown error", a mixed driver.
HOST_FAULTS: tuple[tuple[_Text, str], ...] = (
    # c10/cuda/CUDAFunctions.cpp; cudaErrorInsufficientDriver
    (
        re.compile(
            r"The NVIDIA driver on your system is too old"
            r"|CUDA driver version is insufficient for CUDA runtime version"
        ),
        "the driver is too old",
    ),
    # cudaErrorNoDevice; c10/cuda/CUDAFunctions.cpp
    (
        re.compile(r"no CUDA-capable device is detected|No CUDA GPUs are available"),
        "the GPU is no longer there",
    ),
    # cudaErrorSystemNotReady
    (re.compile(r"system not yet initialized"), "the system is not ready: nvidia-fabricmanager does not run"),
    # cudaErrorDevicesUnavailable
    (
        re.compile(r"all CUDA-capable devices are busy or unavailable"),
        "another process holds the GPU for itself alone",
    ),
    # cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, NVML_ERROR_GPU_IS_LOST, the kernel's Xid 79
    (
        re.compile(r"uncorrectable (ECC|NVLink) error|GPU is lost|GPU has fallen off the bus"),
        "a GPU is lost or broken",
    ),
    (_OthersMemory(), "other processes hold the GPU's memory"),
    # NCCL's misc/shmutils.cc, before the disk below: it goes on with the system's own words
    (
        re.compile(r"Error while creating shared memory segment /dev/shm/|failed to extend /dev/shm/"),
        "/dev/shm is too small for NCCL",
    ),
    # NCCL's misc/nvmlwrap.cc: the container was started without NVIDIA_DRIVER_CAPABILITIES=utility
    (re.compile(r"Failed to open libnvidia-ml\.so"), "the driver's libnvidia-ml.so.1 is not in here"),
    # torch/csrc/DataLoader.cpp, aten/src/ATen/MapAllocator.cpp
    (
        re.compile(
            r"insufficient shared memory \(shm\)"
            r"|unable to [^<]*<+/torch_\d[^>]*>+.*: (No space left on device|Cannot allocate memory)"
        ),
        "/dev/shm is full",
    ),
    (re.compile(r"No space left on device"), "the disk for temporary files is full"),
    (re.compile(r"Cannot allocate memory|can't start new thread"), "out of memory or processes"),
    # The runner, ranks.py and torch/csrc/DataLoader.cpp: no process does that to itself
    (
        re.compile(
            r"(?m)^(the process|rank \d+) was killed by SIGKILL$"
            r"|DataLoader worker \(pid \d+\) is killed by signal: Killed"
        ),
        "a process was killed from outside: by the kernel for want of memory, or by somebody",
    ),
)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """`fail`: the image is at fault; `inconclusive`: the host is, or nothing was proved; else `pass`."""
    judged = [(finding, faults(finding)) for finding in findings]
    failed = [finding for finding, told in judged if told]
    if any(host_fault(finding) is None for finding in failed):
        return "fail"
    proved = any(finding.outcome == "passed" for finding, _ in judged)
    if failed or not proved or any(finding.outcome == "skipped" for finding, _ in judged):
        return "inconclusive"
    return "pass"


def faults(finding: Finding) -> list[str]:
    """Why *finding* is no success: what it says itself, or what its values say of a stated success."""
    if finding.outcome == "failed":
        return [finding.message]
    if finding.outcome != "passed":
        return []
    measured, threshold = json.loads(finding.measured), json.loads(finding.threshold)
    if not threshold:
        return ["it states success and bounded nothing"]
    return [
        f"it states success, and {name} is not within its bound"
        for name, bound in threshold.items()
        if name not in measured or not is_within(measured[name], bound)
    ]


def host_fault(finding: Finding) -> str | None:
    """The host's fault that the message of a failed finding gives away, if it does."""
    if finding.outcome != "failed":
        return None
    return next((fault for text, fault in HOST_FAULTS if text.search(finding.message)), None)


def is_within(value: Any, bound: dict[str, Any]) -> bool:
    """Whether *value* keeps every part of *bound*: `equals`, `at_least`, `at_most`; no other is ever kept."""
    return bool(bound) and all(_keeps(value, kind, limit) for kind, limit in bound.items())


def _keeps(value: Any, kind: str, limit: Any) -> bool:
    if kind == "equals":
        return bool(value == limit)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return bool({"at_least": value >= limit, "at_most": value <= limit}.get(kind, False))
