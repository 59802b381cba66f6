"""Run torchkiln's commands in forks of a server process that has already imported torchkiln.

A new Python with the imports takes 0.2 to 0.5 s of CPU time for each command; a fork takes 1 % of that.
Exit code, output, files, memory and terminal are as in a new process. Each test process has its own server.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from tests.remembered import remember
from torchkiln.util.places import ROOT

BUILD = str(ROOT / "build.py")
#: The server imports these modules of `torchkiln.cli` before the first fork; they import most of torchkiln.
_MODULES = ("grid", "plan", "lock", "build", "diff", "sbom", "smoke", "gate", "publish", "verify", "run")
_one_at_a_time = threading.Lock()


def run(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: str | Path | None = None, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run `python build.py ARGUMENTS`; returns its result with output as text, like `subprocess.run`.

    :param how: see `run_bytes`.
    """
    done = run_bytes(arguments, env=env, cwd=cwd, **how)
    out, err = (data.decode().replace("\r\n", "\n") for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def run_bytes(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    stdin: bytes = b"",
    **how: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Like `run`, with output as bytes.

    :param how: see `run_on`.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        code = run_on((given, out, err), arguments, env=env, cwd=cwd, **how)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([BUILD, *arguments], code, out.read(), err.read())


def run_on(
    files: Sequence[BinaryIO | int],
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path | None = None,
    program: str = BUILD,
    target: str = "torchkiln.cli:main",
    timeout: float | None = None,
) -> int:
    """Run the command with *files* as stdin, stdout and stderr; returns the exit code, negative for a signal.

    :param program: sys.argv[0].
    :param target: the function to call, as MODULE:NAME.
    :raises subprocess.TimeoutExpired: it took longer than *timeout* seconds, and was killed.
    """
    request = {"argv": [program, *map(str, arguments)], "env": dict(env), "target": target}
    request["cwd"] = str(cwd or Path.cwd())
    descriptors = [file if isinstance(file, int) else file.fileno() for file in files]
    with _one_at_a_time:
        server = _server()
        data = json.dumps(request).encode()
        socket.send_fds(server, [len(data).to_bytes(4, "big")], descriptors)
        server.sendall(data)
        pid = int.from_bytes(_exactly(server, 4), "big")
        try:
            server.settimeout(timeout)
            return int.from_bytes(_exactly(server, 4), "big", signed=True)
        except TimeoutError:
            os.kill(pid, 9)
            server.settimeout(None)
            _exactly(server, 4)
            raise subprocess.TimeoutExpired([program, *arguments], timeout or 0) from None
        finally:
            server.settimeout(None)


@cache
def _server() -> socket.socket:
    """Start the server of this process on the first call; returns the connection. The server ends with it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], cwd=ROOT, env=environ, stdin=subprocess.DEVNULL
    )
    theirs.close()

    @atexit.register
    def _end() -> None:
        ours.close()
        process.wait()

    return ours


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError("the server of commands has ended")
        data += piece
    return data


def _serve(connection: socket.socket) -> None:
    """The server: fork for each request; send back the process ID, and the exit code when the fork ends."""
    for name in _MODULES:
        importlib.import_module(f"torchkiln.cli.{name}")
    remember()
    while True:
        head, descriptors, *_ = socket.recv_fds(connection, 4, 3)
        if not head:
            return
        request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        module, _, function = request["target"].partition(":")
        called = getattr(importlib.import_module(module), function)
        if not (pid := os.fork()):
            connection.close()
            _become(request, descriptors, called)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(4, "big"))
        _, status = os.waitpid(pid, 0)
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _become(request: Mapping[str, Any], descriptors: Sequence[int], called: Callable[[], object]) -> None:
    """In the fork: set files, folder, environment and arguments of *request*, call *called*, and exit."""
    code = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        # New objects are necessary: the inherited ones store whether the server's files are a terminal.
        sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", 1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        tempfile.tempdir = None
        sys.argv = request["argv"]
        # Processes that multiprocessing starts import the main module again.
        sys.modules["__main__"].__spec__ = None
        sys.modules["__main__"].__file__ = BUILD
        called()
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
    except BaseException:  # the interpreter also prints every exception before it exits
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # the fork must not return to the server's loop
        traceback.print_exc()
        code = code or 1
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
