"""Unpacked image, command → how it ended, by crun or runc: as rootfs.py, and confined as engines confine.

The command has Docker's capabilities and a device cgroup that lets it open the usual nodes and the GPUs', no
others. A process namespace stands around the runtime, so that whatever ends us ends the container, and an
overlay over the image, which is never written.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchkiln.errors import ToolMissing
from torchkiln.runtimes import enter
from torchkiln.runtimes.command import Bind, Exited, Program
from torchkiln.runtimes.driver import Driver
from torchkiln.runtimes.machine_files import machine_files
from torchkiln.runtimes.rootfs import using

PROGRAMS = ("crun", "runc")
_CGROUPS = "/sys/fs/cgroup"
_PATIENCE = 5.0  # seconds for the kernel
# In a mount and a process namespace of its own; $1 the scratch folder, $2 the image, $3 program, $4 name.
_SCRIPT = """\
set -e
cd "$1"
mkdir over lower root
mount --bind "$2" lower
mount -t tmpfs -o mode=755 tmpfs over
mkdir over/upper over/work
mount -t overlay overlay -o lowerdir=lower,upperdir=over/upper,workdir=over/work root
exec "$3" --root "$1/state" --log "$1/log" --log-format json run --bundle "$1" "$4"
"""
# Docker's own (github.com/moby/moby, oci/caps/defaults.go).
_CAPABILITIES = (
    "CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD CAP_NET_BIND_SERVICE"
    " CAP_NET_RAW CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT"
)
# The image's loader is told of the driver, then comes the command.
_TELL_LOADER = f'{enter.LDCONFIG} {enter.DRIVER} && exec "$@"'


@dataclass(frozen=True, kw_only=True, slots=True)
class OciRuntime:
    """Runs commands in unpacked images by *program*, as root."""

    program: str  # of PROGRAMS
    shm_size: int = 1 << 30  # bytes
    hostname: str = "torchkiln"
    driver: Driver | None = None  # of GPUs, which commands then see

    def run(
        self, image_root: Path, program: Program, *, timeout_s: float | None = None, capture: bool = True
    ) -> Exited:
        """Run *program* in *image_root* and keep what it says; killed after *timeout_s* seconds.

        :raises ToolMissing: the runtime's program is not there, cannot do it, or we are not root.
        """
        if not capture:
            raise ToolMissing(f"{self.program} is used for checks alone", hint="take --runtime rootfs")
        place = shutil.which(self.program)
        if place is None or os.geteuid() != 0:
            why = "is not installed" if place is None else "is used as root alone"
            raise ToolMissing(f"{self.program} {why}", hint="take --runtime rootfs, which needs neither")
        name = f"torchkiln-{secrets.token_hex(6)}"
        with using(image_root), tempfile.TemporaryDirectory(prefix=f"{name}-") as scratch:
            if self.driver and self.driver.libraries:
                program = _with_loader(image_root, program)
            config = self._config(name, program, [*self._files(Path(scratch)), *program.binds])
            Path(scratch, "config.json").write_text(json.dumps(config))
            command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            command += ["--propagation", "private", "sh", "-c", _SCRIPT, "sh"]
            command += [scratch, str(image_root.absolute()), place, name]
            try:
                ended = _ended(command, timeout_s)
            finally:
                _remove_cgroups(name)
            if not ended.timed_out and (trouble := _trouble(Path(scratch, "log"))):
                raise ToolMissing(
                    f"{self.program} does not run the image: {trouble}", hint="take --runtime rootfs"
                )
        return ended

    def _files(self, scratch: Path) -> list[Bind]:
        """What belongs to a machine, and the driver's files, for the places where they are looked for."""
        texts = machine_files(self.hostname)
        if self.driver and self.driver.libraries:
            texts[enter.LOADERS] = f"{enter.DRIVER}\n"
        found = []
        for target, text in texts.items():
            source = scratch / Path(target).name
            source.write_text(text)
            found.append(Bind(source=source, target=target))
        if self.driver:
            found += [
                Bind(source=path, target=f"{enter.DRIVER}/{name}") for name, path in self.driver.libraries
            ]
            found += [Bind(source=path, target=f"/usr/bin/{name}") for name, path in self.driver.tools]
        return found

    def _config(self, name: str, program: Program, binds: Sequence[Bind]) -> dict[str, Any]:
        """config.json of the OCI runtime specification, version 1.0."""
        nodes = [_node(name, path) for name, path in (self.driver.nodes if self.driver else ())]
        allowed = [
            {"allow": True, "type": "c", "major": node["major"], "minor": node["minor"], "access": "rwm"}
            for node in nodes
        ]
        kinds = ("bounding", "effective", "permitted")
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": dict(zip(("uid", "gid"), program.user, strict=True)),
                "args": list(program.argv),
                "env": [f"{key}={value}" for key, value in program.env.items()],
                "cwd": program.workdir,
                "capabilities": dict.fromkeys(kinds, _CAPABILITIES.split()),
            },
            "root": {"path": "root"},
            "hostname": self.hostname,
            "mounts": [*_mounts(self.shm_size), *map(_bound, binds)],
            "linux": {
                "cgroupsPath": f"/{name}",
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                "devices": nodes,
                "resources": {"devices": [{"allow": False, "access": "rwm"}, *allowed]},
            },
        }


def _with_loader(image_root: Path, program: Program) -> Program:
    """The image's loader is told first; one without a cache is told by the environment."""
    if any(os.path.lexists(image_root / place / "ldconfig") for place in ("sbin", "usr/sbin")):
        return replace(program, argv=("/bin/sh", "-c", _TELL_LOADER, "sh", *program.argv))
    told = ":".join(filter(None, (enter.DRIVER, program.env.get("LD_LIBRARY_PATH"))))
    return replace(program, env={**program.env, "LD_LIBRARY_PATH": told})


def _mounts(shm_size: int) -> list[dict[str, Any]]:
    tight = ["nosuid", "noexec", "nodev"]
    shm = [*tight, "mode=1777", f"size={shm_size}"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": tight},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": shm},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*tight, "ro"]},
    ]


def _bound(bind: Bind) -> dict[str, Any]:
    options = ["rbind", "rw" if bind.writable else "ro"]
    return {
        "destination": bind.target,
        "type": "bind",
        "source": str(bind.source.resolve()),
        "options": options,
    }


def _node(name: str, path: Path) -> dict[str, Any]:
    number = path.stat().st_rdev
    return {
        "path": f"/dev/{name}",
        "type": "c",
        "major": os.major(number),
        "minor": os.minor(number),
        "fileMode": 0o666,
    }


def _ended(command: Sequence[str], timeout_s: float | None) -> Exited:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()  # and with it the kernel ends all that is in the process namespace
        out, err = process.communicate()
        return Exited(code=128 + signal.SIGKILL, stdout=out, stderr=err, timed_out=True)
    finally:
        process.kill()
        process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Exited(code=code, stdout=out, stderr=err, timed_out=False)


def _remove_cgroups(name: str) -> None:
    """Those that the container had; the kernel frees them a moment after the last process is gone."""
    ends = time.monotonic() + _PATIENCE
    while found := glob.glob(f"{_CGROUPS}/{name}") + glob.glob(f"{_CGROUPS}/*/{name}"):
        for folder in found:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > ends:
            return
        time.sleep(0.02)


def _trouble(log: Path) -> str:
    """What the runtime itself could not do, in its words."""
    with contextlib.suppress(OSError):
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if told.get("level") in ("error", "fatal"):
                    return str(told.get("msg"))
    return ""
