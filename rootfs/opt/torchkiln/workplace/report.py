"""Driver, Machine, Image → what a container says at its start: what it found, and warnings to act on."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator

from workplace.driver import Driver, ask, too_old, unserved
from workplace.image import Image
from workplace.machine import SMALL_SHM, Machine, look, size


def say(*lines: str) -> None:
    """To stderr, in one piece: services write there too."""
    sys.stderr.write("".join(f"torchkiln: {line}\n" for line in lines))
    sys.stderr.flush()


def machine(image: Image) -> None:
    """Say what this machine is for the image."""
    driver, found = ask(), look()
    say(*facts(driver, found), *(f"warning: {line}" for line in warnings(image, driver, found)))


def facts(driver: Driver, found: Machine) -> Iterator[str]:
    """What is there, two lines."""
    yield f"GPUs: {gpus(driver)}"
    cores = f"{found.cores:g} core{'' if found.cores == 1 else 's'}"
    yield (
        f"{cores}, {size(found.memory)} of memory{' (limited)' if found.limited else ''},"
        f" /dev/shm {size(found.shm)}; uid {os.getuid()} writes to {', '.join(found.writable) or 'nothing'}"
    )


def gpus(driver: Driver) -> str:
    """`2 × NVIDIA H200, driver 580.159.04 (CUDA 13.0)`."""
    kinds = Counter(gpu.name for gpu in driver.gpus)
    told = ", ".join(f"{count} × {name}" if count > 1 else name for name, count in kinds.items()) or "none"
    version = f", driver {driver.version or 'unknown'} (CUDA {driver.cuda})" if driver.cuda else ""
    return told + version


def warnings(image: Image, driver: Driver, found: Machine) -> Iterator[str]:
    """Each with what to do about it."""
    if driver.fault:
        yield f"{driver.fault}: {driver.remedy}"
    if too_old(driver, image.min_driver):
        yield (
            f"driver {driver.version} is older than {image.min_driver}, which this build (CUDA"
            f" {image.wheel_cuda}) needs: update the host's driver, or take an image for an older CUDA"
        )
    for name, capability in sorted({(gpu.name, gpu.capability) for gpu in unserved(driver, image)}):
        yield (
            f"{name} has compute capability {capability[0]}.{capability[1]}, and torch {image.torch} holds"
            f" code for {' '.join(image.archs)} only: take an image with another torch (torchkiln's `pick`)"
        )
    if found.shm <= SMALL_SHM:
        yield f"/dev/shm has {size(found.shm)}, and DataLoader workers and NCCL want more: add --shm-size=8g"
    if found.closed:
        yield (
            f"uid {os.getuid()} cannot write to {', '.join(found.closed)}:"
            " let the folder belong to it, or mount one that does"
        )
