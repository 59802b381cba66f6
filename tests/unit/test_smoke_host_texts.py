"""Known error texts of a host at fault, and beside each what a broken image says: that is not excused."""

from __future__ import annotations

import pytest

from torchkiln.model.report import Finding
from torchkiln.smoke.verdict import HOST_FAULTS, host_fault, verdict

# Texts as they were met, long lines and all; the sources that print them are named in the table.
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
# torch 2.8, 2.1, 2.0 and one from a container whose NVML knows no processes.
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
        "a process was killed from outside: by the kernel because memory ran out, or by a user",
        "rank 0 ended with exit code 1\nconnection closed\nrank 1 was killed by SIGKILL\nlast words",
    ),
    (
        "a process was killed from outside: by the kernel because memory ran out, or by a user",
        "RuntimeError: DataLoader worker (pid 2831817) is killed by signal: Killed. ",
    ),
]
# What a broken image, or a broken check, says; each is near to one above.
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
    # A check that leaks; one that wants more than the GPU has; the same as torch 2.0 says it.
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
    "rank 0 had not ended after 240 s and was stopped",
    "the process was killed by SIGABRT\nrank 1 was killed by SIGKILL, somebody wrote",
    "no end within 300 s; killed",
]


def failed(message: str) -> Finding:
    """A check that failed with *message*."""
    return Finding(
        id="x", tier=1, outcome="failed", seconds=1.0, message=message, measured="{}", threshold="{}"
    )


@pytest.mark.parametrize(("fault", "text"), HOSTS)
def test_a_hosts_fault_is_told_by_its_text(fault: str, text: str) -> None:
    assert host_fault(failed(text)) == fault
    assert verdict([failed(text)]) == "inconclusive"


@pytest.mark.parametrize("text", IMAGES)
def test_an_images_fault_is_not_excused(text: str) -> None:
    assert host_fault(failed(text)) is None
    assert verdict([failed(text)]) == "fail"


def test_every_pattern_has_its_text() -> None:
    assert {fault for _, fault in HOST_FAULTS} == {fault for fault, _ in HOSTS}


def test_a_hosts_fault_excuses_no_other_check() -> None:
    assert verdict([failed(ECC), failed("x: is 2, wanted 1")]) == "fail"
