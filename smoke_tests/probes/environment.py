"""What the distributions in this environment, and the flags compiled into its torch, say it is."""

import json
import platform
import re
import shutil
from importlib.metadata import distributions

import torch

versions = {dist.metadata["Name"].lower(): dist.version for dist in distributions() if dist.metadata["Name"]}
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()


def of(library):
    """The version of nvidia-<library>, whatever CUDA its name ends in."""
    named = re.compile(rf"nvidia-{library}(-cu\d+)?")
    return next((version for name, version in versions.items() if named.fullmatch(name)), None)


print(
    json.dumps(
        {
            "torch": torch.__version__,
            "wheel_cuda": torch.version.cuda,
            "python": platform.python_version(),
            "flavor": "devel" if shutil.which("nvcc") else "runtime",
            "archs": flags.split() if flags else [],
            "cudnn": of("cudnn"),
            "nccl": of("nccl"),
        }
    )
)
