"""What a container logs at its start: the machine, and warnings."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator

from workplace.driver import Driver, another_image, ask, too_old, unserved
from workplace.image import Image
from workplace.machine import SMALL_SHM, Machine, look, size
from workplace.messages import listed, message


def say(*lines: str) -> None:
    """Write *lines* to stderr in one call, because services write there too."""
    sys.stderr.write("".join(f"torchkiln: {line}\n" for line in lines))
    sys.stderr.flush()


def machine(image: Image) -> None:
    """Log what this machine has, and warnings about it."""
    driver, found = ask(), look()
    say(*facts(driver, found), *(message("warning", text=line) for line in warnings(image, driver, found)))


def facts(driver: Driver, found: Machine) -> Iterator[str]:
    """GPUs, cores, memory and writable folders, in two lines."""
    yield message("start.gpus", gpus=gpus(driver))
    yield message(
        "start.machine" if found.writable else "start.not-writable",
        cores=message("start.core" if found.cores == 1 else "start.cores", cores=found.cores),
        memory=message("start.limited" if found.limited else "start.memory", size=size(found.memory)),
        shm=size(found.shm),
        uid=os.getuid(),
        folders=listed(list(found.writable)),
    )


def gpus(driver: Driver) -> str:
    """`2 × NVIDIA H200, driver 580.159.04 (CUDA 13.0)`."""
    counts = Counter(gpu.name for gpu in driver.gpus)
    names = [f"{count} × {name}" if count > 1 else name for name, count in counts.items()]
    text = listed(names) or message("start.none")
    if not driver.cuda:
        return text
    version = driver.version or message("unknown")
    return message("start.driver", gpus=text, version=version, cuda=driver.cuda)


def warnings(image: Image, driver: Driver, found: Machine) -> Iterator[str]:
    """Problems of this machine, each with what to do."""
    if driver.fault:
        yield message("warning.fault", fault=driver.fault, remedy=driver.remedy)
    if too_old(driver, image.min_driver):
        yield message(
            "warning.too-old",
            version=driver.version,
            wheel_cuda=image.wheel_cuda,
            needed=image.min_driver,
        )
    yield from unsupported(image, driver)
    if found.shm <= SMALL_SHM:
        yield message("warning.shm", size=size(found.shm))
    if found.closed:
        yield message("warning.closed", uid=os.getuid(), folders=listed(list(found.closed)))


def unsupported(image: Image, driver: Driver) -> Iterator[str]:
    """A warning for each kind of GPU for which the image has no device code."""
    by_name = {(gpu.name, gpu.capability): gpu for gpu in unserved(driver, image)}
    for (name, (major, minor)), gpu in sorted(by_name.items()):
        if image.gpus:
            yield message(
                "warning.cut",
                name=name,
                capability=f"{major}.{minor}",
                gpus=listed(list(image.gpus)),
                remedy=another_image(image, (gpu,)),
            )
        else:
            yield message(
                "warning.unserved",
                name=name,
                capability=f"{major}.{minor}",
                torch=image.torch,
                archs=" ".join(image.archs),
            )
