"""Compute the expected values that depend on the image or on the host.

VALUES of a check names them (`{"expected": "archs"}`). The host computes them again from the lock and from
the report's description of the host, so a report cannot choose its own bounds. Imports nothing of the suite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

DEFAULT_OS = "debian12"
PROMISED = ("torch", "numpy", "torchvision", "torchaudio")
OPTIONAL = ("torchaudio",)  # expected only if it is locked: not every CUDA version has torchaudio
NVLINK, PCIE, SHM, NET, NONE = LINKS = ("NVLink", "PCIe P2P", "SHM", "NET", "none")  # the fastest first

_SETTINGS = (
    *("CUDA_", "CUBLAS", "CUDNN_", "CUFFT_", "CUSPARSE", "CUSOLVER", "NVIDIA_TF32_", "NVRTC_", "NVFUSER_"),
    *("PYTORCH_", "TORCH", "ATEN_", "C10_", "KINETO_", "TRITON_", "INDUCTOR_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "DNNL_", "ONEDNN_"),
)
# Places of files, the choice of GPUs, the number of threads, and what the runtimes pass on from the host.
_NO_SETTINGS = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_VERSION"),
    *("CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "CUDA_MPS_", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"),
    *("TORCH_CUDA_ARCH_LIST", "TORCH_SYMM_MEM_", "TORCHKILN_", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    *("TRITON_HOME", "PYTORCH_KERNEL_CACHE_PATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)

_TAG = re.compile(
    r"(?P<torch>[\d.]+)-cuda(?P<cuda>[\d.]+)-cudnn(?P<cudnn>\d+)-(?P<flavor>runtime|devel)"
    r"(?:-(?!(?:debian|ubuntu)\d)[a-z][a-z0-9]*)*"  # suffixes such as -sm90-ownuse
    r"(?:-(?P<os>(?:debian|ubuntu)[\d.]+))?"
)
# By the path between two GPUs (probes/driver.py). If the path crosses more than PCIe switches, NCCL may
# prefer the host's memory although the GPUs are peers: that depends on the processor.
_SLOWEST_OF_PATH = {"NVLINK": NVLINK, "board": PCIE, "PIX": PCIE, "PXB": PCIE}


def expected(name: str, facts: Mapping[str, Any], host: Mapping[str, Any]) -> Any:
    """The expected value *name*, for the image of *facts* on *host*.

    :raises KeyError: there is no value *name*, or *facts* or *host* lack an input of it.
    """
    if name in _OF_IMAGE:
        return _OF_IMAGE[name](facts)
    return _OF_HOST[name](host["driver"])


def parse_tag(tag: str) -> dict[str, str | None]:
    """The parts of `2.7.1-cuda12.1-cudnn9-runtime`; all None if *tag* is not such a tag."""
    found = _TAG.fullmatch(tag)
    if not found:
        return dict.fromkeys(("torch", "cuda", "cudnn", "flavor", "os"))
    return found.groupdict() | {"os": found["os"] or DEFAULT_OS}


def promised_link(driver: Mapping[str, Any]) -> str:
    """The slowest link that NCCL may need, from the driver's data on each pair of GPUs."""
    count, paths = len(driver["gpus"]), [path for _, _, path in driver["links"]]
    if not paths or len(driver["peers"]) < count * (count - 1) or len(paths) < count * (count - 1) // 2:
        return SHM
    return max((_SLOWEST_OF_PATH.get(path, SHM) for path in paths), key=LINKS.index)


def head(version: str | None, parts: int) -> str | None:
    """The first *parts* numbers of *version*; None stays None."""
    return version and ".".join(version.split(".")[:parts])


def _labels(facts: Mapping[str, Any]) -> dict[str, str]:
    claims = facts["claims"]
    labels = {
        f"torchkiln.{key}": " ".join(value) if isinstance(value, list) else str(value)
        for key, value in claims.items()
        if value and key != "tag"
    }
    return labels | {"org.opencontainers.image.version": claims["tag"]}


def _packages(facts: Mapping[str, Any]) -> dict[str, str]:
    return {wheel["name"]: wheel["version"] for wheel in facts["wheels"]}


def _cut_wheels(facts: Mapping[str, Any]) -> dict[str, str]:
    cut = facts["device_code"]["wheels"]
    return {wheel["name"]: wheel["sha256"] for wheel in facts["wheels"] if wheel["name"] in cut}


def _promised(facts: Mapping[str, Any]) -> dict[str, str | None]:
    packages = _packages(facts)
    promised = [name for name in PROMISED if name in packages or name not in OPTIONAL]
    return {name: packages[name].split("+")[0] if name in packages else None for name in promised}


def _jupyter(facts: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: _packages(facts).get(name) for name in ("jupyterlab", "jupyter-server", "ipykernel")}


def _wheel_of(library: str, facts: Mapping[str, Any]) -> str | None:
    """The locked version of NVIDIA's wheel for *library*; None: torch's own wheel contains the library."""
    own_wheel = any(name.startswith(f"nvidia-{library}") for name in _packages(facts))
    return facts["claims"][library] if own_wheel else None


def _is_nvidias(wheel: str) -> bool:
    return wheel.startswith(("nvidia-", "cuda-"))


def _library_cases(facts: Mapping[str, Any]) -> list[str]:
    """The cases of library_cases.py; cuRAND's only if it is locked, because torch does not need cuRAND."""
    cases = ["products", "fourier", "decompositions", "sparse", "curand", "collectives", "jpeg", "profiler"]
    curand = any(name.startswith("nvidia-curand") for name in _packages(facts))
    return [case for case in cases if case != "curand" or curand]


def _vision_audio(facts: Mapping[str, Any]) -> list[str]:
    """The operators of vision_audio.py that the locked torchvision and torchaudio have."""
    packages = _packages(facts)
    vision = ["nms", "batched_nms", "deform_conv2d", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"]
    found = vision if "torchvision" in packages else []
    if audio := packages.get("torchaudio"):
        newer = tuple(map(int, audio.split(".")[:2])) >= (2, 1)
        found = [*found, "rnnt_loss", *(["forced_align", "cuda_ctc_decoder"] if newer else [])]
    return found


def is_setting(variable: str) -> bool:
    """Whether a variable of this name can change results or times of torch or of a CUDA library."""
    return variable.startswith(_SETTINGS) and not variable.startswith(_NO_SETTINGS)


def _settings(facts: Mapping[str, Any]) -> dict[str, str]:
    """The variables that change torch's behaviour and that the lock sets."""
    return {name: value for name, value in facts.get("env", {}).items() if is_setting(name)}


_OF_IMAGE: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    # torch lists the GPUs that it was compiled for, even if the image has the code for some of them only.
    "archs": lambda facts: sorted(facts["claims"].get("wheel_archs") or facts["claims"]["archs"]),
    "build": lambda facts: facts["claims"]["torch"],
    "claims": lambda facts: facts["claims"],
    "cudnn": lambda facts: head(facts["claims"]["cudnn"], 3),
    "cudnn_wheel": lambda facts: _wheel_of("cudnn", facts),
    "cut_wheels": _cut_wheels,
    "jupyter_versions": _jupyter,
    "library_cases": _library_cases,
    "kept_gpus": lambda facts: facts["claims"]["gpus"],
    "labels": _labels,
    "nccl": lambda facts: head(facts["claims"]["nccl"], 3),
    "nvidia_wheels": lambda facts: sorted(filter(_is_nvidias, _packages(facts))),
    "nccl_wheel": lambda facts: _wheel_of("nccl", facts),
    "os": lambda facts: facts["claims"]["os"],
    "packages": _packages,
    "promised_versions": _promised,
    "python": lambda facts: facts["claims"]["python"],
    "set_variables": _settings,
    "tag": lambda facts: parse_tag(facts["claims"]["tag"]),
    "vision_audio_operators": _vision_audio,
    "wheel_cuda": lambda facts: facts["claims"]["wheel_cuda"],
}
_OF_HOST: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "gpus": lambda driver: len(driver["gpus"]),
    "gpu_names": lambda driver: [gpu["name"] for gpu in driver["gpus"]],
    "gpu_capabilities": lambda driver: [gpu["capability"] for gpu in driver["gpus"]],
    # For several GPUs with one process each: a list by rank.
    "ranks": lambda driver: list(range(len(driver["gpus"]))),
    "worlds": lambda driver: [len(driver["gpus"])] * len(driver["gpus"]),
    "nccl_on_each": lambda driver: ["nccl"] * len(driver["gpus"]),
    "zero_on_each": lambda driver: [0] * len(driver["gpus"]),
    "zero_from_each_on_each": lambda driver: [[0] * len(driver["gpus"])] * len(driver["gpus"]),
    "true_on_each": lambda driver: [True] * len(driver["gpus"]),
    "true_on_each_but_the_last": lambda driver: [True] * (len(driver["gpus"]) - 1),
    "share_of_memory": lambda driver: (
        1 / max(1, len(driver["gpus"])) + 0.1
    ),  # its shard, and a little for padding
    "promised_link": lambda driver: LINKS.index(promised_link(driver)),
}
