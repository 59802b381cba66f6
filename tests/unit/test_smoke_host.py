"""Faults of the host, from the runner to the report, and the error texts by which they are recognized."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fake_driver import fake_driver, has_libcuda
from tests.inside import dev
from tests.needs import needs_gcc
from tests.reports import gpu, host
from tests.smoke_suites import CLAIMS, FACTS, suite_with
from torchkiln.model.digest import Digest
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.runtimes.capture import OnLine
from torchkiln.runtimes.command import Exited
from torchkiln.smoke import hosts
from torchkiln.smoke.run import Checks, SmokeSubject, smoke
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import HOST_FAULTS, host_fault, verdict

DIGEST = Digest("sha256:" + "ab" * 32)
IMAGE = SmokeSubject(image=DIGEST, tag=CLAIMS["tag"], facts=FACTS)


def checks_of(*checks: tuple[int, str]) -> str:
    """The source of checks that pass; each has a tier and a name."""
    return "\n".join(
        f"@pytest.mark.tier({tier})\ndef test_{name}(measure):\n    measure('x', 1)\n\n"
        for tier, name in checks
    )


# One check for each tier. The check of tier 0 needs shared memory. On an unsuitable host, none may start.
CHECKS = checks_of((0, "cpu_train"), (1, "one"), (2, "two"), (3, "bench"))


@dataclass(frozen=True)
class Here:
    """A runtime without an image: it runs the words *before* and the command on this host, with *env*."""

    env: Mapping[str, str]
    before: Sequence[str] = ()
    name: str = "here"
    python: str = sys.executable

    def run(
        self, argv: Sequence[str], *, binds: Mapping[str, Path], timeout_s: float, on_line: OnLine
    ) -> Exited:
        found = [
            next((word.replace(at, str(path)) for at, path in binds.items() if word.startswith(at)), word)
            for word in (*self.before, *argv)
        ]
        done = subprocess.run(found, env=self.env, capture_output=True, check=False)
        for line in done.stdout.splitlines():
            on_line(line)
        return Exited(code=done.returncode, stdout=done.stdout, stderr=done.stderr, timed_out=False)

    def killed_for_memory(self) -> int:
        return 0


def report(
    tmp_path: Path,
    before: Sequence[str] = (),
    claims: Mapping[str, Any] = CLAIMS,
    source: str = CHECKS,
    **env: str,
) -> SmokeReport:
    """The report of a run on a host with a fake driver, which *env* configures."""
    suite = load_suite(suite_with(tmp_path / "suite", {"test_checks.py": source}))
    inside = Here(os.environ | {"LD_LIBRARY_PATH": str(fake_driver())} | env, before)
    facts = FACTS | {"claims": claims}
    checks, subject = Checks(suite=suite, tier=3), replace(IMAGE, facts=facts)
    return smoke(subject, inside, checks, wheels=tmp_path, when="2026-11-21T17:05:16Z")


def outcomes(found: SmokeReport) -> dict[str, str]:
    """The outcome of each check; for a skipped check, the fault of the host."""
    skipped = "skipped"
    return {
        finding.id: finding.message if finding.outcome == skipped else finding.outcome
        for finding in found.findings
    }


def everywhere(sentence: str) -> dict[str, str]:
    """The result of `outcomes` if no check that needs a GPU can run."""
    gpu = dict.fromkeys(("one", "two", "bench"), f"host: {sentence}")
    return {"cpu-train": "passed"} | gpu


@needs_gcc
def test_on_a_suitable_host_every_check_passes(tmp_path: Path) -> None:
    found = report(tmp_path, FAKE_GPUS="2")
    assert set(outcomes(found).values()) == {"passed"}
    assert found.verdict == "pass"
    assert json.loads(found.host)["driver"]["gpus"][0]["name"] == "Fake H100"


@pytest.mark.skipif(has_libcuda(), reason="this machine has a driver")
def test_no_libcuda(tmp_path: Path) -> None:
    found = report(tmp_path, LD_LIBRARY_PATH="")
    assert outcomes(found) == everywhere(
        "no NVIDIA driver here (libcuda.so.1: cannot open shared object file: No such file or directory)"
    )
    assert found.verdict == "inconclusive"


@needs_gcc
def test_no_device_nodes(tmp_path: Path) -> None:
    found = report(tmp_path, dev(tmp_path), FAKE_INIT="100")
    assert outcomes(found) == everywhere("no GPU device node here (/dev/nvidia0 ...)")
    assert found.verdict == "inconclusive"


@needs_gcc
def test_a_full_gpu(tmp_path: Path) -> None:
    """Other faults of GPUs are tested in test_smoke_gpus.py."""
    found = report(tmp_path, FAKE_GPUS="2", FAKE_FREE_MIB="1024")
    wanted = everywhere(
        "GPU 1 has 1 of 80 GiB free, but the check needs 4: other processes use the rest (see nvidia-smi)"
    )
    assert outcomes(found) == wanted | {"bench": wanted["bench"].replace("needs 4", "needs 22")}
    assert found.verdict == "inconclusive"


@needs_gcc
def test_one_gpu_is_enough_for_all_but_tier_2(tmp_path: Path) -> None:
    found = report(tmp_path, FAKE_GPUS="1")
    assert outcomes(found) == {
        "cpu-train": "passed",
        "one": "passed",
        "two": "host: found 1 GPU, but this check needs two or more",
        "bench": "passed",
    }
    assert found.verdict == "inconclusive"


@needs_gcc
def test_small_shared_memory(tmp_path: Path) -> None:
    """DataLoader's workers need it; NCCL needs it only if GPUs have no peer access."""
    before, source = dev(tmp_path, "nvidia0", shm="1m"), CHECKS + checks_of((0, "nothing"))
    found = report(tmp_path, before, source=source, FAKE_GPUS="2", FAKE_PEERS="0")
    no_peers = (
        "host: no peer access between the GPUs, and /dev/shm has 1 MiB free, but NCCL needs 64 (--shm-size)"
    )
    assert outcomes(found) == {
        "nothing": "passed",
        "cpu-train": "host: /dev/shm has 1 MiB free, but DataLoader workers need 64 MiB (--shm-size)",
        "one": "passed",
        "two": no_peers,
        "bench": "passed",
    }
    assert found.verdict == "inconclusive"


# Real texts, with their long lines; docs/smoke.md names the programs that print them.
# ruff: noqa: E501
TOO_OLD = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: ... Alternatively, go to: ... to install "
    "a PyTorch version that has been compiled with your version of the CUDA driver."
)
SHM_NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
    "unhandled system error, NCCL version 2.26.2\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error. \nLast error:\nError while creating shared memory segment "
    "/dev/shm/nccl-cjY8K5 (size 10617216), error: No space left on device (28)"
)
SHM_NCCL_OLD = (
    "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-UbzKZ9 to 9637892 bytes\n"
    "misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-UbzKZ9 (size 9637888)"
)
NVML = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, "
    "unhandled system error, NCCL version 2.21.5\nLast error:\nFailed to open libnvidia-ml.so.1"
)
BUS = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."
NOT_READY = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
    "that might have already set an error? Error 802: system not yet initialized"
)
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
# Texts of torch 2.8, 2.1 and 2.0, and of a container in which NVML lists no processes.
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.18 "
    "GiB of which 471.69 MiB is free. Including non-PyTorch memory, this process has 6.63 GiB memory in use. "
    "Process 19239 has 72.08 GiB memory in use. Of the allocated memory 5.03 GiB is allocated by PyTorch, and "
    "1.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try ..."
)
FULL_2_1 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of "
    "23.69 GiB of which 7.11 MiB is free. Process 2006998 has 21.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 1.31 GiB memory in use."
)
FULL_2_0 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 392.00 MiB (GPU 0; 10.92 GiB total "
    "capacity; 3.24 GiB already allocated; 216.69 MiB free; 3.33 GiB reserved in total by PyTorch)"
)
FULL_INSIDE = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.11 GiB of "
    "which 1.93 GiB is free. Of the allocated memory 512.00 MiB is allocated by PyTorch, and 60.00 MiB is reserved"
)
HOSTS = [
    ("the driver is too old", TOO_OLD),
    ("the driver is too old", "CUDA driver version is insufficient for CUDA runtime version"),
    ("the GPU is no longer there", "RuntimeError: CUDA error: no CUDA-capable device is detected"),
    ("the GPU is no longer there", "RuntimeError: No CUDA GPUs are available"),
    ("the system is not ready: nvidia-fabricmanager does not run", NOT_READY),
    (
        "another process uses the GPU exclusively",
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    ),
    ("a GPU is lost or broken", ECC),
    ("a GPU is lost or broken", "nvmlDeviceGetHandleByPciBusId() failed: GPU is lost"),
    ("a GPU is lost or broken", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."),
    ("other processes use the GPU's memory", FULL),
    ("other processes use the GPU's memory", FULL_2_1),
    ("other processes use the GPU's memory", FULL_2_0),
    ("other processes use the GPU's memory", FULL_INSIDE),
    ("/dev/shm is too small for NCCL", SHM_NCCL),
    ("/dev/shm is too small for NCCL", SHM_NCCL_OLD),
    ("the driver's libnvidia-ml.so.1 is missing in the container", NVML),
    ("/dev/shm is full", BUS),
    (
        "/dev/shm is full",
        "RuntimeError: unable to write to file </torch_287_2714559211_8>: No space left on device (28)",
    ),
    (
        "/dev/shm is full",
        "RuntimeError: unable to mmap 65536 bytes from file </torch_7_1_2>: Cannot allocate memory (12)",
    ),
    ("the disk for temporary files is full", "OSError: [Errno 28] No space left on device"),
    ("out of memory or processes", "RuntimeError: can't start new thread"),
    (
        "the kernel killed a process because memory ran out, or a user killed it",
        "rank 0 ended with exit code 1\nconnection closed\nrank 1 was killed by SIGKILL\nlast words",
    ),
    (
        "the kernel killed a process because memory ran out, or a user killed it",
        "RuntimeError: DataLoader worker (pid 2831817) is killed by signal: Killed. ",
    ),
]
# Errors of a broken image or check, each similar to an error of the host above: they are failures.
IMAGES = [
    "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (9, 1, 0) but found runtime "
    "version (8, 9, 2). PyTorch already comes bundled with cuDNN.",
    "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "RuntimeError: CUDA error: system has unsupported display driver / cuda driver combination",
    "AssertionError: Torch not compiled with CUDA enabled",
    "is_available: is False, wanted True\ndevice_count: is 0, wanted 1",
    "RuntimeError: CUDA error: invalid device ordinal",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: unspecified launch failure",
    "RuntimeError: CUDA error: unknown error",
    "RuntimeError: CUDA error: out of memory",
    "wrong_elements: the gradient is lost: GPU 0",
    # A check has a memory leak; a check allocates more than the GPU has; the same with torch 2.0.
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB. GPU 0 has a total capacity of 44.39 "
    "GiB of which 12.06 MiB is free. Process 6324 has 8.06 GiB memory in use. Including non-PyTorch memory, this "
    "process has 36.30 GiB memory in use.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 79.18 "
    "GiB of which 77.40 GiB is free. Including non-PyTorch memory, this process has 600.00 MiB memory in use. Of "
    "the allocated memory 40.00 MiB is allocated by PyTorch, and 24.00 MiB is reserved by PyTorch but unallocated.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.68 GiB. GPU 0 has a total capacity of 23.68 "
    "GiB of which 11.88 GiB is free. Of the allocated memory 11.44 GiB is allocated by PyTorch, and 43.59 MiB is "
    "reserved by PyTorch but unallocated.",
    "RuntimeError: CUDA out of memory. Tried to allocate 40.00 MiB (GPU 0; 23.65 GiB total capacity; 22.27 GiB "
    "already allocated; 20.31 MiB free; 22.76 GiB reserved in total by PyTorch)",
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000",
    "NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
    "ImportError: libcusparse.so.12: cannot open shared object file: No such file or directory",
    "OSError: /opt/venv/lib/libgomp.so.1: cannot allocate memory in static TLS block",
    "RuntimeError: unable to open file </opt/cache/torch_extensions> in read-only mode: Permission denied (13)",
    "RuntimeError: unable to open shared memory object </torch_1_2_3> in read-write mode: Too many open files (24)",
    "RuntimeError: DataLoader worker (pid 12) is killed by signal: Segmentation fault. ",
    "OSError: [Errno 30] Read-only file system: '/tmp/x'",
    "rank 1 was killed by SIGSEGV",
    "rank 0 timed out after 240 s and was stopped",
    "the process was killed by SIGABRT\nrank 1 was killed by SIGKILL, somebody wrote",
    "timed out after 300 s and was killed",
]


def failed(message: str) -> Finding:
    return Finding(
        id="x", tier=1, outcome="failed", seconds=1.0, message=message, measured="{}", threshold="{}"
    )


@pytest.mark.parametrize(("fault", "text"), HOSTS)
def test_host_faults_are_recognized_by_their_text(fault: str, text: str) -> None:
    assert host_fault(failed(text)) == fault
    assert verdict([failed(text)]) == "inconclusive"


@pytest.mark.parametrize("text", IMAGES)
def test_faults_of_an_image_are_not_host_faults(text: str) -> None:
    assert host_fault(failed(text)) is None
    assert verdict([failed(text)]) == "fail"


def test_every_pattern_has_a_test_text() -> None:
    assert {fault for _, fault in HOST_FAULTS} == {fault for fault, _ in HOSTS}


def test_a_host_fault_excuses_only_its_own_check() -> None:
    assert verdict([failed(ECC), failed("x: is 2, wanted 1")]) == "fail"


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        ({}, []),
        ({"peers": [[0, 1], [0, 1]]}, ["lists a pair of GPUs twice in 'peers'"]),
        ({"links": [[0, 1, "NVLINK"], [0, 1, "PCIE"]]}, ["lists a pair of GPUs twice in 'links'"]),
        ({"peers": [[0, 2]]}, ["lists an entry in 'peers' that is not a pair of its 2 GPUs"]),
        ({"peers": [[1, 1]]}, ["lists an entry in 'peers' that is not a pair of its 2 GPUs"]),
        ({"links": [[1, 0, "NVLINK"]]}, ["lists a pair in 'links' whose first GPU has the higher number"]),
        ({"cuda": None}, ["lists 2 GPUs, and no CUDA version of the driver"]),
        ({"init": 0}, []),
        ({"init": 999}, ["lists 2 GPUs, although the driver did not start"]),
        ({"fault": "probe driver was killed"}, ["lists 2 GPUs, although the driver did not start"]),
        ({"libcuda": "cannot open libcuda"}, ["lists 2 GPUs, although the driver did not start"]),
        ({"gpus": [], "peers": [], "links": [], "init": 999, "cuda": None}, []),
    ],
)
def test_contradictions_in_the_facts_of_a_host(driver: dict[str, Any], found: list[str]) -> None:
    facts = host(gpu(), gpu())
    facts["driver"] |= driver

    assert list(hosts.contradictions(facts)) == found
