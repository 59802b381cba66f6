"""A fake driver: libcuda.so.1 and libnvidia-ml.so.1, whose functions return values of environment variables.

The functions have the signatures of the CUDA Driver API and of NVML,
so that the smoke suite's probe can call them like those of a real driver.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

_ANSWERS = """
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *text(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value ? value : otherwise;
}

static int number(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

static int answer(const char *name) {
    const char *value = text(name, "0");
    if (!strcmp(value, "crash")) raise(SIGSEGV);
    if (!strcmp(value, "hang")) sleep(3600);
    if (!strncmp(value, "exit", 4)) _exit(atoi(value + 4));
    if (!strncmp(value, "late", 4)) { sleep(atoi(value + 4)); return 0; }
    return atoi(value);
}
"""
_CUDA = """
int cuInit(unsigned flags) { return answer("FAKE_INIT"); }
int cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA", 13000); return 0; }
int cuDeviceGetCount(int *count) { *count = number("FAKE_GPUS", 1); return 0; }
int cuDeviceGetName(char *name, int size, int at) { snprintf(name, size, "Fake H%d00", at + 1); return 0; }
int cuDeviceGetPCIBusId(char *bus, int size, int at) {
    snprintf(bus, size, "0000:%02X:00.0", 16 + at);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int at) { *bytes = (size_t)number("FAKE_MIB", 81920) << 20; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int at) {
    const char *all = text("FAKE_CAPABILITY", "90");
    for (int skipped = 0; skipped < at && strchr(all, ','); skipped++) all = strchr(all, ',') + 1;
    int capability = atoi(all);
    *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 132;
    return 0;
}
int cuDeviceCanAccessPeer(int *can, int one, int other) { *can = number("FAKE_PEERS", 1); return 0; }
"""
_NVML = """
int nvmlInit_v2(void) { return answer("FAKE_NVML"); }
int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    snprintf(version, size, "%s", text("FAKE_DRIVER", "580.159.04"));
    return 0;
}
/* CUDA's GPU 0 is NVML's last: code that confuses the two numbers is found. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, intptr_t *handle) {
    unsigned slot;
    if (sscanf(bus, "0000:%x:", &slot) != 1) return 2;
    *handle = 100 - (slot - 16);
    return 0;
}
int nvmlDeviceGetMemoryInfo(intptr_t handle, unsigned long long *memory) {
    if (handle > 100 || handle < 80) return 2;
    int last = handle == 100 - (number("FAKE_GPUS", 1) - 1);
    memory[0] = (unsigned long long)number("FAKE_MIB", 81920) << 20;
    memory[1] = (unsigned long long)number(last ? "FAKE_FREE_MIB" : "FAKE_MIB", 80000) << 20;
    memory[2] = memory[0] - memory[1];
    return 0;
}
int nvmlDeviceGetNvLinkState(intptr_t handle, unsigned link, int *state) {
    if ((int)link >= number("FAKE_NVLINKS", 0)) return 3; /* not supported */
    *state = 1;
    return 0;
}
int nvmlDeviceGetP2PStatus(intptr_t one, intptr_t other, int what, int *status) {
    *status = what == 2 && number("FAKE_NVLINKS", 0) ? 0 : 1;
    return 0;
}
/* For deploy/monitoring/exporter.py, which numbers GPUs as NVML does. */
int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = number("FAKE_GPUS", 1);
    return answer("FAKE_COUNT");
}
int nvmlDeviceGetHandleByIndex_v2(unsigned at, intptr_t *handle) { *handle = 100 - at; return 0; }
int nvmlDeviceGetName(intptr_t handle, char *name, unsigned size) {
    snprintf(name, size, "%s", text("FAKE_NAME", "Fake H100"));
    return 0;
}
int nvmlDeviceGetUUID(intptr_t handle, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-%d", (int)(100 - handle));
    return 0;
}
int nvmlDeviceGetUtilizationRates(intptr_t handle, unsigned *use) {
    use[0] = 75;
    use[1] = 10;
    return answer("FAKE_USE");
}
int nvmlDeviceGetPowerUsage(intptr_t handle, unsigned *milliwatts) { *milliwatts = 312500; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(intptr_t handle, unsigned *milliwatts) { *milliwatts = 700000; return 0; }
int nvmlDeviceGetTemperature(intptr_t handle, int sensor, unsigned *degrees) {
    *degrees = 60 + (100 - handle);
    return sensor; /* 0 is the chip */
}
int nvmlDeviceGetTopologyCommonAncestor(intptr_t one, intptr_t other, int *level) {
    *level = number("FAKE_WAY", 50);
    return 0;
}
"""


@functools.cache
def fake_driver() -> Path:
    """The folder with both libraries: put it into LD_LIBRARY_PATH, and set the results with FAKE_*.

    FAKE_INIT, FAKE_NVML: the result of initialisation, or crash, hang, late2 (0, after 2 seconds), or exit3
    (the process exits without output). FAKE_GPUS, FAKE_CAPABILITY (90; 90,80: one for each GPU), FAKE_MIB,
    FAKE_FREE_MIB (on the last GPU), FAKE_CUDA (13000), FAKE_DRIVER, FAKE_PEERS (1), FAKE_NVLINKS, FAKE_WAY.
    Only for NVML: FAKE_NAME; FAKE_COUNT and FAKE_USE: the results of counting GPUs and of querying their use.
    """
    folder = Path(tempfile.mkdtemp(prefix="kiln-driver-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, source in (("libcuda.so.1", _CUDA), ("libnvidia-ml.so.1", _NVML)):
        command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(folder / name)]
        subprocess.run(command, input=_ANSWERS + source, text=True, check=True)
    return folder


def has_libcuda() -> bool:
    """Whether this machine has a real driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
