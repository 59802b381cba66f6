"""Print the versions that the software reports, and those in /etc/torchkiln/image.json."""

import importlib
import importlib.metadata
import json
import platform
import re
import sys
from pathlib import Path

import torch


def os_name() -> str:
    """`debian12` or `ubuntu22.04`, from /etc/os-release."""
    pairs = re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(), re.M)
    values = dict(pairs)
    return f"{values['ID']}{values.get('VERSION_ID', '')}"


def cudnn() -> str | None:
    """The run-time version of cuDNN as one number: 8500 in the 8 series, 90501 from 9 on."""
    number = torch.backends.cudnn.version()
    if number is None:
        return None
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def nccl() -> str | None:
    """The version that NCCL's library reports; needs no GPU."""
    if not hasattr(torch._C, "_nccl_version"):
        return None
    return ".".join(map(str, importlib.import_module("torch.cuda.nccl").version()))


def wheel_version(part: str) -> str | None:
    """The version of NVIDIA's wheel for *part*, whatever CUDA version is in the wheel's name."""
    for found in importlib.metadata.distributions():
        if re.fullmatch(rf"nvidia-{part}(-cu\d+)?", (found.metadata["Name"] or "").lower()):
            return found.version
    return None


image_json = Path("/etc/torchkiln/image.json")
print(
    json.dumps(
        {
            "torch": torch.__version__.split("+")[0],
            "build": str(torch.__version__),
            "wheel_cuda": torch.version.cuda,
            "cudnn": cudnn(),
            "cudnn_wheel": wheel_version("cudnn"),
            "nccl": nccl(),
            "nccl_wheel": wheel_version("nccl"),
            "python": platform.python_version(),
            "os": os_name(),
            "prefix": sys.prefix,
            "image_json": json.loads(image_json.read_bytes()) if image_json.exists() else None,
        }
    )
)
