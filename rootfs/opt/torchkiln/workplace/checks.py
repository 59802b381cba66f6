"""The checks of `doctor`: each returns one line."""

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
_TIMEOUT = 30.0  # seconds, for the compiler


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """The result of a check. `remedy` is empty if nothing needs to be done."""

    about: str
    state: State
    found: str
    remedy: str = ""


def run_all(image: Image, driver: Driver, machine: Machine) -> tuple[Line, ...]:
    """Run every check; the lines in the order in which they are printed."""
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
    version = f"{driver.version or 'unknown version'}, supports CUDA up to {driver.cuda or 'unknown'}"
    if too_old(driver, image.min_driver):
        return Line(
            about="driver",
            state="problem",
            found=f"{version}; this image needs driver {image.min_driver} or newer",
            remedy="update the host's driver, or use an image for an older CUDA",
        )
    if too_old(driver, image.full_driver):
        return Line(
            about="driver",
            state="ok",
            found=f"{version}; compatibility mode: CUDA {image.wheel_cuda} shipped with {image.full_driver}",
        )
    return Line(about="driver", state="ok", found=f"{version}; this image needs {image.min_driver} or newer")


def _gpus(image: Image, driver: Driver) -> Line:
    if not driver.gpus:
        return Line(about="GPUs", state="warning", found="none: torch runs on the CPU")
    if unsupported := unserved(driver, image):
        names = ", ".join(
            sorted({f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in unsupported})
        )
        return Line(
            about="GPUs",
            state="problem",
            found=f"{names}: not supported by this torch, which has code for {' '.join(image.archs)}",
            remedy="use an image with another torch; `torchkiln pick` finds it",
        )
    memory = " + ".join(size(gpu.memory) for gpu in driver.gpus)
    lowest = min(gpu.capability for gpu in driver.gpus)
    return Line(
        about="GPUs",
        state="ok",
        found=f"{gpus(driver)}; {memory}; compute capability {lowest[0]}.{lowest[1]} is supported",
    )


def _shm(machine: Machine) -> Line:
    if machine.shm <= SMALL_SHM:
        return Line(
            about="/dev/shm",
            state="warning",
            found=f"{size(machine.shm)}: too small for DataLoader workers and NCCL",
            remedy="docker run --shm-size=8g, or a pod's emptyDir of medium Memory at /dev/shm",
        )
    return Line(about="/dev/shm", state="ok", found=size(machine.shm))


def _memory(machine: Machine) -> Line:
    limit = "limit of the container" if machine.limited else "all memory of the host"
    return Line(about="memory", state="ok", found=f"{size(machine.memory)}, {limit}; {machine.cores:g} cores")


def _nccl(driver: Driver, machine: Machine) -> Line:
    """The transports that NCCL can use: between GPUs, shared memory, network."""
    transports = [f"{count} × {link}" for link, count in sorted(Counter(driver.links).items())]
    transports += ["shared memory"] if machine.shm > SMALL_SHM else []
    if any(Path("/dev/infiniband").glob("uverbs*")):
        transports.append("InfiniBand")
    cards = sorted(path.name for path in Path("/sys/class/net").glob("*") if path.name != "lo")
    transports += [f"sockets over {', '.join(cards)}"] if cards else []
    if not transports:
        return Line(
            about="NCCL", state="warning", found="no transport available", remedy="see /dev/shm above"
        )
    return Line(about="NCCL", state="ok", found=f"transports: {', '.join(transports)}")


def _cudnn(image: Image) -> Line:
    """The library is in a wheel of its own or in torch's wheel."""
    if any(True for _ in SITES.glob("python*/site-packages/**/libcudnn.so.*")):
        return Line(about="cuDNN", state="ok", found=image.cudnn)
    return Line(
        about="cuDNN",
        state="problem",
        found=f"version {image.cudnn} expected, but there is no libcudnn.so in /opt/venv",
        remedy="pip install -r /etc/torchkiln/constraints.txt, or start a new container",
    )


def _torch(image: Image) -> Line:
    """Whether torch and its libraries still have the image's versions."""
    sites = [str(path) for path in SITES.glob("python*/site-packages")]
    expected = {
        name: version
        for name, version in image.wheels
        if name.startswith(("torch", "triton", "nvidia-", "cuda-", "pytorch-triton"))
    }
    # By name: an interrupted removal leaves "~orch-2.7.1.dist-info", which belongs to no package.
    installed = {
        name: next((found.version for found in metadata.distributions(name=name, path=sites)), None)
        for name in expected
    }
    changed = [
        f"{name} {installed[name] or 'missing'} instead of {version}"
        for name, version in expected.items()
        if installed[name] != version
    ]
    if changed:
        return Line(
            about="torch",
            state="warning",
            found=f"changed since the image was built: {', '.join(changed)}",
            remedy="pip install -r /etc/torchkiln/constraints.txt",
        )
    guarded = "kept by PIP_CONSTRAINT" if os.environ.get("PIP_CONSTRAINT") else "PIP_CONSTRAINT is not set"
    return Line(about="torch", state="ok", found=f"{image.torch} and its libraries as built; {guarded}")


def _compiler() -> Line:
    """torch.compile and Triton need a C compiler that works."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program")
            argv = ["cc", "-x", "c", "-o", str(program), "-"]
            subprocess.run(argv, input=_PROGRAM, text=True, capture_output=True, timeout=_TIMEOUT, check=True)
            subprocess.run([str(program)], capture_output=True, timeout=_TIMEOUT, check=True)
            version = subprocess.run(["cc", "-dumpfullversion"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None)
        why = str(output).strip().rpartition("\n")[2] if output else str(error)
        return Line(
            about="compiler",
            state="problem",
            found=f"cc does not work: {why}",
            remedy="torch.compile and Triton need it; the usual reason is a /tmp mounted noexec",
        )
    return Line(about="compiler", state="ok", found=f"gcc {version.stdout.strip()}")


def _files(machine: Machine) -> Line:
    if machine.closed:
        return Line(
            about="files",
            state="warning",
            found=f"uid {os.getuid()} cannot write to {', '.join(machine.closed)}",
            remedy="chown the folder on the host, or run with --user $(id -u):$(id -g)",
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
            remedy="run the command through the entrypoint: /opt/torchkiln/entrypoint COMMAND",
        )
    return Line(
        about="user", state="ok", found=f"{name}, uid {uid}, home {os.environ.get('HOME', 'not set')}"
    )


def _services() -> Iterator[Line]:
    """The services of this container, if it runs any."""
    try:
        found = list(health.states(runtime_folder()))
    except FileNotFoundError:
        yield Line(about="services", state="ok", found="none: this container runs a command")
        return
    for name in ("jupyter", "sshd"):
        if name not in dict(found):
            yield Line(about=name, state="ok", found="off")
    for name, fault in found:
        state: State = "problem" if fault else "ok"
        remedy = "see the container's log" if fault else ""
        yield Line(about=name, state=state, found=fault or "running", remedy=remedy)


def _time() -> Line:
    """With a clock that is behind, TLS certificates are not yet valid."""
    now, built = datetime.now(timezone.utc), FACTS.stat().st_mtime
    text = f"{now:%Y-%m-%d %H:%M:%S} UTC, zone {time.tzname[0]}"
    if now.timestamp() < built:
        return Line(
            about="time",
            state="problem",
            found=f"{text}: earlier than the build of this image",
            remedy="set the host's clock: TLS connections fail (certificate is not yet valid)",
        )
    return Line(about="time", state="ok", found=text)
