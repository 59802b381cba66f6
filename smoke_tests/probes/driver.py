"""What the NVIDIA driver says of this machine, asked by ctypes: without torch, no context on any GPU.

Functions and attribute numbers: CUDA Driver API and NVML reference manuals.
"""

import ctypes
import glob
import json
import os
import shutil
import subprocess

_MAJOR, _MINOR, _PROCESSORS = 75, 76, 16  # CUdevice_attribute
_NVLINKS = 18  # NVML_NVLINK_MAX_LINKS
_STRING = 96  # bytes; longer than any name the driver gives


class Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def main():
    """One JSON object; what cannot be learned is null."""
    told = {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "nodes": sorted(os.path.basename(path) for path in glob.glob("/dev/nvidia[0-9]*")),
        "libcuda": None,  # why it cannot be loaded
        "init": None,  # what cuInit returned
        "cuda": None,  # the newest CUDA that this driver serves
        "driver": None,
        "gpus": [],
        "peers": [],
        "nvidia_smi": nvidia_smi(),
    }
    manager = nvml()
    told["driver"] = nvml_text(manager, "nvmlSystemGetDriverVersion")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        told["libcuda"] = str(error)
    else:
        version = ctypes.c_int()
        if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
            told["cuda"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
        told["init"] = cuda.cuInit(0)
        if told["init"] == 0:
            told["gpus"] = [gpu(cuda, manager, at) for at in range(count(cuda))]
            told["peers"] = peers(cuda)
    print(json.dumps(told))


def count(cuda):
    """How many GPUs this process may use."""
    found = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(found))
    return found.value


def gpu(cuda, manager, at):
    """One GPU; it has no name of its own here, for a UUID belongs to a machine and not to a report."""
    name, bus = (ctypes.create_string_buffer(_STRING) for _ in range(2))
    total = ctypes.c_size_t()
    cuda.cuDeviceGetName(name, _STRING, at)
    cuda.cuDeviceGetPCIBusId(bus, _STRING, at)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), at)
    handle, memory = ctypes.c_void_p(), Memory()
    known = manager is not None and manager.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)) == 0
    free = known and manager.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return {
        "name": name.value.decode(),
        "capability": [attribute(cuda, _MAJOR, at), attribute(cuda, _MINOR, at)],
        "processors": attribute(cuda, _PROCESSORS, at),
        "memory": total.value,
        "free": memory.free if free else None,
        "nvlinks": nvlinks(manager, handle) if known else None,
    }


def attribute(cuda, number, at):
    """A device attribute."""
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, at)
    return value.value


def nvlinks(manager, handle):
    """How many of its NVLinks are up."""
    state, up = ctypes.c_uint(), 0
    for link in range(_NVLINKS):
        if manager.nvmlDeviceGetNvLinkState(handle, link, ctypes.byref(state)) == 0:
            up += state.value
    return up


def peers(cuda):
    """Pairs of GPUs of which the first can reach the second's memory."""
    reached, pairs = ctypes.c_int(), []
    for one in range(count(cuda)):
        for other in range(count(cuda)):
            if one != other and cuda.cuDeviceCanAccessPeer(ctypes.byref(reached), one, other) == 0:
                pairs += [[one, other]] * reached.value
    return pairs


def nvml():
    """The management library, ready; None where it is not."""
    try:
        manager = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return manager if manager.nvmlInit_v2() == 0 else None


def nvml_text(manager, function):
    """What a function of NVML that fills a buffer says."""
    buffer = ctypes.create_string_buffer(_STRING)
    if manager is None or getattr(manager, function)(buffer, _STRING) != 0:
        return None
    return buffer.value.decode()


def nvidia_smi():
    """What it prints, where it is."""
    if not shutil.which("nvidia-smi"):
        return None
    try:
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    main()
