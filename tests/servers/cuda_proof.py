"""Build a devel image with a real CUDA 11.8, from Debian's packages in NVIDIA's layout, and compile in it.

    python -m tests.servers.cuda_proof ARCHIVES RECORD

*ARCHIVES*: a folder of archives, written by tests/servers/debian_cuda.py. The archives are served over HTTP,
locked by their hashes, and built twice: from that server, and from the folder into another cache. In the
image nvcc compiles for sm_80 and sm_90 with the gcc 11 of its tools. *RECORD*: the output file, in
JSON. It needs root, the package index and Debian's archive, and takes some minutes. Not in CI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.planned import FACTS, MATRIX
from tests.servers.cuda_archives import mirror, serve
from tests.servers.debian_cuda import ARCHIVES_OF
from tests.servers.index_server import IndexServer
from torchkiln.base.artefact import read_lock
from torchkiln.base.tools import rebuild as rebuild_tools
from torchkiln.cli.shared import console
from torchkiln.index.package_index import open_index
from torchkiln.locks.lock import inputs_digest, save
from torchkiln.matrix import cuda_redist
from torchkiln.matrix.resolve import resolve
from torchkiln.model.cell import Cell
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedBase, LockedCell
from torchkiln.model.progress import Reporting
from torchkiln.store.store import Store, cache_root
from torchkiln.util.files import pretty_json
from torchkiln.util.places import ROOT

CELL = Cell(torch="2.0.1", cuda="11.8", flavor="devel", os="debian12", python="3.11")
AS_OF = "2026-11-22"
# Small libraries that torch depends on; without torch itself.
WHEELS = (
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cuda-nvrtc-cu11==11.8.89",
    "nvidia-curand-cu11==10.3.0.86",
    "pip",
)
KERNEL = """\
#include <cstdio>
#include <thrust/device_vector.h>
#include <cublas_v2.h>
#include <curand.h>
#include <nvrtc.h>
__global__ void twice(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2.0f;
}
int main() {
  int major = 0, minor = 0, curand = 0;
  thrust::device_vector<float> *none = nullptr;
  if (none) twice<<<1, 1>>>(thrust::raw_pointer_cast(none->data()), 1);
  nvrtcVersion(&major, &minor);
  curandGetVersion(&curand);
  std::printf("cudart %d nvrtc %d.%d curand %d cublas's headers %d\\n",
              CUDART_VERSION, major, minor, curand, CUBLAS_VER_MAJOR);
  return 0;
}
"""
CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(twice CUDA CXX)
find_package(CUDAToolkit REQUIRED)
add_executable(made twice.cu)
set_target_properties(made PROPERTIES CUDA_ARCHITECTURES "80;90")
target_link_libraries(made CUDA::cudart CUDA::curand CUDA::nvrtc CUDA::cuda_driver)
message(STATUS "toolkit ${CUDAToolkit_VERSION} in ${CUDAToolkit_BIN_DIR}")
"""
INSIDE = r"""
set -e
exec 3>&1 1>&2
cd "$(mktemp -d)"
codes() { cuobjdump "$@" | sed -E 's/.*(sm_[0-9]+).*/\1/' | sort -u | tr '\n' ' '; }
cat > twice.cu <<'KERNEL'
%(kernel)sKERNEL
cat > CMakeLists.txt <<'CMAKE'
%(cmake)sCMAKE
{
  echo "nvcc: $(nvcc --version | grep release)"
  echo "host: $(gcc --version | head -n 1)"
  nvcc -O2 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
      -gencode arch=compute_90,code=compute_90 -o twice twice.cu -lcurand -lnvrtc
  echo "code: $(codes --list-elf twice)"
  echo "ptx: $(codes --list-ptx twice)"
  echo "starts: $(./twice)"
  echo "loads: $(ldd twice | grep -E 'curand|nvrtc' | awk '{print $3}' | tr '\n' ' ')"
  cuobjdump -xelf all twice > /dev/null
  for one in ./*.sm_90.cubin; do nvdisasm "$one"; done > machine.txt
  echo "nvdisasm: $(grep -cE 'FMUL|FADD' machine.txt) FMUL or FADD for sm_90"
  g++ -o plain -x c++ - -lcudart <<< '#include <cuda_runtime.h>
#include <cstdio>
int main() { std::puts(cudaGetErrorString(cudaErrorInvalidValue)); }'
  echo "g++ -lcudart: $(./plain) $(ldd plain | grep cudart | awk '{print $3}')"
  echo "gcc 12: $(nvcc -ccbin gcc-12 -c -o refused.o twice.cu 2>&1 | grep -o 'unsupported GNU version.*')"
  cmake -S . -B build -G Ninja > cmake.log 2>&1 || { cat cmake.log >&2; exit 1; }
  cmake --build build > build.log 2>&1 || { cat build.log >&2; exit 1; }
  echo "cmake: $(grep -- '-- toolkit' cmake.log)"
  echo "cmake's code: $(codes --list-elf build/made)"
  echo "dangling: $(find -L /usr/local/cuda/ -type l | wc -l) links"
  echo "tools: $(command -v cuda-gdb cuobjdump nvdisasm ptxas nvlink | tr '\n' ' ')"
} >&3
"""


def main(archives: Path, record: Path) -> None:
    """Run the proof that the module's docstring describes."""
    with tempfile.TemporaryDirectory(prefix="cuda-proof-") as name, IndexServer() as server:
        work = Path(name)
        for path in archives.rglob("*.tar.xz"):
            serve(server, str(path.relative_to(archives)), path.read_bytes())
        locked = lock_it(archives, work / "images")
        places = {"one": mirror(server), "two": str(archives.absolute())}
        builds = [build(work, cache, place, archives, locked) for cache, place in places.items()]
        served_bytes = sum(sent.count for sent in server.sent)
        inside = run(work, "one", archives, places["one"])
    layers = [
        {key: layer[key] for key in ("what", "digest", "size", "unpacked")}
        for layer in builds[0]["layers"]
        if layer["what"].startswith("CUDA 11.8.0")
    ]
    record_values = {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "archives_of": ARCHIVES_OF,
        "tag": builds[0]["tag"],
        "archives": {archive.component: archive.size for archive in locked.archives},
        "served_bytes": served_bytes,
        "digests": [item["digest"] for item in builds],
        "layers": layers,
        "layer_bytes": sum(layer["size"] for layer in layers),
        "estimates": {release: estimate(release, layers) for release in ("11.7.1", "11.8.0", "12.1.1")},
        "seconds": builds[0]["seconds"],
        "inside": dict(line.split(": ", 1) for line in inside.splitlines() if ": " in line),
    }
    record.write_bytes(pretty_json(record_values))
    assert builds[0]["digest"] == builds[1]["digest"]
    assert record_values["inside"]["code"].split() == ["sm_80", "sm_90"]


def estimate(release: str, layers: list[dict[str, Any]]) -> dict[str, int]:
    """Estimate the size in bytes of the layers of NVIDIA's archives of *release*, which were not built here.

    nvcc and nvdisasm are the same files as in NVIDIA's archives of 11.8, so gzip is assumed to have the same
    ratio to the archive's size. cuda-gdb is assumed to be a third larger than its archive, and the rest
    (headers, stubs and small programs) to have the size measured here.
    """
    sizes = {item.component: item.size for item in FACTS.redist.releases[release]}
    packed = {item.component: item.size for item in FACTS.redist.releases["11.8.0"]}
    here = {
        name: layer["size"] for layer in layers for name in (*packed, "parts") if f" {name} " in layer["what"]
    }
    builds = {name: sizes[name] * here[name] // packed[name] for name in ("cuda_nvcc", "cuda_nvdisasm")}
    builds |= {"cuda_gdb": sizes["cuda_gdb"] * 4 // 3, "rest": here["parts"]}
    return builds | {"all": sum(builds.values())}


def lock_it(archives: Path, images: Path) -> LockedCell:
    """A lock of the cell with a few real wheels, and the repository's locked base."""
    redist = cuda_redist.read(archives / "redist.yaml")
    resolution = resolve(CELL, MATRIX, replace(FACTS, redist=redist))
    bound = MATRIX.indexes[0].packages
    base = read_lock(ROOT / "images", CELL.os)
    assert isinstance(base, LockedBase)
    assert resolution.tools is not None
    report = Reporting(say=console.say)
    tools = rebuild_tools(resolution.tools, base, Store(cache_root()), environ=os.environ, report=report)
    request = IndexRequest(
        requirements=WHEELS, constraints=(), python="3.11", glibc=(2, 36), as_of=AS_OF, keep=(), bound=()
    )
    wheels = open_index(os.environ, Store(cache_root())).wheels(request)
    locked = LockedCell(
        resolution=resolution,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        base=base,
        as_of=AS_OF,
        epoch=int(datetime.fromisoformat(AS_OF).replace(tzinfo=timezone.utc).timestamp()),
        inputs=inputs_digest(resolution, bound),
        layers=(),
        archives=redist.releases["11.8.0"],
        tools=tools,
    )
    save(images, locked)
    return locked


def build(work: Path, cache: str, place: str, archives: Path, locked: LockedCell) -> dict[str, Any]:
    """`build --json` into a separate cache that has base and tools."""
    user_cache, store = Store(cache_root()), Store(work / cache)
    assert locked.tools is not None
    for item in (locked.base, locked.tools):
        if user_cache.has_blob(item.digest, item.size):
            store.blob(item.digest).parent.mkdir(parents=True, exist_ok=True)
            store.blob(item.digest).write_bytes(user_cache.blob(item.digest).read_bytes())
    builds: dict[str, Any] = json.loads(
        kiln(work, cache, archives, place, "build", "--no-smoke", "--json", "--images", str(work / "images"))
    )
    return builds


def run(work: Path, cache: str, archives: Path, place: str) -> str:
    """The output of INSIDE in the image."""
    script = INSIDE % {"kernel": KERNEL, "cmake": CMAKE}
    return kiln(work, cache, archives, place, "run", "--", "bash", "-c", script)


def kiln(work: Path, cache: str, archives: Path, place: str, command: str, *arguments: str) -> str:
    """Run a torchkiln command for the cell, as a user types it."""
    cell = ("--torch", CELL.torch, "--cuda", CELL.cuda, "--flavor", "devel")
    environ = os.environ | {
        "TORCHKILN_CACHE": str(work / cache),
        "TORCHKILN_CUDA_ARCHIVES": place,
        "TORCHKILN_CUDA_REDIST": str(archives / "redist.yaml"),
        "TORCHKILN_INDEX_PYTORCH": "http://127.0.0.1:9/simple",  # an index must be set, but it is not used
    }
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "build.py"),
            command,
            *cell,
            "--output",
            str(work / f"dist-{cache}"),
            *arguments,
        ],
        env=environ,
        cwd=work,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}"
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
