"""Refuses to start an image with device code for some GPUs where no GPU can run it."""

from __future__ import annotations

from collections.abc import Mapping

from workplace import report
from workplace.driver import Driver, another_image, ask, kinds, unserved
from workplace.image import Image
from workplace.messages import listed, message
from workplace.settings import BadSettings, any_gpu

REFUSED = 3  # exit code; the entrypoint has the same number


def main(image: Image, environ: Mapping[str, str]) -> int:
    """Before a command: 0, or REFUSED after a message. Warns if only some GPUs can be used."""
    try:
        allowed = any_gpu(environ)
    except BadSettings as error:
        report.say(*error.faults)
        allowed = False
    driver = ask()
    if not allowed and (lines := refusal(image, driver)):
        report.say(*lines)
        return REFUSED
    report.say(*(message("warning", text=line) for line in report.unsupported(image, driver)))
    return 0


def refusal(image: Image, driver: Driver | None = None) -> tuple[str, ...]:
    """Why *image* does not start here, and what to do; empty if it does, as without any GPU.

    An image with all device code starts: torch says itself that it does not support a GPU, and runs on the
    CPU. In an image with part of it, kernels of any library would be missing at their first use.
    """
    if not image.gpus:
        return ()
    found = driver or ask()
    unsupported = unserved(found, image)
    if not found.gpus or len(unsupported) < len(found.gpus):
        return ()
    remedy = another_image(image, unsupported)
    return (
        message("refused", gpus=listed(list(image.gpus)), names=kinds(unsupported)),
        message("refused.do", remedy=remedy),
    )
