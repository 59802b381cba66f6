"""Reads and checks the settings of a container: environment variables, before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import quote

from workplace.messages import TEXTS, message

MIN_TOKEN = 16  # characters; a shorter token can be guessed over the network
MIN_DIFFERENT = 8  # different characters

# (name, default); `help` prints it with a meaning, docs/image.md shows it.
SWITCHES = (
    ("JUPYTER", "on"),
    ("JUPYTER_USER", "user"),
    ("JUPYTER_TOKEN", "generated"),
    ("JUPYTER_PASSWORD", ""),
    ("JUPYTER_TOKEN_FILE", ""),
    ("JUPYTER_ALLOW_WEAK_TOKEN", "no"),
    ("JUPYTER_PORT", "8888"),
    ("JUPYTER_BASE_URL", "/"),
    ("JUPYTER_ALLOW_ORIGIN", ""),
    ("SSH", "on"),
    ("SSH_PUBLIC_KEY", ""),
    ("PUBLIC_KEY", ""),
    ("SSH_PORT", "22"),
    ("SSH_HOST_KEYS", "/etc/ssh/host_keys"),
    ("TENSORBOARD_LOGDIR", ""),
    ("TENSORBOARD_PORT", "6006"),
    ("TORCHKILN_SUDO", "no"),
    ("TORCHKILN_RESTART", "yes"),
    ("TORCHKILN_ANY_GPU", "no"),
    ("PIP_CONSTRAINT, UV_CONSTRAINT", "constraints.txt"),
    ("TZ", "UTC"),
)

# Kubernetes sets JUPYTER_PORT=tcp://10.0.0.1:8888 in every pod beside a service called "jupyter".
_KUBERNETES_LINK = re.compile(r"(tcp|udp|sctp)://")
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
# Names that other images read, which are too different for `unread` to recognize.
_MEANT = {
    **dict.fromkeys(
        ("SSH_KEY", "SSH_KEYS", "SSH_PUBKEY", "SSH_AUTHORIZED_KEYS", "AUTHORIZED_KEYS"), "SSH_PUBLIC_KEY"
    ),
    **dict.fromkeys(("NOTEBOOK_TOKEN", "JUPYTER_PASS"), "JUPYTER_TOKEN"),
}
_ALIKE = 0.85  # of difflib: JUPYTER_TOKN is alike, but not JUPYTER_PATH, Jupyter's own, like JUPYTER_PORT
_ANY_GPU = "TORCHKILN_ANY_GPU"
_PATH = re.compile(r"/(?:[A-Za-z0-9._~@-]+/)*[A-Za-z0-9._~@-]*")


def switches() -> tuple[tuple[str, str, str], ...]:
    """Each row of SWITCHES with its meaning: name, default, meaning."""
    rows = []
    for name, default in SWITCHES:
        in_words = f"default.{name}" in TEXTS
        meaning = message(f"setting.{name}", least=MIN_TOKEN)
        rows.append((name, message(f"default.{name}") if in_words else default, meaning))
    return tuple(rows)


def unread(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A message about each variable that looks meant for this image, but that nothing reads."""
    known = {name for names, _ in SWITCHES for name in names.split(", ")}
    long = [name for name in known if len(name) > len("JUPYTER")]  # SSH and TZ are like too much
    found = []
    for name in sorted(environ.keys() - known):
        alike = get_close_matches(name.upper(), long, n=1, cutoff=_ALIKE)
        if meant := _MEANT.get(name.upper()) or "".join(alike):
            found.append(message("settings.unread", name=name, meant=meant))
    return tuple(found)


class BadSettings(Exception):
    """Invalid settings; `faults` has one message for each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


@dataclass(frozen=True, kw_only=True, slots=True)
class Jupyter:
    """Settings of JupyterLab. `token`: None: generate one; empty: no login."""

    token: str | None
    port: int
    base_url: str  # begins and ends in a slash
    origin: str
    as_root: bool = False  # although `user` owns the folder

    def url(self, token: str) -> str:
        """The URL for a browser on the same machine."""
        query = f"?token={quote(token, safe='')}" if token else ""
        return f"http://127.0.0.1:{self.port}{self.base_url}lab{query}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssh:
    """Settings of sshd."""

    keys: str
    ports: tuple[int, ...]
    host_keys: Path
    other_keys: str = ""  # of PUBLIC_KEY, which providers of GPUs set


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorBoard:
    """Settings of TensorBoard. `logdir` is passed to its option of the same name."""

    logdir: str
    port: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """All settings of a container. A service that is None does not run."""

    jupyter: Jupyter | None
    ssh: Ssh | None
    tensorboard: TensorBoard | None
    sudo: bool
    restart: bool
    any_gpu: bool  # start although the image has no device code for the GPUs


def read(environ: Mapping[str, str], *, root: bool) -> Settings:
    """The settings in *environ*, for a container that runs as *root* or as another user.

    :raises BadSettings: a value is invalid; the exception has a message for each.
    """
    reader = _Reader(environ)
    settings = Settings(
        jupyter=_jupyter(reader) if reader.switch("JUPYTER", True) else None,
        ssh=_ssh(reader, root) if reader.switch("SSH", True) else None,
        tensorboard=_tensorboard(reader),
        sudo=reader.switch("TORCHKILN_SUDO", False),
        restart=reader.switch("TORCHKILN_RESTART", True),
        any_gpu=reader.switch(_ANY_GPU, False),
    )
    if settings.sudo and not root:
        reader.faults.append(message("settings.sudo"))
    if reader.faults:
        raise BadSettings(reader.faults)
    return settings


def any_gpu(environ: Mapping[str, str]) -> bool:
    """The setting of that name alone, for a container that runs a command.

    :raises BadSettings: its value is invalid.
    """
    reader = _Reader(environ)
    found = reader.switch(_ANY_GPU, False)
    if reader.faults:
        raise BadSettings(reader.faults)
    return found


class _Reader:
    """Reads variables and collects messages about invalid ones."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.faults: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        value = self.environ.get(name, "")
        return default if not value or _KUBERNETES_LINK.match(value) else value

    def switch(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value and value.lower() not in _WORDS:
            self.faults.append(message("settings.switch", name=name, value=value[:40]))
        return _WORDS.get(value.lower(), default)

    def port(self, name: str, default: int) -> int:
        value = self.text(name, str(default))
        # The length first: int() refuses thousands of digits by an exception.
        if value.isascii() and value.isdecimal() and len(value) <= 5 and 0 < int(value) < 1 << 16:
            return int(value)
        self.faults.append(message("settings.port", name=name, value=value[:40]))
        return default


def _jupyter(reader: _Reader) -> Jupyter:
    base = reader.text("JUPYTER_BASE_URL", "/")
    if not _PATH.fullmatch(base):
        reader.faults.append(message("settings.path", value=base[:80]))
    name = reader.text("JUPYTER_USER", "user")
    if name not in ("user", "root"):
        reader.faults.append(message("settings.user", value=name[:40]))
    return Jupyter(
        token=_token(reader),
        port=reader.port("JUPYTER_PORT", 8888),
        base_url=base if base.endswith("/") else f"{base}/",
        origin=reader.text("JUPYTER_ALLOW_ORIGIN"),
        as_root=name == "root",
    )


def _token(reader: _Reader) -> str | None:
    """The user's token, or None. Messages never contain it."""
    weak = reader.switch("JUPYTER_ALLOW_WEAK_TOKEN", False)
    name, token = "JUPYTER_TOKEN", reader.environ.get("JUPYTER_TOKEN")
    if token is None:
        name, token = "JUPYTER_PASSWORD", reader.environ.get("JUPYTER_PASSWORD")
    if token is None and (place := reader.environ.get("JUPYTER_TOKEN_FILE")):
        name = "JUPYTER_TOKEN_FILE"
        try:
            token = Path(place).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else message("settings.no-text")
            reader.faults.append(message("settings.file", name=name, path=place, error=why))
            return None
    if token is None:
        return None
    if any(not "!" <= letter <= "~" for letter in token):
        reader.faults.append(message("settings.ascii", name=name))
    elif not weak and (len(token) < MIN_TOKEN or len(set(token)) < MIN_DIFFERENT):
        reader.faults.append(
            message(
                "settings.weak",
                name=name,
                count=len(token),
                different=len(set(token)),
                least=MIN_TOKEN,
                least_different=MIN_DIFFERENT,
            )
        )
    return token


def _ssh(reader: _Reader, root: bool) -> Ssh:
    if reader.text("SSH_PORT") or root:
        ports: tuple[int, ...] = (reader.port("SSH_PORT", 22),)
    else:
        # Since 20.10 Docker lets every user listen on low ports: then `-p 2222:22` works as for root.
        ports = (2222, 22) if _lowest_port() <= 22 else (2222,)
    return Ssh(
        keys=reader.text("SSH_PUBLIC_KEY").strip(),
        other_keys=reader.text("PUBLIC_KEY").strip(),
        ports=ports,
        host_keys=Path(reader.text("SSH_HOST_KEYS", "/etc/ssh/host_keys")),
    )


def _lowest_port(path: Path = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")) -> int:
    """The lowest port on which a user other than root may listen."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 1024


def _tensorboard(reader: _Reader) -> TensorBoard | None:
    logdir = reader.text("TENSORBOARD_LOGDIR")
    return TensorBoard(logdir=logdir, port=reader.port("TENSORBOARD_PORT", 6006)) if logdir else None


def runtime_folder() -> Path:
    """The folder for files of running services; other users cannot write to it."""
    uid = os.getuid()
    return Path("/run/torchkiln") if uid == 0 else Path(f"/tmp/torchkiln-{uid}")
