"""`python tools/driver_check.py ROOT`: check that an unpacked image can use this host's GPUs.

It runs the image in namespaces. `python tools/driver_check.py NAME docker` runs the image NAME of the Docker
engine with all GPUs, with the first GPU, and without a GPU.

ROOT needs python3, but no torch. Each GPU is tested with libcuda only: its name, and a kernel that the
driver compiles from PTX. Prints a JSON object with the mounted files and the output of nvidia-smi; exits with
1 if a GPU fails.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

_INSIDE = "/tmp/driver_check.py"
_COUNT = 1024
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry squares(.param .u64 out) {
    .reg .u32 %i, %v;
    .reg .u64 %p, %o;
    mov.u32 %i, %tid.x;
    mul.lo.u32 %v, %i, %i;
    mul.wide.u32 %o, %i, 4;
    ld.param.u64 %p, [out];
    cvta.to.global.u64 %p, %p;
    add.u64 %p, %p, %o;
    st.global.u32 [%p], %v;
    ret;
}
"""


def inside() -> dict[str, Any]:
    """Test all GPUs with libcuda, inside the container."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        if code := getattr(cuda, name)(*arguments):
            raise OSError(f"{name}: {code}")

    count, version = ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    gpus = []
    for number in range(count.value):
        name, context = ctypes.create_string_buffer(96), ctypes.c_void_p()
        module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        call("cuDeviceGetName", name, len(name), number)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        call("cuCtxSetCurrent", context)
        call("cuModuleLoadData", ctypes.byref(module), _PTX)
        call("cuModuleGetFunction", ctypes.byref(function), module, b"squares")
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * _COUNT))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
        call("cuLaunchKernel", function, 1, 1, 1, _COUNT, 1, 1, 0, None, arguments, None)
        result = (ctypes.c_uint32 * _COUNT)()
        call("cuMemcpyDtoH_v2", result, memory, ctypes.c_size_t(4 * _COUNT))
        exact = list(result) == [index * index for index in range(_COUNT)]
        gpus.append({"name": name.value.decode(), "exact": exact})
    return {"cuda": version.value, "gpus": gpus}


def main(root: Path) -> int:
    """Run `inside` and nvidia-smi in *root* with torchkiln's rootfs runtime."""
    from torchkiln.runtimes.command import Bind, Exited, Program
    from torchkiln.runtimes.driver import driver_for
    from torchkiln.runtimes.rootfs import RootfsRuntime

    driver = driver_for({}, "all")
    assert driver is not None
    runtime = RootfsRuntime(driver=driver)
    here = Bind(source=Path(__file__).resolve(), target=_INSIDE)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def run(*argv: str) -> Exited:
        return runtime.run(root, Program(argv=argv, env=env, binds=(here,)), timeout_s=120)

    checked = run("python3", _INSIDE, "--inside")
    smi = run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    loader = run("sh", "-c", "/sbin/ldconfig -p | grep -c /usr/local/nvidia/")
    result = {
        "handed on": {
            "nodes": [name for name, _ in driver.nodes],
            "libraries": [name for name, _ in driver.libraries],
            "tools": [name for name, _ in driver.tools],
        },
        "inside": json.loads(checked.stdout) if checked.code == 0 else checked.stderr.decode()[-1000:],
        "nvidia-smi": smi.stdout.decode().splitlines() if smi.code == 0 else smi.stderr.decode()[-500:],
        "libraries in the loader's cache": int(loader.stdout or 0),
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    gpus = result["inside"]["gpus"] if checked.code == 0 else []
    return 0 if len(gpus) == driver.gpus and all(gpu["exact"] for gpu in gpus) else 1


def in_engine(image: str) -> int:
    """Run `inside` in containers of *image*, in the Docker engine of DOCKER_HOST."""
    from torchkiln.docker.daemon import find_engine
    from torchkiln.runtimes.command import Bind
    from torchkiln.runtimes.docker import Container, captured
    from torchkiln.runtimes.runtime import SilentRuntimeListener
    from torchkiln.runtimes.table import gpus_on

    engine = find_engine(builds=False)
    result: dict[str, Any] = {"engine": f"{engine.kind} {engine.version}"}
    for requested in (None, "device=0", "none"):
        gpus, cdi = gpus_on(engine, requested, SilentRuntimeListener())
        container = Container(
            image=image,
            command=("python3", _INSIDE, "--inside"),
            entrypoint=False,
            gpus=gpus,
            cdi=cdi,
            files=(Bind(source=Path(__file__).resolve(), target=_INSIDE),),
        )
        lines: list[bytes] = []
        ended = captured(container, engine, timeout_s=120, on_line=lines.append)
        output = json.loads(b"".join(lines)) if ended.code == 0 else ended.stderr.decode()[-300:]
        result[f"--gpus {requested}"] = {"asked": gpus, "by CDI": cdi, "inside": output}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    every, first, none = (row["inside"] for row in result.values() if isinstance(row, dict))
    if isinstance(every, str) or isinstance(first, str) or not isinstance(none, str):
        return 1
    return 0 if len(first["gpus"]) == 1 and all(gpu["exact"] for gpu in every["gpus"]) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        sys.stdout.write(json.dumps(inside()))
    elif sys.argv[2:] == ["docker"]:
        sys.exit(in_engine(sys.argv[1]))
    else:
        sys.exit(main(Path(sys.argv[1])))
