"""The lines that an interactive shell prints first: build, GPUs, warnings."""

from __future__ import annotations

from pathlib import Path

from workplace.driver import ask
from workplace.image import Image
from workplace.machine import look
from workplace.report import gpus, warnings

DRIVER_TIMEOUT = 3.0  # seconds until the prompt appears all the same; `doctor` waits longer


def text(image: Image) -> str:
    """The image's versions, the GPUs, and warnings."""
    driver = ask(DRIVER_TIMEOUT)
    lines = [
        f"PyTorch {image.torch} for CUDA {image.cuda} (built with {image.wheel_cuda}), cuDNN {image.cudnn},"
        f" NCCL {image.nccl}, Python {image.python}",
        f"GPUs: {gpus(driver)}",
        *(f"warning: {line}" for line in warnings(image, driver, look())),
    ]
    if not Path("/var/lib/apt/lists").is_dir() or not any(Path("/var/lib/apt/lists").glob("*Packages*")):
        lines.append("apt has no package lists: run apt-get update first")
    return "\n".join([*lines, "More: run `doctor` or `/opt/torchkiln/entrypoint help`"])
