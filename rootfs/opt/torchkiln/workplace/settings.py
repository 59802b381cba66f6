"""The environment → Settings: every switch that a container has, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

MIN_TOKEN = 16  # characters; a shorter one can be guessed over the network
MIN_DIFFERENT = 8  # of them: a word said twice is no secret either

# What `help` prints and the documents show. (name, what it is without it, what it does)
SWITCHES = (
    ("JUPYTER", "on", "off: no JupyterLab"),
    ("JUPYTER_TOKEN", "made at start", f"the token to log in with, {MIN_TOKEN} characters or more"),
    ("JUPYTER_TOKEN_FILE", "", "a file that holds the token, such as a mounted secret"),
    ("JUPYTER_ALLOW_WEAK_TOKEN", "no", "yes: any token will do, and an empty one means no login at all"),
    ("JUPYTER_PORT", "8888", "where it listens"),
    ("JUPYTER_BASE_URL", "/", "the path below which a reverse proxy shows it"),
    ("JUPYTER_ALLOW_ORIGIN", "", "the address of a proxy that does not pass the Host header on"),
    ("SSH", "on", "off: no SSH, whatever keys there are"),
    ("SSH_PUBLIC_KEY", "", "public keys that may log in, one a line; without any key SSH stays off"),
    ("SSH_PORT", "22", "where it listens; 2222 in a container that is not root's"),
    ("SSH_HOST_KEYS", "/etc/ssh/host_keys", "the folder that keeps the host's keys: mount a volume there"),
    ("TENSORBOARD_LOGDIR", "", "TensorBoard shows that folder, without a login, to all who reach its port"),
    ("TENSORBOARD_PORT", "6006", "where it listens"),
    ("TORCHKILN_SUDO", "no", "yes: `user` may become root by sudo, without a password"),
    ("TORCHKILN_RESTART", "yes", "no: the container ends as soon as one of its services does"),
    ("PIP_CONSTRAINT, UV_CONSTRAINT", "the torch guard", "set them empty to let pip and uv replace torch"),
    ("TZ", "UTC", "the time zone, such as Europe/Berlin"),
)

# Kubernetes sets JUPYTER_PORT=tcp://10.0.0.1:8888 in every pod beside a service called "jupyter".
_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")
_WORDS = {
    "yes": True,
    "true": True,
    "on": True,
    "1": True,
    "no": False,
    "false": False,
    "off": False,
    "0": False,
}
_PATH = re.compile(r"/(?:[A-Za-z0-9._~@-]+/)*[A-Za-z0-9._~@-]*")


class BadSettings(Exception):
    """What is wrong with the environment, a sentence each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True, kw_only=True, slots=True)
class Jupyter:
    """`token` None: to be made; empty: no login."""

    token: str | None
    port: int
    base_url: str  # begins and ends in a slash
    origin: str

    def address(self, token: str) -> str:
        """Where a browser on the same machine finds it."""
        asked = f"?token={quote(token, safe='')}" if token else ""
        return f"http://127.0.0.1:{self.port}{self.base_url}lab{asked}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssh:
    """`ports`: all that sshd shall listen on."""

    keys: str
    ports: tuple[int, ...]
    host_keys: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorBoard:
    """`logdir` as TensorBoard takes it: a folder, or several."""

    logdir: str
    port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A service that is None was not asked for."""

    jupyter: Jupyter | None
    ssh: Ssh | None
    tensorboard: TensorBoard | None
    sudo: bool
    restart: bool


def read(environ: Mapping[str, str], *, root: bool) -> Settings:
    """What *environ* asks for, in a container that is *root*'s or another user's.

    :raises BadSettings: something in it cannot be meant; all of it is named.
    """
    reader = _Reader(environ)
    settings = Settings(
        jupyter=_jupyter(reader) if reader.switch("JUPYTER", True) else None,
        ssh=_ssh(reader, root) if reader.switch("SSH", True) else None,
        tensorboard=_tensorboard(reader),
        sudo=reader.switch("TORCHKILN_SUDO", False),
        restart=reader.switch("TORCHKILN_RESTART", True),
    )
    if settings.sudo and not root:
        reader.faults.append(
            "TORCHKILN_SUDO: only a container that root starts can grant it; leave out --user"
        )
    if reader.faults:
        raise BadSettings(reader.faults)
    return settings


class _Reader:
    """Reads variables and gathers what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.faults: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        value = self.environ.get(name, "")
        return default if not value or _OF_KUBERNETES.match(value) else value

    def switch(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value and value.lower() not in _WORDS:
            self.faults.append(f"{name}={value[:40]!r}: say yes or no")
        return _WORDS.get(value.lower(), default)

    def port(self, name: str, default: int) -> int:
        value = self.text(name, str(default))
        # The length first: int() refuses thousands of digits by an exception.
        if value.isascii() and value.isdecimal() and len(value) <= 5 and 0 < int(value) < 1 << 16:
            return int(value)
        self.faults.append(f"{name}={value[:40]!r}: a port is a number from 1 to 65535")
        return default


def _jupyter(reader: _Reader) -> Jupyter:
    base = reader.text("JUPYTER_BASE_URL", "/")
    if not _PATH.fullmatch(base):
        reader.faults.append(
            f"JUPYTER_BASE_URL={base[:80]!r}: it is the path of an address, such as /lab/anna/"
        )
    return Jupyter(
        token=_token(reader),
        port=reader.port("JUPYTER_PORT", 8888),
        base_url=base if base.endswith("/") else f"{base}/",
        origin=reader.text("JUPYTER_ALLOW_ORIGIN"),
    )


def _token(reader: _Reader) -> str | None:
    """The user's, if it is fit; the messages never show it."""
    weak = reader.switch("JUPYTER_ALLOW_WEAK_TOKEN", False)
    name, token = "JUPYTER_TOKEN", reader.environ.get("JUPYTER_TOKEN")
    if token is None and (place := reader.environ.get("JUPYTER_TOKEN_FILE")):
        name = "JUPYTER_TOKEN_FILE"
        try:
            token = Path(place).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it holds no text"
            reader.faults.append(f"{name}: {place} cannot be read: {why}")
            return None
    if token is None:
        return None
    if any(not "!" <= letter <= "~" for letter in token):
        reader.faults.append(f"{name}: letters, digits and signs of ASCII only, and no spaces")
    elif not weak and (len(token) < MIN_TOKEN or len(set(token)) < MIN_DIFFERENT):
        reader.faults.append(
            f"{name} has {len(token)} characters, {len(set(token))} different ones; {MIN_TOKEN} with"
            f" {MIN_DIFFERENT} different ones are needed, for who guesses it runs programs here."
            " Leave it unset to have one made, or permit it: -e JUPYTER_ALLOW_WEAK_TOKEN=yes"
        )
    return token


def _ssh(reader: _Reader, root: bool) -> Ssh:
    if reader.text("SSH_PORT") or root:
        ports: tuple[int, ...] = (reader.port("SSH_PORT", 22),)
    else:
        # Docker, since 20.10, lets everybody have low ports: then `-p 2222:22` works as it does for root.
        ports = (2222, 22) if _lowest_port() <= 22 else (2222,)
    return Ssh(
        keys=reader.text("SSH_PUBLIC_KEY").strip(),
        ports=ports,
        host_keys=Path(reader.text("SSH_HOST_KEYS", "/etc/ssh/host_keys")),
    )


def _lowest_port(told: Path = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")) -> int:
    """The lowest port that a user who is not root may listen on."""
    try:
        return int(told.read_text())
    except (OSError, ValueError):
        return 1024


def _tensorboard(reader: _Reader) -> TensorBoard | None:
    logdir = reader.text("TENSORBOARD_LOGDIR")
    return TensorBoard(logdir=logdir, port=reader.port("TENSORBOARD_PORT", 6006)) if logdir else None


def runtime_folder() -> Path:
    """Where this user's services keep what lives as long as the container runs; others cannot write there."""
    uid = os.getuid()
    return Path("/run/torchkiln") if uid == 0 else Path(f"/tmp/torchkiln-{uid}")
