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
from workplace.driver import Driver, another_image, kinds, too_old, unserved
from workplace.image import FACTS, Image
from workplace.machine import SMALL_SHM, Machine, size
from workplace.messages import listed, message
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
    found = message(
        "image", tag=image.tag, torch=image.torch, wheel_cuda=image.wheel_cuda, python=image.python
    )
    if image.gpus:
        found = message("image.gpus", image=found, gpus=listed(list(image.gpus)))
    return Line(about="image", state="ok", found=found)


def _driver(image: Image, driver: Driver) -> Line:
    if driver.fault:
        state: State = "problem" if driver.passed else "warning"
        return Line(about="driver", state=state, found=driver.fault, remedy=driver.remedy)
    version = driver.version or message("driver.unknown")
    supports = message("driver.supports", version=version, cuda=driver.cuda or message("unknown"))
    if too_old(driver, image.min_driver):
        return Line(
            about="driver",
            state="problem",
            found=message("driver.too-old", driver=supports, needed=image.min_driver),
            remedy=message("driver.update"),
        )
    if too_old(driver, image.full_driver):
        found = message(
            "driver.compatibility", driver=supports, wheel_cuda=image.wheel_cuda, full=image.full_driver
        )
    else:
        found = message("driver.needs", driver=supports, needed=image.min_driver)
    return Line(about="driver", state="ok", found=found)


def _gpus(image: Image, driver: Driver) -> Line:
    if not driver.gpus:
        return Line(about="GPUs", state="warning", found=message("gpus.none"))
    if unsupported := unserved(driver, image):
        names = kinds(unsupported)
        if image.gpus:
            found = message("gpus.cut", names=names, gpus=listed(list(image.gpus)))
        else:
            found = message("gpus.unserved", names=names, archs=" ".join(image.archs))
        return Line(about="GPUs", state="problem", found=found, remedy=another_image(image, unsupported))
    memory = " + ".join(size(gpu.memory) for gpu in driver.gpus)
    lowest = "{}.{}".format(*min(gpu.capability for gpu in driver.gpus))
    found = message("gpus.served", gpus=gpus(driver), memory=memory, lowest=lowest)
    return Line(about="GPUs", state="ok", found=found)


def _shm(machine: Machine) -> Line:
    if machine.shm <= SMALL_SHM:
        found = message("shm.small", size=size(machine.shm))
        return Line(about="/dev/shm", state="warning", found=found, remedy=message("shm.do"))
    return Line(about="/dev/shm", state="ok", found=size(machine.shm))


def _memory(machine: Machine) -> Line:
    key = "memory.limit" if machine.limited else "memory.host"
    return Line(
        about="memory", state="ok", found=message(key, size=size(machine.memory), cores=machine.cores)
    )


def _nccl(driver: Driver, machine: Machine) -> Line:
    """The transports that NCCL can use: between GPUs, shared memory, network."""
    transports = [f"{count} × {link}" for link, count in sorted(Counter(driver.links).items())]
    transports += [message("nccl.shared-memory")] if machine.shm > SMALL_SHM else []
    if any(Path("/dev/infiniband").glob("uverbs*")):
        transports.append("InfiniBand")
    cards = sorted(path.name for path in Path("/sys/class/net").glob("*") if path.name != "lo")
    transports += [message("nccl.sockets", cards=listed(cards))] if cards else []
    if not transports:
        return Line(about="NCCL", state="warning", found=message("nccl.none"), remedy=message("nccl.do"))
    return Line(about="NCCL", state="ok", found=message("nccl", transports=listed(transports)))


def _cudnn(image: Image) -> Line:
    """The library is in a wheel of its own or in torch's wheel."""
    if any(True for _ in SITES.glob("python*/site-packages/**/libcudnn.so.*")):
        return Line(about="cuDNN", state="ok", found=image.cudnn)
    found = message("cudnn.missing", version=image.cudnn)
    return Line(about="cuDNN", state="problem", found=found, remedy=message("cudnn.do"))


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
        message(
            "torch.changed", name=name, found=installed[name] or message("torch.missing"), version=version
        )
        for name, version in expected.items()
        if installed[name] != version
    ]
    if changed:
        return Line(
            about="torch",
            state="warning",
            found=message("torch.differs", changes=listed(changed)),
            remedy=message("torch.do"),
        )
    key = "torch.guarded" if os.environ.get("PIP_CONSTRAINT") else "torch.unguarded"
    return Line(about="torch", state="ok", found=message(key, version=image.torch))


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
            found=message("compiler.broken", why=why),
            remedy=message("compiler.do"),
        )
    return Line(about="compiler", state="ok", found=f"gcc {version.stdout.strip()}")


def _files(machine: Machine) -> Line:
    if machine.closed:
        return Line(
            about="files",
            state="warning",
            found=message("files.closed", uid=os.getuid(), folders=listed(list(machine.closed))),
            remedy=message("files.do"),
        )
    return Line(about="files", state="ok", found=message("files", folders=listed(list(machine.writable))))


def _user() -> Line:
    uid, home = os.getuid(), os.environ.get("HOME", message("user.no-home"))
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return Line(
            about="user",
            state="warning",
            found=message("user.unknown", uid=uid, home=home),
            remedy=message("user.do"),
        )
    return Line(about="user", state="ok", found=message("user", name=name, uid=uid, home=home))


def _services() -> Iterator[Line]:
    """The services of this container, if it runs any."""
    try:
        found = list(health.states(runtime_folder()))
    except FileNotFoundError:
        yield Line(about="services", state="ok", found=message("services.none"))
        return
    for name in ("jupyter", "sshd"):
        if name not in dict(found):
            yield Line(about=name, state="ok", found=message("services.off"))
    for name, fault in found:
        state: State = "problem" if fault else "ok"
        remedy = message("services.do") if fault else ""
        yield Line(about=name, state=state, found=fault or message("services.running"), remedy=remedy)


def _time() -> Line:
    """With a clock that is behind, TLS certificates are not yet valid."""
    now, built = datetime.now(timezone.utc), FACTS.stat().st_mtime
    text = message("time", now=f"{now:%Y-%m-%d %H:%M:%S}", zone=time.tzname[0])
    if now.timestamp() < built:
        return Line(
            about="time",
            state="problem",
            found=message("time.behind", time=text),
            remedy=message("time.do"),
        )
    return Line(about="time", state="ok", found=text)
