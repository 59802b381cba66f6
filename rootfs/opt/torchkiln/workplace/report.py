"""What a container logs at its start: the machine, and warnings."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator

from workplace.driver import Driver, ask, too_old, unserved
from workplace.image import Image
from workplace.machine import SMALL_SHM, Machine, look, size


def say(*lines: str) -> None:
    """Write *lines* to stderr in one call, because services write there too."""
    sys.stderr.write("".join(f"torchkiln: {line}\n" for line in lines))
    sys.stderr.flush()


def machine(image: Image) -> None:
    """Log what this machine has, and warnings about it."""
    driver, found = ask(), look()
    say(*facts(driver, found), *(f"warning: {line}" for line in warnings(image, driver, found)))


def facts(driver: Driver, found: Machine) -> Iterator[str]:
    """GPUs, cores, memory and writable folders, in two lines."""
    yield f"GPUs: {gpus(driver)}"
    cores = f"{found.cores:g} core{'' if found.cores == 1 else 's'}"
    folders = ", ".join(found.writable) or "no folder"
    yield (
        f"{cores}, {size(found.memory)} of memory{' (limited)' if found.limited else ''},"
        f" /dev/shm {size(found.shm)}; uid {os.getuid()} can write to {folders}"
    )


def gpus(driver: Driver) -> str:
    """`2 × NVIDIA H200, driver 580.159.04 (CUDA 13.0)`."""
    kinds = Counter(gpu.name for gpu in driver.gpus)
    names = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in kinds.items()) or "none"
    version = f", driver {driver.version or 'unknown'} (CUDA {driver.cuda})" if driver.cuda else ""
    return names + version


def warnings(image: Image, driver: Driver, found: Machine) -> Iterator[str]:
    """Problems of this machine, each with what to do."""
    if driver.fault:
        yield f"{driver.fault}: {driver.remedy}"
    if too_old(driver, image.min_driver):
        yield (
            f"driver {driver.version} is too old: this image (CUDA {image.wheel_cuda}) needs"
            f" {image.min_driver} or newer: update the host's driver, or use an image for an older CUDA"
        )
    for name, capability in sorted({(gpu.name, gpu.capability) for gpu in unserved(driver, image)}):
        yield (
            f"{name} (compute capability {capability[0]}.{capability[1]}) is not supported by torch"
            f" {image.torch}, which has code for {' '.join(image.archs)}: use an image with another torch"
            " (`torchkiln pick` finds it)"
        )
    if found.shm <= SMALL_SHM:
        yield f"/dev/shm has {size(found.shm)}, too small for DataLoader workers and NCCL: add --shm-size=8g"
    if found.closed:
        yield (
            f"uid {os.getuid()} cannot write to {', '.join(found.closed)}:"
            " chown the folder, or mount another one"
        )
