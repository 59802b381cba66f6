"""The lines that an interactive shell prints first: build, GPUs, warnings."""

from __future__ import annotations

from pathlib import Path

from workplace.driver import ask
from workplace.image import Image
from workplace.machine import look
from workplace.messages import message
from workplace.report import gpus, warnings

DRIVER_TIMEOUT = 3.0  # seconds until the prompt appears all the same; `doctor` waits longer


def text(image: Image) -> str:
    """The image's versions, the GPUs, and warnings."""
    driver = ask(DRIVER_TIMEOUT)
    lines = [
        message(
            "greeting",
            torch=image.torch,
            cuda=image.cuda,
            wheel_cuda=image.wheel_cuda,
            cudnn=image.cudnn,
            nccl=image.nccl,
            python=image.python,
        ),
        message("start.gpus", gpus=gpus(driver)),
        *(message("warning", text=line) for line in warnings(image, driver, look())),
    ]
    if not Path("/var/lib/apt/lists").is_dir() or not any(Path("/var/lib/apt/lists").glob("*Packages*")):
        lines.append(message("greeting.apt"))
    return "\n".join([*lines, message("greeting.more")])
