"""List the versions and distributions of this environment, and what the flags compiled into its torch say."""

import json
import platform
import re
import shutil
from importlib.metadata import distributions

import torch

flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
versions = {}
for found in distributions():  # in the order of sys.path: Python imports the first
    versions.setdefault((found.metadata["Name"] or "").lower().replace("_", "-"), found.version)


def of(library):
    """The version of nvidia-<library>, with any CUDA suffix in its name."""
    named = re.compile(rf"nvidia-{library}(-cu\d+)?")
    return next((version for name, version in versions.items() if named.fullmatch(name)), None)


def own_nccl():
    """The version of the NCCL that torch is linked with, if that is not from a distribution (as with
    conda)."""
    if not hasattr(torch._C, "_nccl_version"):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


print(
    json.dumps(
        {
            "claims": {
                "torch": torch.__version__,
                "wheel_cuda": torch.version.cuda,
                "python": platform.python_version(),
                "flavor": "devel" if shutil.which("nvcc") else "runtime",
                "archs": flags.split() if flags else [],
                "cudnn": of("cudnn"),
                "nccl": of("nccl") or own_nccl(),
            },
            "wheels": [{"name": name, "version": version} for name, version in sorted(versions.items())],
        }
    )
)
