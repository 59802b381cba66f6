"""Asks the NVIDIA driver about this machine through ctypes, without torch and without a context on a GPU.

Functions and numbers: CUDA Driver API and NVML reference manuals. It reads nothing that identifies a machine
(no UUID, no serial number), because the answer goes into a report.
"""

import ctypes
import glob
import json
import os

_MAJOR, _MINOR, _PROCESSORS = 75, 76, 16  # CUdevice_attribute
_MAX_NVLINKS = 18  # NVML_NVLINK_MAX_LINKS
_P2P_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK
_STRING = 96  # bytes; longer than any name that the driver returns
# nvmlGpuTopologyLevel_t, with nvidia-smi's names: same board, one PCIe switch, several, one host bridge ...
_WAYS = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def main():
    """Print one JSON object; unknown values are null."""
    told = {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "nodes": sorted(os.path.basename(path) for path in glob.glob("/dev/nvidia[0-9]*")),
        "libcuda": None,  # the error if it cannot be loaded
        "library": None,  # the file that was loaded
        "init": None,  # what cuInit returned
        "cuda": None,  # the newest CUDA that this driver supports
        "driver": None,
        "gpus": [],
        "peers": [],  # pairs of GPUs where the first can access the second's memory
        "links": [],  # pairs of GPUs, and the connection between them
    }
    manager = nvml()
    told["driver"] = nvml_text(manager, "nvmlSystemGetDriverVersion")
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        told["libcuda"] = str(error)
    else:
        told["library"] = mapped("libcuda.so")
        version = ctypes.c_int()
        if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
            told["cuda"] = f"{version.value // 1000}.{version.value % 1000 // 10}"
        told["init"] = cuda.cuInit(0)
        if told["init"] == 0:
            handles = [handle(cuda, manager, at) for at in range(count(cuda))]
            told["gpus"] = [gpu(cuda, manager, at, known) for at, known in enumerate(handles)]
            told["peers"] = peers(cuda)
            told["links"] = links(manager, handles)
    print(json.dumps(told))


def mapped(part):
    """The file mapped into this process whose path contains *part*."""
    with open("/proc/self/maps") as maps:
        paths = (line.split(maxsplit=5)[5].strip() for line in maps if line.count("/"))
        return next((path for path in paths if part in path), None)


def count(cuda):
    """The number of GPUs that this process may use."""
    found = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(found))
    return found.value


def handle(cuda, manager, at):
    """NVML's handle of CUDA's GPU *at* (their numbers differ); None if there is none."""
    bus, found = ctypes.create_string_buffer(_STRING), ctypes.c_void_p()
    cuda.cuDeviceGetPCIBusId(bus, _STRING, at)
    if manager is None or manager.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(found)) != 0:
        return None
    return found


def gpu(cuda, manager, at, known):
    """The properties of one GPU, without its identity."""
    name, total, memory = ctypes.create_string_buffer(_STRING), ctypes.c_size_t(), Memory()
    cuda.cuDeviceGetName(name, _STRING, at)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), at)
    free = known and manager.nvmlDeviceGetMemoryInfo(known, ctypes.byref(memory)) == 0
    return {
        "name": name.value.decode(),
        "capability": [attribute(cuda, _MAJOR, at), attribute(cuda, _MINOR, at)],
        "processors": attribute(cuda, _PROCESSORS, at),
        "memory": total.value,
        "free": memory.free if free else None,
        "nvlinks": nvlinks(manager, known) if known else None,
    }


def attribute(cuda, number, at):
    """A device attribute."""
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, at)
    return value.value


def nvlinks(manager, known):
    """How many NVLinks of the GPU are up."""
    state, up = ctypes.c_uint(), 0
    for link in range(_MAX_NVLINKS):
        if manager.nvmlDeviceGetNvLinkState(known, link, ctypes.byref(state)) == 0:
            up += state.value
    return up


def peers(cuda):
    """Pairs of GPUs where the first can access the second's memory."""
    reached, pairs = ctypes.c_int(), []
    for one in range(count(cuda)):
        for other in range(count(cuda)):
            if one != other and cuda.cuDeviceCanAccessPeer(ctypes.byref(reached), one, other) == 0:
                pairs += [[one, other]] * reached.value
    return pairs


def links(manager, handles):
    """[one, other, link] for each pair: NVLINK, or the PCIe path as `nvidia-smi topo` names it."""
    value = ctypes.c_int()
    found = []
    for other, second in enumerate(handles):
        for one, first in enumerate(handles[:other]):
            if first is None or second is None:
                continue
            asked = (first, second, _P2P_NVLINK, ctypes.byref(value))
            if manager.nvmlDeviceGetP2PStatus(*asked) == 0 and value.value == 0:
                found.append([one, other, "NVLINK"])
            elif manager.nvmlDeviceGetTopologyCommonAncestor(first, second, ctypes.byref(value)) == 0:
                found.append([one, other, _WAYS.get(value.value, str(value.value))])
    return found


def nvml():
    """The initialized management library (NVML); None if it is missing."""
    try:
        manager = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return manager if manager.nvmlInit_v2() == 0 else None


def nvml_text(manager, function):
    """The text that an NVML *function* writes to its buffer; None if it fails."""
    buffer = ctypes.create_string_buffer(_STRING)
    if manager is None or getattr(manager, function)(buffer, _STRING) != 0:
        return None
    return buffer.value.decode()


if __name__ == "__main__":
    main()
