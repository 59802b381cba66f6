"""Runs a command in an unpacked image with crun or runc, confined as in a Docker engine.

The command has Docker's capabilities, and a device cgroup that allows the standard devices and the GPUs. The
runtime runs in a PID namespace, so that the container ends when this process ends. The image is the lower
layer of an overlay, so nothing writes to it.
"""

from __future__ import annotations

import contextlib
import glob
import io
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
from torchkiln.runtimes.capture import LineSink, OnLine, Tail, receive
from torchkiln.runtimes.command import Bind, Exited, Program
from torchkiln.runtimes.driver import HostDriver
from torchkiln.runtimes.machine_files import machine_files
from torchkiln.runtimes.rootfs import using

PROGRAMS = ("crun", "runc")
_CGROUPS = "/sys/fs/cgroup"
_CGROUP_TIMEOUT_S = 5.0
# Runs in a new mount and PID namespace. $1: scratch folder, $2: image, $3: runtime, $4: container name.
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
# Docker's default capabilities (github.com/moby/moby, oci/caps/defaults.go).
_CAPABILITIES = (
    "CAP_AUDIT_WRITE CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_MKNOD CAP_NET_BIND_SERVICE"
    " CAP_NET_RAW CAP_SETFCAP CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYS_CHROOT"
)
# Adds the driver to the loader's cache of the image, then starts the command.
_RUN_LDCONFIG = f'{enter.LDCONFIG} {enter.DRIVER} && exec "$@"'


@dataclass(frozen=True, kw_only=True, slots=True)
class OciRuntime:
    """Runs commands in unpacked images with *program*; needs root."""

    program: str  # of PROGRAMS
    shm_size: int = 1 << 30  # bytes
    hostname: str = "torchkiln"
    driver: HostDriver | None = None  # mounted into the container, with its GPUs

    def run(
        self,
        image_root: Path,
        program: Program,
        *,
        timeout_s: float | None = None,
        capture: bool = True,
        on_line: OnLine | None = None,
    ) -> Exited:
        """Run *program* in *image_root* and capture its output; it is killed after *timeout_s* seconds.

        With *on_line* each line of stdout is passed to it instead of being returned.

        :raises ToolMissing: the runtime is not installed or fails, or this process is not root.
        """
        if not capture:
            raise ToolMissing(f"{self.program} can only run checks", hint="use --runtime rootfs")
        executable = shutil.which(self.program)
        if executable is None or os.geteuid() != 0:
            reason = "is not installed" if executable is None else "requires root"
            raise ToolMissing(f"{self.program} {reason}", hint="use --runtime rootfs")
        name = f"torchkiln-{secrets.token_hex(6)}"
        with using(image_root), tempfile.TemporaryDirectory(prefix=f"{name}-") as scratch:
            if self.driver and self.driver.libraries:
                program = _with_loader(image_root, program)
            config = self._config(name, program, [*self._files(Path(scratch)), *program.binds])
            Path(scratch, "config.json").write_text(json.dumps(config))
            command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            command += ["--propagation", "private", "sh", "-c", _SCRIPT, "sh"]
            command += [scratch, str(image_root.absolute()), executable, name]
            try:
                result = _run(command, timeout_s, on_line)
            finally:
                _remove_cgroups(name)
            if not result.timed_out and (error := _error_in(Path(scratch, "log"))):
                raise ToolMissing(
                    f"{self.program} cannot run the image: {error}", hint="use --runtime rootfs"
                )
        return result

    def _files(self, scratch: Path) -> list[Bind]:
        """The mounts of /etc/hosts, /etc/hostname and /etc/resolv.conf, and of the driver."""
        texts = machine_files(self.hostname)
        if self.driver and self.driver.libraries:
            texts[enter.LOADERS] = f"{enter.DRIVER}\n"
        binds = []
        for target, text in texts.items():
            source = scratch / Path(target).name
            source.write_text(text)
            binds.append(Bind(source=source, target=target))
        if self.driver:
            binds += [
                Bind(source=path, target=f"{enter.DRIVER}/{name}") for name, path in self.driver.libraries
            ]
            binds += [Bind(source=path, target=f"/usr/bin/{name}") for name, path in self.driver.tools]
        return binds

    def _config(self, name: str, program: Program, binds: Sequence[Bind]) -> dict[str, Any]:
        """config.json in the format of the OCI runtime specification, version 1.0."""
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
            "mounts": [*_mounts(self.shm_size), *map(_bind_mount, binds)],
            "linux": {
                "cgroupsPath": f"/{name}",
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
                "devices": nodes,
                "resources": {"devices": [{"allow": False, "access": "rwm"}, *allowed]},
            },
        }


def _with_loader(image_root: Path, program: Program) -> Program:
    """*program*, after ldconfig; with LD_LIBRARY_PATH instead in an image without ldconfig."""
    if any(os.path.lexists(image_root / place / "ldconfig") for place in ("sbin", "usr/sbin")):
        return replace(program, argv=("/bin/sh", "-c", _RUN_LDCONFIG, "sh", *program.argv))
    folders = ":".join(filter(None, (enter.DRIVER, program.env.get("LD_LIBRARY_PATH"))))
    return replace(program, env={**program.env, "LD_LIBRARY_PATH": folders})


def _mounts(shm_size: int) -> list[dict[str, Any]]:
    restricted = ["nosuid", "noexec", "nodev"]
    shm = [*restricted, "mode=1777", f"size={shm_size}"]
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": restricted},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        },
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": shm},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*restricted, "ro"]},
    ]


def _bind_mount(bind: Bind) -> dict[str, Any]:
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


def _run(command: Sequence[str], timeout_s: float | None, on_line: OnLine | None) -> Exited:
    out, err = io.BytesIO(), Tail() if on_line else io.BytesIO()
    lines = LineSink(on_line) if on_line else None
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        # When `unshare` is killed, the kernel kills every process of the PID namespace.
        timed_out = receive(
            process, lines or out, err, timeout_s=timeout_s, kill=lambda process: process.kill()
        )
        if lines:
            lines.close()
    finally:
        process.kill()
        process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    code = 128 + signal.SIGKILL if timed_out else code
    return Exited(code=code, stdout=out.getvalue(), stderr=err.getvalue(), timed_out=timed_out)


def _remove_cgroups(name: str) -> None:
    """Remove the container's cgroups, which stay busy for a moment after the last process has ended."""
    deadline = time.monotonic() + _CGROUP_TIMEOUT_S
    while found := glob.glob(f"{_CGROUPS}/{name}") + glob.glob(f"{_CGROUPS}/*/{name}"):
        for folder in found:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _error_in(log: Path) -> str:
    """The first error in the runtime's log; empty if there is none."""
    with contextlib.suppress(OSError):
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if entry.get("level") in ("error", "fatal"):
                    return str(entry.get("msg"))
    return ""
