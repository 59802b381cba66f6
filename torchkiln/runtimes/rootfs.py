"""Runs a command in an unpacked image without an engine, in Linux namespaces.

The command writes to an overlay that is discarded when it ends, never to the image. Unless it is confined, it
uses the host's network, and this is not a security boundary: run only programs that you would run directly on
the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.runtimes.capture import LineSink, OnLine, Tail, receive
from torchkiln.runtimes.command import Exited, Program
from torchkiln.runtimes.driver import HostDriver
from torchkiln.runtimes.mounted import MountedLayers
from torchkiln.runtimes.sandbox import BUILDING, filter_program, text_of

_ENTER = Path(__file__).with_name("enter.py")
_TERMINATE_TIMEOUT_S = 10.0
_NOBODY = (65534, 65534)
_OF_DRIVER = ("nodes", "libraries", "tools")


@dataclass(frozen=True, kw_only=True, slots=True)
class RootfsRuntime:
    """Runs commands in unpacked images; needs Linux and root, or unprivileged user namespaces."""

    shm_size: int = 1 << 30  # bytes of /dev/shm, which DataLoader workers and NCCL use
    hostname: str = "torchkiln"
    driver: HostDriver | None = None  # mounted into the container, with its GPUs
    # Limits of each process, by the names of RLIMIT_…. With them, the command is not trusted: it is confined,
    # as enter.py describes, and what it writes is in memory, at most `shm_size` bytes.
    confined: Mapping[str, int] | None = None
    join: Callable[[int], None] | None = None  # called with the id of the process before it starts others

    def run(
        self,
        image_root: Path | MountedLayers,
        program: Program,
        *,
        timeout_s: float | None = None,
        capture: bool = True,
        stdin: bytes = b"",
        on_line: OnLine | None = None,
    ) -> Exited:
        """Run *program* in *image_root*.

        With *capture* its output is returned and its input is *stdin*; otherwise it inherits the streams of
        this process. With *on_line* each line of stdout is passed to that function instead of being returned.
        After *timeout_s* seconds the program and all processes that it started are killed.

        :raises ConfigError: a path or bind is invalid.
        :raises ToolMissing: this host does not allow the namespaces.
        """
        out, err = io.BytesIO(), Tail() if on_line else io.BytesIO()
        lines = LineSink(on_line) if on_line else None
        with self.started(image_root, program, capture=capture, stdin=stdin) as process:
            timed_out = receive(process, lines or out, err, timeout_s=timeout_s, kill=terminate)
            if lines:
                lines.close()
        return Exited(
            code=process.returncode, stdout=out.getvalue(), stderr=err.getvalue(), timed_out=timed_out
        )

    @contextlib.contextmanager
    def started(
        self, image_root: Path | MountedLayers, program: Program, *, capture: bool = True, stdin: bytes = b""
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The process of *program*, as in `run`; at the end it is killed, with all that it started.

        :raises ConfigError: as `run`.
        :raises ToolMissing: as `run`.
        """
        _check(image_root, program)
        spec_read, spec_write = os.pipe()
        fault_read, fault_write = os.pipe()
        confined = None
        if self.confined is not None:
            confined = {"limits": text_of(self.confined), "filter": filter_program(BUILDING).hex()}
        # An empty file takes memory, too: about 2 KiB.
        limit = f"size={self.shm_size},nr_inodes={self.shm_size >> 14}" if confined else "size=50%"
        with using(image_root) as mounts, os.fdopen(fault_read, "rb") as faults, _input(stdin) as source:
            spec = {
                "root": str(image_root.absolute()) if isinstance(image_root, Path) else None,
                "mounts": mounts,
                "argv": list(program.argv),
                "env": dict(program.env),
                "binds": [(str(one.source.absolute()), one.target, one.writable) for one in program.binds],
                **{
                    kind: [(name, str(path)) for name, path in getattr(self.driver, kind, ())]
                    for kind in _OF_DRIVER
                },
                "workdir": program.workdir,
                "user": _NOBODY if confined else program.user,
                "hostname": self.hostname,
                "files": {} if confined else _machine_files(self.hostname),
                "shm": f"size={self.shm_size}" if confined is None else "size=1m,nr_inodes=256",
                # A tmpfs for what the command writes is mounted here, in the mount namespace only.
                "scratch": str(Path(tempfile.gettempdir()).absolute()),
                "tmpfs": f"mode=755,{limit}",
                "confined": confined,
            }
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_ENTER), str(spec_read), str(fault_write)],
                stdin=source if capture else None,
                stdout=subprocess.PIPE if capture else None,
                stderr=subprocess.PIPE if capture else None,
                pass_fds=(spec_read, fault_write, *mounts),
                start_new_session=capture,
            )
            try:
                os.close(spec_read)
                os.close(fault_write)
                if self.join:
                    self.join(process.pid)
                with contextlib.suppress(BrokenPipeError), os.fdopen(spec_write, "wb") as sink:
                    sink.write(json.dumps(spec).encode())
                yield process
            finally:
                terminate(process)
            fault = faults.read().decode(errors="replace")
        if fault:
            raise ToolMissing(
                f"the rootfs runtime cannot start a container: {fault}",
                hint="run as root, or allow user namespaces (sysctl user.max_user_namespaces)",
            )


def demand_namespaces(runtime: str, folder: Path) -> None:
    """Start a container in *folder* without a program, before a whole image is unpacked for *runtime*.

    :raises ToolMissing: *runtime* is "rootfs", and this host does not allow the namespaces.
    """
    if runtime == "rootfs":
        RootfsRuntime().run(folder, Program(argv=("no program",), env={}))


def _machine_files(hostname: str) -> dict[str, str]:
    """The content of /etc/hosts, /etc/hostname and /etc/resolv.conf, by path."""
    # Without the IPv4-mapped address, c10d's reverse lookup takes 15 s if there is no name server.
    addresses = (("127.0.0.1", "localhost"), ("::1", "localhost"), ("127.0.1.1", hostname))
    hosts = "".join(f"{ip}\t{name}\n" for ip, name in (*addresses, ("::ffff:127.0.0.1", "localhost")))
    resolver = Path("/etc/resolv.conf")
    names = resolver.read_text() if os.access(resolver, os.R_OK) else ""
    return {"/etc/hosts": hosts, "/etc/hostname": f"{hostname}\n", str(resolver): names}


@contextlib.contextmanager
def using(image_root: Path | MountedLayers) -> Iterator[tuple[int, ...]]:
    """Lock *image_root* while the command runs, so that `cache prune` does not remove it; yields its mounts.

    The lock is on the folder itself, because nothing may be written into it; it ends with this process. A
    mount needs none: it keeps the content of a file that is deleted.
    """
    if not isinstance(image_root, Path):
        with image_root.mounts() as mounts:
            yield mounts
        return
    descriptor = os.open(image_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield ()
    finally:
        os.close(descriptor)


def _check(image_root: Path | MountedLayers, program: Program) -> None:
    faults = [] if program.argv else ["no command specified"]
    if isinstance(image_root, Path) and not image_root.is_dir():
        faults.append(f"unpacked image {image_root}: no such directory")
    if not program.workdir.startswith("/"):
        faults.append(f"the working directory must be an absolute path: {program.workdir!r}")
    for bind in program.binds:
        if not bind.source.exists():
            faults.append(f"cannot mount {bind.source}: no such file or directory")
        if not bind.target.startswith("/") or bind.target.rstrip("/") == "":
            faults.append(
                f"cannot mount {bind.source}: the target must be an absolute path, not /: {bind.target!r}"
            )
    if faults:
        raise ConfigError.of(faults)


@contextlib.contextmanager
def _input(data: bytes) -> Iterator[IO[bytes]]:
    """A file with *data*, to read from; without data /dev/null, which a program cannot fill."""
    with tempfile.TemporaryFile() if data else open(os.devnull, "r+b") as file:
        file.write(data)
        file.seek(0)
        yield file


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to enter.py: it kills process 1 of the PID namespace, and the kernel all others in it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
