"""Prepares sshd: host keys, authorized keys, configuration."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workplace import session
from workplace.messages import listed, message
from workplace.settings import Ssh

KEYGEN = "/usr/bin/ssh-keygen"
KINDS = ("ed25519", "ecdsa")  # of host keys; clients have supported both since 2014
MOUNTED = Path("/etc/ssh/authorized_keys")  # a mounted file with keys for all accounts
EMPTY = Path("/run/sshd")  # sshd's chroot folder for privilege separation


class NoSsh(Exception):
    """Why SSH is off; the message goes to the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """The command that starts sshd, and what the log says about it."""

    command: tuple[str, ...]
    users: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...]


def prepare(settings: Ssh, environ: Mapping[str, str], folder: Path) -> Prepared:
    """Write the files that sshd needs into *folder*.

    :raises NoSsh: there is no valid key, or a file cannot be read or written.
    """
    try:
        return _prepare(settings, environ, folder)
    except OSError as error:
        raise NoSsh(message("ssh.file", path=error.filename, error=error.strerror)) from error
    except subprocess.CalledProcessError as error:
        raise NoSsh(message("ssh.keygen", program=KEYGEN, status=error.returncode)) from error


def _prepare(settings: Ssh, environ: Mapping[str, str], folder: Path) -> Prepared:
    accounts = _accounts()
    found = {account.pw_name: _keys(settings, account) for account in accounts}
    faults = [fault for _, invalid in found.values() for fault in invalid]
    keys = {name: lines for name, (lines, _) in found.items() if lines}
    if not keys:
        why = faults or [message("ssh.no-key")]
        raise NoSsh("; ".join(dict.fromkeys(why)))
    allowed = folder / "authorized_keys"
    allowed.mkdir(mode=0o755, exist_ok=True)
    for name, lines in keys.items():
        _write(allowed / name, "".join(f"{line}\n" for line in lines), 0o644)
    host_keys, notes = _host_keys(settings.host_keys, folder / "host_keys")
    variables, broken = session.shared(environ)
    if broken:
        notes.append(message("ssh.line-breaks", names=listed(list(broken))))
    configuration = folder / "sshd_config"
    # 0600: it contains the container's variables, which may be secrets.
    _write(configuration, _configuration(settings, allowed, host_keys, variables), 0o600)
    if os.getuid() == 0:
        EMPTY.mkdir(mode=0o755, exist_ok=True)
    return Prepared(
        command=("/usr/sbin/sshd", "-D", "-e", "-f", str(configuration)),
        users=tuple(keys),
        fingerprint=_fingerprint(host_keys[0]),
        notes=(*dict.fromkeys(faults), *notes),
    )


def _accounts() -> list[pwd.struct_passwd]:
    """Who can log in: root and `user` if root starts sshd, else the user that the container runs as."""
    if os.getuid() != 0:
        try:
            return [pwd.getpwuid(os.getuid())]
        except KeyError:
            raise NoSsh(message("ssh.no-name", uid=os.getuid())) from None
    accounts = []
    for name in ("root", "user"):
        try:
            accounts.append(pwd.getpwnam(name))
        except KeyError:  # another base image may not have it
            continue
    return accounts


def _keys(settings: Ssh, account: pwd.struct_passwd) -> tuple[list[str], list[str]]:
    """The keys for *account*, and messages about invalid ones.

    Files are copied: mounted files have any owner and mode, and sshd ignores those silently.
    """
    sources = [("SSH_PUBLIC_KEY", settings.keys), ("PUBLIC_KEY", settings.other_keys)]
    for path in (MOUNTED, Path(account.pw_dir, ".ssh/authorized_keys")):
        try:
            sources.append((str(path), path.read_text("utf-8", "replace")))
        except OSError:
            continue
    valid, invalid = [], []
    for where, text in sources:
        if "PRIVATE KEY-----" in text:
            invalid.append(message("ssh.private", where=where))
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if _is_key(line):
                valid.append(line.strip())
            else:
                invalid.append(message("ssh.invalid", where=where, number=number))
    return list(dict.fromkeys(valid)), invalid


def _is_key(line: str) -> bool:
    argv = [KEYGEN, "-l", "-f", "-"]
    data = os.fsencode(f"{line}\n")
    return subprocess.run(argv, input=data, capture_output=True, check=False).returncode == 0


def _host_keys(volume: Path, used: Path) -> tuple[list[Path], list[str]]:
    """The host keys: those in *volume*, generated at the first start, copied to *used* with mode 0600.

    They are not part of a layer, where all containers would share them. An invalid key is not replaced:
    clients identify the host by it.

    :raises NoSsh: every key is invalid.
    """
    used.mkdir(mode=0o700, exist_ok=True)
    keys: list[Path] = []
    notes: list[str] = []
    for kind in KINDS:
        name = f"ssh_host_{kind}_key"
        place = used / name
        if (text := _read(volume / name)) is not None:
            _write(place, text, 0o600)
            if not _is_private_key(place):
                notes.append(message("ssh.invalid-host-key", path=volume / name))
                continue
        elif not place.is_file():
            argv = [KEYGEN, "-q", "-t", kind, "-N", "", "-C", "", "-f", str(place)]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            if not _save(place, volume):
                notes.append(message("ssh.host-keys-lost", folder=volume))
        keys.append(place)
    if not keys:
        raise NoSsh("; ".join(notes))
    return keys, list(dict.fromkeys(notes))


def _is_private_key(place: Path) -> bool:
    """Whether sshd can use it: not if it is invalid or has a passphrase."""
    argv = [KEYGEN, "-y", "-P", "", "-f", str(place)]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _read(key: Path) -> str | None:
    """The text of a host key; None if there is none.

    :raises OSError: it cannot be read; a new key would change the host's identity.
    """
    try:
        return key.read_text("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _save(key: Path, folder: Path) -> bool:
    """Copy a new key and its public half into *folder*; whether that succeeded."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f".{key.name}.{os.getpid()}"
        _write(part, key.read_text("utf-8"), 0o600)
        part.replace(folder / key.name)
        shutil.copyfile(key.with_suffix(".pub"), folder / f"{key.name}.pub")
    except OSError:
        return False
    return True


def _configuration(settings: Ssh, allowed: Path, host_keys: list[Path], variables: Mapping[str, str]) -> str:
    """The text of sshd_config. sshd uses the first value of a setting, so ours come before the system's."""
    lines = [
        *(f"Port {port}" for port in settings.ports),
        *(f"HostKey {key}" for key in host_keys),
        "PidFile none",
        "UsePAM no",  # so that it works without root; sessions do not need it
        "PrintMotd no",
        "PrintLastLog no",
        f"AuthorizedKeysFile {allowed}/%u .ssh/authorized_keys",
        # StrictModes refuses a key file below /tmp. Without root, only this user can log in anyway.
        *(["StrictModes no"] if os.getuid() else []),
        "Include /etc/ssh/sshd_config",
    ]
    return session.set_env(session.without_clients_locale(variables)) + "\n".join(lines) + "\n"


def _fingerprint(key: Path) -> str:
    argv = [KEYGEN, "-l", "-f", str(key)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [*done.stdout.split(), "", ""][1]


def _write(path: Path, text: str, mode: int) -> None:
    """Create *path* with *mode* from the start. Variables and comments of keys need not be UTF-8."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(os.fsencode(text))
