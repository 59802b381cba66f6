"""Image, Driver, Machine → the lines of `doctor`."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Literal

from workplace import health
from workplace.driver import Driver, too_old, unserved
from workplace.image import FACTS, Image
from workplace.machine import SMALL_SHM, Machine, size
from workplace.report import gpus
from workplace.settings import runtime_folder

State = Literal["ok", "warning", "problem"]
SITES = Path("/opt/venv/lib")
_PROGRAM = '#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n'
_TRY = 30.0  # seconds for the compiler


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One matter. `remedy` is empty where nothing is to be done."""

    about: str
    state: State
    found: str
    remedy: str = ""


def all_of(image: Image, driver: Driver, machine: Machine) -> tuple[Line, ...]:
    """Every matter, in the order in which people ask."""
    return (
        _image(image),
        _driver(image, driver),
        _gpus(image, driver),
        _shm(machine),
        _memory(machine),
        _nccl(driver, machine),
        _cudnn(image),
        _torch(image),
        _compiler(),
        _files(machine),
        _user(),
        *_services(),
        _time(),
    )


def _image(image: Image) -> Line:
    return Line(
        about="image",
        state="ok",
        found=f"{image.tag}: torch {image.torch}, built with CUDA {image.wheel_cuda}, Python {image.python}",
    )


def _driver(image: Image, driver: Driver) -> Line:
    if driver.fault:
        state: State = "problem" if driver.passed else "warning"
        return Line(about="driver", state=state, found=driver.fault, remedy=driver.remedy)
    told = f"{driver.version or 'of unknown version'}, serves CUDA {driver.cuda or 'unknown'}"
    if too_old(driver, image.min_driver):
        return Line(
            about="driver",
            state="problem",
            found=f"{told}; this build needs {image.min_driver} or newer",
            remedy="update the host's driver, or take an image for an older CUDA",
        )
    if too_old(driver, image.full_driver):
        return Line(
            about="driver",
            state="ok",
            found=f"{told}; in compatibility mode, as CUDA {image.wheel_cuda} came with {image.full_driver}",
        )
    return Line(about="driver", state="ok", found=f"{told}; {image.min_driver} or newer is needed")


def _gpus(image: Image, driver: Driver) -> Line:
    if not driver.gpus:
        return Line(about="GPUs", state="warning", found="none: torch runs on the CPU")
    if lost := unserved(driver, image):
        names = ", ".join(sorted({f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in lost}))
        return Line(
            about="GPUs",
            state="problem",
            found=f"{names}: torch holds code for {' '.join(image.archs)} only",
            remedy="take an image with another torch; `pick` of torchkiln finds it",
        )
    memory = " + ".join(size(gpu.memory) for gpu in driver.gpus)
    lowest = min(gpu.capability for gpu in driver.gpus)
    return Line(
        about="GPUs",
        state="ok",
        found=f"{gpus(driver)}; {memory}; compute capability {lowest[0]}.{lowest[1]} is served",
    )


def _shm(machine: Machine) -> Line:
    if machine.shm <= SMALL_SHM:
        return Line(
            about="/dev/shm",
            state="warning",
            found=f"{size(machine.shm)}: DataLoader workers and NCCL want more",
            remedy="docker run --shm-size=8g, or a pod's emptyDir of medium Memory at /dev/shm",
        )
    return Line(about="/dev/shm", state="ok", found=size(machine.shm))


def _memory(machine: Machine) -> Line:
    limit = "the container's limit" if machine.limited else "all that the host has"
    return Line(about="memory", state="ok", found=f"{size(machine.memory)}, {limit}; {machine.cores:g} cores")


def _nccl(driver: Driver, machine: Machine) -> Line:
    """The ways that NCCL could take: between GPUs, by shared memory, over the network."""
    ways = [f"{count} × {way}" for way, count in sorted(Counter(driver.ways).items())]
    ways += ["shared memory"] if machine.shm > SMALL_SHM else []
    if any(Path("/dev/infiniband").glob("uverbs*")):
        ways.append("InfiniBand")
    cards = sorted(path.name for path in Path("/sys/class/net").glob("*") if path.name != "lo")
    ways += [f"sockets over {', '.join(cards)}"] if cards else []
    if not ways:
        return Line(about="NCCL", state="warning", found="no way to another GPU", remedy="see /dev/shm above")
    return Line(about="NCCL", state="ok", found=f"could take {', '.join(ways)}")


def _cudnn(image: Image) -> Line:
    """Its library lies beside torch, in a wheel of its own or in torch's."""
    if any(True for _ in SITES.glob("python*/site-packages/**/libcudnn.so.*")):
        return Line(about="cuDNN", state="ok", found=image.cudnn)
    return Line(
        about="cuDNN",
        state="problem",
        found=f"{image.cudnn} belongs here, and no libcudnn.so is in /opt/venv",
        remedy="start from the image anew, or pip install -r /etc/torchkiln/constraints.txt",
    )


def _torch(image: Image) -> Line:
    """Whether torch and its libraries are still the image's own."""
    sites = [str(path) for path in SITES.glob("python*/site-packages")]
    wanted = {
        name: version
        for name, version in image.wheels
        if name.startswith(("torch", "triton", "nvidia-", "cuda-", "pytorch-triton"))
    }
    # By name: what a cut-off removal left, "~orch-2.7.1.dist-info", or one without metadata, is nobody's.
    found = {
        name: next((one.version for one in metadata.distributions(name=name, path=sites)), None)
        for name in wanted
    }
    other = [
        f"{name} {found[name] or 'absent'} for {version}"
        for name, version in wanted.items()
        if found[name] != version
    ]
    if other:
        return Line(
            about="torch",
            state="warning",
            found=f"not the image's own: {', '.join(other)}",
            remedy="pip install -r /etc/torchkiln/constraints.txt",
        )
    guarded = "held by PIP_CONSTRAINT" if os.environ.get("PIP_CONSTRAINT") else "the guard is off"
    return Line(
        about="torch", state="ok", found=f"{image.torch} and its libraries, the image's own; {guarded}"
    )


def _compiler() -> Line:
    """torch.compile and Triton ask for one that works."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program")
            argv = ["cc", "-x", "c", "-o", str(program), "-"]
            subprocess.run(argv, input=_PROGRAM, text=True, capture_output=True, timeout=_TRY, check=True)
            subprocess.run([str(program)], capture_output=True, timeout=_TRY, check=True)
            version = subprocess.run(["cc", "-dumpfullversion"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None)
        why = str(said).strip().rpartition("\n")[2] if said else str(error)
        return Line(
            about="compiler",
            state="problem",
            found=f"cc does not work: {why}",
            remedy="torch.compile and Triton need it; a /tmp mounted noexec is the usual reason",
        )
    return Line(about="compiler", state="ok", found=f"gcc {version.stdout.strip()}")


def _files(machine: Machine) -> Line:
    if machine.closed:
        return Line(
            about="files",
            state="warning",
            found=f"uid {os.getuid()} cannot write to {', '.join(machine.closed)}",
            remedy="let the folder belong to it (chown on the host), or run with --user $(id -u):$(id -g)",
        )
    return Line(about="files", state="ok", found=f"can write to {', '.join(machine.writable)}")


def _user() -> Line:
    uid = os.getuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return Line(
            about="user",
            state="warning",
            found=f"uid {uid} has no name, home is {os.environ.get('HOME', 'not set')}",
            remedy="start it by the entrypoint: /opt/torchkiln/entrypoint COMMAND",
        )
    return Line(
        about="user", state="ok", found=f"{name}, uid {uid}, home {os.environ.get('HOME', 'not set')}"
    )


def _services() -> Iterator[Line]:
    """Of the container that we run in: beside services, or alone."""
    try:
        found = list(health.states(runtime_folder()))
    except FileNotFoundError:
        yield Line(about="services", state="ok", found="not started: this container runs a command")
        return
    for name in ("jupyter", "sshd"):
        if name not in dict(found):
            yield Line(about=name, state="ok", found="off")
    for name, fault in found:
        state: State = "problem" if fault else "ok"
        remedy = "see the container's log" if fault else ""
        yield Line(about=name, state=state, found=fault or "answers", remedy=remedy)


def _time() -> Line:
    """A clock that is behind lets no TLS certificate be valid."""
    now, built = datetime.now(timezone.utc), FACTS.stat().st_mtime
    told = f"{now:%Y-%m-%d %H:%M:%S} UTC, zone {time.tzname[0]}"
    if now.timestamp() < built:
        return Line(
            about="time",
            state="problem",
            found=f"{told}: that is before this image was made",
            remedy="set the host's clock: downloads by TLS fail with it",
        )
    return Line(about="time", state="ok", found=told)
