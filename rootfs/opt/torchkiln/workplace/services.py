"""Settings → the services of a container, run until it is told to stop: JupyterLab, sshd, TensorBoard."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from workplace import health, report, ssh
from workplace.image import Image
from workplace.settings import Jupyter, Settings, TensorBoard, runtime_folder
from workplace.supervision import Service, supervise

VENV = "/opt/venv/bin"
SUDOERS = Path("/etc/sudoers.d/torchkiln")


def run(settings: Settings, image: Image) -> int:
    """Start what was asked for and stay until it ends; the container's exit code."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    folder = runtime_folder()
    try:
        _make(folder)
        if settings.sudo:
            _allow_sudo()
    except OSError as error:
        report.say(f"{error.filename}: {error.strerror}; give it a tmpfs (--tmpfs /run --tmpfs /tmp:exec)")
        return 1
    services, lines = [], [f"{image.tag}: torch {image.torch}, Python {image.python}"]
    if settings.jupyter:
        lab, line = jupyter(settings.jupyter, os.environ)
        services.append(lab)
        lines.append(line)
    else:
        lines.append("Jupyter: off")
    sshd, more = _ssh(settings, folder)
    services += [sshd] if sshd else []
    lines += more
    if settings.tensorboard:
        services.append(tensorboard(settings.tensorboard, os.environ))
        lines.append(f"TensorBoard: port {settings.tensorboard.port}, without a login")
    if fault := _conflict(settings, sshd is not None):
        report.say(fault, "nothing was started")
        return 2
    if not services:
        report.say(*lines, "nothing is left to run; give a command, or a key for SSH")
        return 1
    health.expect(folder, services)
    report.say(*lines)
    # A driver can take its time; nobody waits for what it says.
    threading.Thread(target=report.machine, args=(image,), daemon=True).start()
    return supervise(services, restart=settings.restart, say=report.say)


def jupyter(settings: Jupyter, environ: Mapping[str, str]) -> tuple[Service, str]:
    """JupyterLab on every address, and the line that says how to reach it."""
    made = settings.token is None
    token = secrets.token_hex(24) if settings.token is None else settings.token
    command = [
        f"{VENV}/jupyter",
        "lab",
        "--no-browser",
        "--ip=0.0.0.0",
        f"--port={settings.port}",
        "--ServerApp.port_retries=0",  # another port is one that nobody published
        f"--ServerApp.root_dir={os.getcwd()}",
        f"--ServerApp.base_url={settings.base_url}",
        "--ServerApp.trust_xheaders=True",  # a proxy in front says who asks, and by http or https
        *([f"--ServerApp.allow_origin={settings.origin}"] if settings.origin else []),
        *([] if token else ["--IdentityProvider.token="]),
        *(["--allow-root"] if os.getuid() == 0 else []),
    ]
    # The token by the environment: an argument would stand in the process list.
    variables = {**environ, "JUPYTER_TOKEN": token, "SHELL": "/bin/bash"}
    # A token that was given is known to who gave it, and no business of whoever reads logs.
    known = "" if made else "  (log in with the token that was given)"
    if not token:
        known = "  (without a login: whoever reaches it runs programs here)"
    return (
        Service(
            name="jupyter",
            command=tuple(command),
            environ=variables,
            port=settings.port,
            path=f"{settings.base_url}api",  # tells Jupyter's version and needs no token
        ),
        f"Jupyter: {settings.address(token if made else '')}{known}",
    )


def tensorboard(settings: TensorBoard, environ: Mapping[str, str]) -> Service:
    """TensorBoard on every address."""
    command = ("tensorboard", f"--logdir={settings.logdir}", f"--port={settings.port}", "--host=0.0.0.0")
    return Service(
        name="tensorboard",
        command=(f"{VENV}/{command[0]}", *command[1:]),
        environ=environ,
        port=settings.port,
        path="/",
    )


def _ssh(settings: Settings, folder: Path) -> tuple[Service | None, list[str]]:
    """sshd where there is a key to let in; and what the log says of it."""
    if settings.ssh is None:
        return None, ["SSH: off"]
    try:
        prepared = ssh.prepare(settings.ssh, os.environ, folder)
    except ssh.NoSsh as why:
        return None, [f"SSH: off, {why}"]
    port, told = settings.ssh.ports[0], " and ".join(map(str, settings.ssh.ports))
    ways = " or ".join(f"{name}@HOST" for name in reversed(prepared.users))
    service = Service(name="sshd", command=prepared.command, environ=os.environ, port=port, path=None)
    line = f"SSH: port {told}: ssh -p PORT {ways}, PORT as it was published; host key {prepared.fingerprint}"
    return service, [line, *(f"SSH: {note}" for note in prepared.notes)]


def _conflict(settings: Settings, with_ssh: bool) -> str:
    """Which two services would listen on one port; empty: none."""
    asked = [("JUPYTER_PORT", settings.jupyter.port)] if settings.jupyter else []
    asked += [("SSH_PORT", port) for port in settings.ssh.ports] if settings.ssh and with_ssh else []
    asked += [("TENSORBOARD_PORT", settings.tensorboard.port)] if settings.tensorboard else []
    taken: dict[int, str] = {}
    for name, port in asked:
        other = taken.setdefault(port, name)
        if other != name:
            return (
                f"{other} and {name} are both {port}: address already in use; give one of them another port"
            )
    return ""


def _make(folder: Path) -> None:
    """A folder that is ours, and that nobody else can write."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or folder.is_symlink():
        raise OSError(1, "belongs to somebody else, or others can write to it", str(folder))


def _allow_sudo() -> None:
    """`user` may do all, with the image's PATH."""
    path = ":".join([VENV, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
    SUDOERS.write_text(f'Defaults:user secure_path="{path}"\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n')
    SUDOERS.chmod(0o440)


def _stop(_signal: int, _frame: object) -> None:
    sys.exit(0)
