"""Unpacked image, command → how it ended: containers without an engine, in namespaces of their own.

The image's root is never written: the command sees an overlay whose upper side is forgotten when it ends. The
network is the host's. This separates, it does not confine: run only what you would run without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.runtimes.command import Exited, Program
from torchkiln.runtimes.driver import Driver
from torchkiln.runtimes.machine_files import machine_files
from torchkiln.util.files import remove_tree

_ENTER = Path(__file__).with_name("enter.py")
_PATIENCE = 10.0  # seconds from the order to end until force


@dataclass(frozen=True, kw_only=True, slots=True)
class RootfsRuntime:
    """Runs commands in unpacked images; needs Linux and root, or user namespaces for everybody."""

    shm_size: int = 1 << 30  # bytes of /dev/shm: DataLoader workers and NCCL want room
    hostname: str = "torchkiln"
    scratch: Path | None = None  # where what the command writes goes; None: memory
    driver: Driver | None = None  # of GPUs, which commands then see

    def run(
        self,
        image_root: Path,
        program: Program,
        *,
        timeout_s: float | None = None,
        capture: bool = True,
        stdin: bytes | None = None,
    ) -> Exited:
        """Run *program* in *image_root*.

        With *capture* its output comes back and its input is *stdin*, else all three are the caller's own.
        After *timeout_s* seconds everything it started is killed.

        :raises ConfigError: a path or bind is not usable.
        :raises ToolMissing: this host does not let us make the namespaces.
        """
        _check(image_root, program)
        spec_read, spec_write = os.pipe()
        fault_read, fault_write = os.pipe()
        with using(image_root), self._scratch() as scratch, os.fdopen(fault_read, "rb") as faults:
            spec = {
                "root": str(image_root.absolute()),
                "argv": list(program.argv),
                "env": dict(program.env),
                "binds": [
                    (str(bind.source.absolute()), bind.target, bind.writable) for bind in program.binds
                ],
                **_served(self.driver),
                "workdir": program.workdir,
                "user": program.user,
                "hostname": self.hostname,
                "files": machine_files(self.hostname),
                "shm_size": self.shm_size,
                # A tmpfs goes over this folder, which is there on every host, in our own namespace only.
                "scratch": str(scratch or Path(tempfile.gettempdir()).absolute()),
                "scratch_is_ours": scratch is not None,
            }
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_ENTER), str(spec_read), str(fault_write)],
                stdin=subprocess.PIPE if capture else None,
                stdout=subprocess.PIPE if capture else None,
                stderr=subprocess.PIPE if capture else None,
                pass_fds=(spec_read, fault_write),
                start_new_session=capture,
            )
            try:
                os.close(spec_read)
                os.close(fault_write)
                with contextlib.suppress(BrokenPipeError), os.fdopen(spec_write, "wb") as sink:
                    sink.write(json.dumps(spec).encode())
                out, err, timed_out = _wait(process, stdin, timeout_s)
            finally:
                _end(process)
            trouble = faults.read().decode(errors="replace")
        if trouble:
            raise ToolMissing(
                f"the rootfs runtime cannot prepare the image: {trouble}",
                hint="run as root, or where users may make namespaces (sysctl user.max_user_namespaces)",
            )
        return Exited(code=process.returncode, stdout=out, stderr=err, timed_out=timed_out)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path | None]:
        if self.scratch is None:
            yield None
            return
        self.scratch.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.scratch.absolute()))
        try:
            yield folder
        finally:
            remove_tree(folder)


def _served(driver: Driver | None) -> dict[str, Any]:
    """For enter.py, by name and place on the host."""
    kinds = {
        "nodes": driver.nodes if driver else (),
        "libraries": driver.libraries if driver else (),
        "tools": driver.tools if driver else (),
    }
    return {kind: [(name, str(path)) for name, path in found] for kind, found in kinds.items()}


@contextlib.contextmanager
def using(image_root: Path) -> Iterator[None]:
    """Hold *image_root* while the command runs: `cache prune` leaves an unpacked image that is in use.

    The lock is the folder's own, for nothing may be written into it, and ends with us, as the command does.
    """
    descriptor = os.open(image_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks has no `prune` that asks for them
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _check(image_root: Path, program: Program) -> None:
    faults = [] if program.argv else ["no command was given"]
    if not image_root.is_dir():
        faults.append(f"{image_root}: no such folder, so no unpacked image")
    if not program.workdir.startswith("/"):
        faults.append(f"the working folder must be absolute: {program.workdir!r}")
    for bind in program.binds:
        if not bind.source.exists():
            faults.append(f"bind {bind.source}: no such file or folder")
        if not bind.target.startswith("/") or bind.target.rstrip("/") == "":
            faults.append(f"bind {bind.source}: the place inside must be absolute and not /: {bind.target!r}")
    if faults:
        raise ConfigError.of(faults)


def _wait(
    process: subprocess.Popen[bytes], stdin: bytes | None, timeout_s: float | None
) -> tuple[bytes, bytes, bool]:
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate()  # what it had said until then
        return out or b"", err or b"", True
    return out or b"", err or b"", False


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM makes enter.py kill process 1 of the namespace, and with that the kernel ends all the others."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
