"""Image, driver → the lines with which an interactive shell begins."""

from __future__ import annotations

from pathlib import Path

from workplace.driver import ask
from workplace.image import Image
from workplace.machine import look
from workplace.report import gpus, warnings

PATIENCE = 3.0  # seconds that a prompt may take; `doctor` waits longer


def text(image: Image) -> str:
    """Build facts, the GPUs, and what is wrong with them."""
    driver = ask(PATIENCE)
    lines = [
        f"PyTorch {image.torch} for CUDA {image.cuda} (built with {image.wheel_cuda}), cuDNN {image.cudnn},"
        f" NCCL {image.nccl}, Python {image.python}",
        f"GPUs: {gpus(driver)}",
        *(f"warning: {line}" for line in warnings(image, driver, look())),
    ]
    if not Path("/var/lib/apt/lists").is_dir() or not any(Path("/var/lib/apt/lists").glob("*Packages*")):
        lines.append("apt knows no packages yet: apt-get update")
    return "\n".join([*lines, "More: doctor; /opt/torchkiln/entrypoint help"])
