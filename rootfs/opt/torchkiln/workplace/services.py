"""Starts the services of a container, JupyterLab, sshd and TensorBoard, and runs them until it is stopped."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from workplace import health, ownership, report, ssh
from workplace.image import Image
from workplace.messages import message
from workplace.ownership import Account
from workplace.settings import Jupyter, Settings, TensorBoard, runtime_folder, unread
from workplace.supervision import Service, supervise

VENV = "/opt/venv/bin"
SUDOERS = Path("/etc/sudoers.d/torchkiln")


def run(settings: Settings, image: Image) -> int:
    """Start the services and wait until they end; return the container's exit code."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    folder = runtime_folder()
    try:
        _make_private(folder)
        if settings.sudo:
            _allow_sudo()
    except OSError as error:
        report.say(message("start.folder", folder=error.filename, error=error.strerror))
        return 1
    workspace = os.getcwd()
    owner = ownership.settle(workspace, folder) if os.getuid() == 0 else None
    environ = os.environ | (owner.environ if owner else {})
    services = []
    lines = [message("start.image", tag=image.tag, torch=image.torch, python=image.python)]
    if settings.jupyter:
        lab, line = jupyter(settings.jupyter, environ, owner)
        services.append(lab)
        lines.append(line)
        lines += _jupyters_user(settings.jupyter, workspace, owner)
    else:
        lines.append(message("jupyter.off"))
    lines += [message("warning", text=text) for text in unread(environ)]
    sshd, more = _ssh(settings, folder, environ)
    services += [sshd] if sshd else []
    lines += more
    if settings.tensorboard:
        services.append(tensorboard(settings.tensorboard, environ))
        lines.append(message("tensorboard", port=settings.tensorboard.port))
    if fault := _conflict(settings, sshd is not None):
        report.say(fault, message("start.nothing"))
        return 2
    if not services:
        report.say(*lines, message("start.no-service"))
        return 1
    health.expect(folder, services)
    report.say(*lines)
    # In a thread: a driver can take a minute to answer, and no service needs its answer.
    threading.Thread(target=report.machine, args=(image,), daemon=True).start()
    if owner:
        threading.Thread(target=_share, args=(workspace, owner), daemon=True).start()
    return supervise(services, restart=settings.restart, say=report.say)


def jupyter(
    settings: Jupyter, environ: Mapping[str, str], owner: Account | None = None
) -> tuple[Service, str]:
    """JupyterLab on all addresses, and the log line with its URL. It runs as *owner* unless set otherwise."""
    owner = None if settings.as_root else owner
    generated = settings.token is None
    token = secrets.token_hex(24) if settings.token is None else settings.token
    command = [
        f"{VENV}/jupyter",
        "lab",
        "--no-browser",
        "--ip=0.0.0.0",
        f"--port={settings.port}",
        "--ServerApp.port_retries=0",  # another port would not be published
        f"--ServerApp.root_dir={os.getcwd()}",
        f"--ServerApp.base_url={settings.base_url}",
        "--ServerApp.trust_xheaders=True",  # a reverse proxy sends the client's address and scheme
        *([f"--ServerApp.allow_origin={settings.origin}"] if settings.origin else []),
        *([] if token else ["--IdentityProvider.token="]),
        *(["--allow-root"] if os.getuid() == 0 and owner is None else []),
    ]
    # The token is passed in the environment: arguments are visible in the process list.
    variables = {**environ, "JUPYTER_TOKEN": token, "SHELL": "/bin/bash"}
    if owner:
        variables |= ownership.environ_of(owner)
        command = [*ownership.AS_USER, *command]
    # The user knows a token that they set, so it is not written to the log.
    login = "jupyter" if generated else "jupyter.own-token"
    if not token:
        login = "jupyter.no-login"
    return (
        Service(
            name="jupyter",
            command=tuple(command),
            environ=variables,
            port=settings.port,
            path=f"{settings.base_url}api",  # returns Jupyter's version without a token
            ids=(owner.uid, owner.gid) if owner else None,
        ),
        message(login, url=settings.url(token if generated else "")),
    )


def _jupyters_user(settings: Jupyter, workspace: str, owner: Account | None) -> list[str]:
    """The log line about the user of JupyterLab; none in a container that does not run as root."""
    if os.getuid() != 0:
        return []
    if owner is None:
        return [message("jupyter.root", folder=workspace)]
    if settings.as_root:
        return []
    ownership.show_servers_to_root(owner)
    return [message("jupyter.user", uid=owner.uid, folder=workspace)]


def _share(workspace: str, owner: Account) -> None:
    """Let `user` edit what root creates, and log a folder in which it cannot."""
    if folder := ownership.share(workspace, owner.uid):
        report.say(message("warning", text=message("ownership.root", folder=folder)))


def tensorboard(settings: TensorBoard, environ: Mapping[str, str]) -> Service:
    """TensorBoard on all addresses."""
    command = ("tensorboard", f"--logdir={settings.logdir}", f"--port={settings.port}", "--host=0.0.0.0")
    return Service(
        name="tensorboard",
        command=(f"{VENV}/{command[0]}", *command[1:]),
        environ=environ,
        port=settings.port,
        path="/",
    )


def _ssh(settings: Settings, folder: Path, environ: Mapping[str, str]) -> tuple[Service | None, list[str]]:
    """sshd if there is a public key, and its log lines."""
    if settings.ssh is None:
        return None, [message("ssh.off")]
    try:
        prepared = ssh.prepare(settings.ssh, environ, folder)
    except ssh.NoSsh as why:
        return None, [message("ssh.off-because", why=why)]
    port, ports = settings.ssh.ports[0], message("ssh.and").join(map(str, settings.ssh.ports))
    logins = message("ssh.or").join(f"{name}@HOST" for name in reversed(prepared.users))
    service = Service(name="sshd", command=prepared.command, environ=environ, port=port, path=None)
    line = message("ssh", ports=ports, logins=logins, fingerprint=prepared.fingerprint)
    return service, [line, *(message("ssh.note", note=note) for note in prepared.notes)]


def _conflict(settings: Settings, with_ssh: bool) -> str:
    """The message if two services have the same port; empty if none."""
    ports = [("JUPYTER_PORT", settings.jupyter.port)] if settings.jupyter else []
    ports += [("SSH_PORT", port) for port in settings.ssh.ports] if settings.ssh and with_ssh else []
    ports += [("TENSORBOARD_PORT", settings.tensorboard.port)] if settings.tensorboard else []
    taken: dict[int, str] = {}
    for name, port in ports:
        other = taken.setdefault(port, name)
        if other != name:
            return message("start.same-port", one=other, other=name, port=port)
    return ""


def _make_private(folder: Path) -> None:
    """Create *folder*; it must belong to this user, and no other user may write to it."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022 or folder.is_symlink():
        raise OSError(1, message("start.not-private"), str(folder))


def _allow_sudo() -> None:
    """Let `user` run any command with sudo, with the image's PATH."""
    path = ":".join([VENV, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])
    SUDOERS.write_text(f'Defaults:user secure_path="{path}"\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n')
    SUDOERS.chmod(0o440)


def _stop(_signal: int, _frame: object) -> None:
    sys.exit(0)
