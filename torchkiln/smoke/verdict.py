"""Compute the verdict of a run from the measured values of its findings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

from torchkiln.model.report import Finding, Verdict
from torchkiln.util.strict_json import equal, is_number


class _Text(Protocol):
    """Searches the message of a check for a fault of the host."""

    def search(self, message: str, /) -> object: ...


class _OthersMemory:
    """Searches for torch's error "CUDA out of memory", if other processes caused it.

    The figures in the message (c10/cuda/CUDACachingAllocator.cpp) must show that the other processes use more
    of the GPU's memory than this process, and that the allocation would have succeeded without them.
    """

    _amount = r"([\d.]+) (bytes|[KMG]iB)"
    _tried = re.compile(rf"CUDA out of memory\. Tried to allocate {_amount}")
    _capacity = re.compile(
        rf"total capaci?ty of {_amount} of which {_amount} is free"  # from torch 2.1 on; at first with a typo
        rf"|{_amount} total capacity; .*?{_amount} free"  # torch before 2.1
    )
    _own = re.compile(
        rf"this process has {_amount} memory in use"  # if NVML lists the processes
        rf"|{_amount} is allocated by PyTorch(?:.*?, and {_amount} is reserved)?"
        rf"|{_amount} reserved in total by PyTorch"  # torch before 2.1
    )
    _context = 1 << 30  # bytes that a process needs besides tensors: CUDA's context, cuBLAS, NCCL
    _units: ClassVar[Mapping[str, int]] = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

    def search(self, message: str) -> bool:
        """Whether *message* has this error."""
        tried, capacity, own = (
            self._bytes(text.search(message)) for text in (self._tried, self._capacity, self._own)
        )
        if not (tried and capacity and own):
            return False
        (total, free), mine = capacity, sum(own) + self._context
        return total - free - mine > mine and mine + tried[0] <= total

    def _bytes(self, found: re.Match[str] | None) -> list[float]:
        words = [word for word in (found.groups() if found else ()) if word is not None]
        return [
            float(number) * self._units[unit] for number, unit in zip(words[::2], words[1::2], strict=True)
        ]


# Errors that only a host can cause, with the source files that print them. Errors that a broken image can
# also cause are left out: "out of memory" without figures, "unknown error", mixed driver versions.
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
        "another process uses the GPU exclusively",
    ),
    # cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, NVML_ERROR_GPU_IS_LOST, the kernel's Xid 79
    (
        re.compile(r"uncorrectable (ECC|NVLink) error|GPU is lost|GPU has fallen off the bus"),
        "a GPU is lost or broken",
    ),
    (_OthersMemory(), "other processes use the GPU's memory"),
    # NCCL's misc/shmutils.cc; it must precede "No space left on device", which can be a part of the message
    (
        re.compile(r"Error while creating shared memory segment /dev/shm/|failed to extend /dev/shm/"),
        "/dev/shm is too small for NCCL",
    ),
    # NCCL's misc/nvmlwrap.cc: the container was started without NVIDIA_DRIVER_CAPABILITIES=utility
    (
        re.compile(r"Failed to open libnvidia-ml\.so"),
        "the driver's libnvidia-ml.so.1 is missing in the container",
    ),
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
    # The runner, ranks.py and torch/csrc/DataLoader.cpp; a process does not send SIGKILL to itself
    (
        re.compile(
            r"(?m)^(the process|rank \d+) was killed by SIGKILL$"
            r"|DataLoader worker \(pid \d+\) is killed by signal: Killed"
        ),
        "the kernel killed a process because memory ran out, or a user killed it",
    ),
)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """The verdict of a run.

    `fail`: a check failed, and its message shows no fault of the host.
    `inconclusive`: all failures are faults of the host, or a check was skipped, or none passed.
    `pass`: otherwise.
    """
    findings = tuple(findings)
    failed = [finding for finding in findings if faults(finding)]
    if any(host_fault(finding) is None for finding in failed):
        return "fail"
    outcomes = {finding.outcome for finding in findings}
    if failed or "passed" not in outcomes or "skipped" in outcomes:
        return "inconclusive"
    return "pass"


def faults(finding: Finding) -> list[str]:
    """Why *finding* failed: its message, or the bounds that the values of a passed check violate."""
    if finding.outcome == "failed":
        return [finding.message]
    if finding.outcome != "passed":
        return []
    measured, threshold = json.loads(finding.measured), json.loads(finding.threshold)
    if not threshold:
        return ["reported as passed, but without any bounds"]
    return [
        f"reported as passed, but {name} is out of bounds"
        for name, bound in threshold.items()
        if name not in measured or not is_within(measured[name], bound)
    ]


def host_fault(finding: Finding) -> str | None:
    """The fault of the host that the message of a failed finding shows; None if it shows none."""
    if finding.outcome != "failed":
        return None
    return next((fault for text, fault in HOST_FAULTS if text.search(finding.message)), None)


def is_within(value: Any, bound: dict[str, Any]) -> bool:
    """Whether *value* satisfies all of *bound*: `equals`, `at_least`, `at_most`; False for another key."""
    return bool(bound) and all(_within(value, kind, limit) for kind, limit in bound.items())


def _within(value: Any, kind: str, limit: Any) -> bool:
    if kind == "equals":
        return equal(value, limit)
    if not is_number(value) or not is_number(limit):
        return False
    return bool({"at_least": value >= limit, "at_most": value <= limit}.get(kind, False))
