"""Let the image's entrypoint prepare the services without starting them, and test tini and the health check.

No port is opened, because the rootfs runtime shares the host's network.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TINI = ["/usr/bin/tini", "--", "/opt/torchkiln/entrypoint"]
HEALTHCHECK = "/opt/torchkiln/healthcheck"
PREPARED = Path("/run/torchkiln")  # files of running services
LOGINS = ("passwordauthentication", "kbdinteractiveauthentication", "permitemptypasswords")
LIMIT = 60.0  # seconds for a command
REAPED = 10.0  # seconds until an orphan is reaped, or a signal is received
RECEIVED = 42  # exit code after SIGTERM


def main():
    """Print one JSON object."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = {"tini": tini(), "jupyter": run("/opt/venv/bin/jupyter", "--version"), "health": {}}
        try:
            seen["health"]["command"] = run(HEALTHCHECK)
            seen |= prepared(folder)
            seen["health"]["refused"] = run_healthcheck_of_refused_port()
        finally:
            shutil.rmtree(PREPARED, ignore_errors=True)
    print(json.dumps(seen))


def run(*argv, **env):
    """Exit code and output of a command; the code is None if it cannot be started or does not end."""
    try:
        done = subprocess.run(
            argv,
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"exit_code": None, "output": str(error)}
    return {"exit_code": done.returncode, "output": done.stdout.strip()}


def prepared(folder):
    """The files that the entrypoint prepares, and sshd's check of its configuration.

    JupyterLab and sshd get the same port: the entrypoint detects this after the preparation, and starts
    nothing.
    """
    key = folder / "key"
    run("/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key))
    public = key.with_suffix(".pub")
    entrypoint = run(
        TINI[-1],
        JUPYTER="on",
        JUPYTER_PORT="2222",
        SSH="on",
        SSH_PORT="2222",
        SSH_PUBLIC_KEY=public.read_text() if public.exists() else "",
        SSH_HOST_KEYS=str(folder / "host_keys"),
        TENSORBOARD_LOGDIR="",
    )
    files = sorted(path for path in PREPARED.rglob("*") if path.is_file())
    sshd = ("/usr/sbin/sshd", "-f", str(PREPARED / "sshd_config"))
    settings = run(*sshd, "-T")["output"]
    return {
        "entrypoint": entrypoint,
        "prepared": [str(path.relative_to(PREPARED)) for path in files],
        "sshd": run(*sshd, "-t"),
        "logins": dict(line.split() for line in settings.splitlines() if line.startswith(LOGINS)),
    }


def run_healthcheck_of_refused_port():
    """Run the health check for a service that does not answer: its port is reserved, but no program listens
    on it."""
    PREPARED.mkdir(parents=True, exist_ok=True)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        service = {"name": "jupyter", "port": reserved.getsockname()[1], "path": "/api"}
        (PREPARED / "services.json").write_text(json.dumps([service]))
        return run(HEALTHCHECK)


def tini():
    """The output of `payload` under the image's entrypoint, and the exit code after a SIGTERM to tini.

    With TINI_SUBREAPER, tini adopts orphans even if it is not process 1.
    """
    command = [*TINI, sys.executable, "-I", "-B", __file__, "payload"]
    try:
        process = subprocess.Popen(
            command,
            env=os.environ | {"TINI_SUBREAPER": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        return {"fault": str(error)}
    seen = {}
    try:
        seen |= json.loads(process.stdout.readline() or "{}")
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            seen["exit_code"] = process.wait(2 * REAPED)
        return seen
    finally:
        if seen.get("pid") and "exit_code" not in seen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(seen["pid"], signal.SIGKILL)
        process.kill()
        process.wait()


def payload():
    """Print the parent process, and whether an orphaned grandchild was reaped; then wait for SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.01)
            os.write(sink, f"{os.getpid()} {os.getppid()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    orphan, adopter = map(int, os.read(source, 100).split())
    seen = {"pid": os.getpid(), "parent": program(os.getppid()), "orphan_parent": program(adopter)}
    ends = time.monotonic() + REAPED
    while os.path.exists(f"/proc/{orphan}") and time.monotonic() < ends:
        time.sleep(0.01)
    print(json.dumps(seen | {"orphan_reaped": not os.path.exists(f"/proc/{orphan}")}), flush=True)
    received = signal.sigtimedwait({signal.SIGTERM}, REAPED)
    os._exit(RECEIVED if received else 1)


def program(pid):
    """The file that the process *pid* executes."""
    return os.readlink(f"/proc/{pid}/exe")


if __name__ == "__main__":
    payload() if sys.argv[1:] == ["payload"] else main()
