"""Ssh settings → what sshd runs on: host keys, the keys that may log in, its configuration."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workplace import session
from workplace.settings import Ssh

KEYGEN = "/usr/bin/ssh-keygen"
KINDS = ("ed25519", "ecdsa")  # of host keys; every client since 2014 knows both
MOUNTED = Path("/etc/ssh/authorized_keys")  # keys for everybody who may log in, as a file that was mounted
EMPTY = Path("/run/sshd")  # the folder into which root's sshd locks strangers


class NoSsh(Exception):
    """Why there is no SSH here: a sentence for the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """Ready to be started."""

    command: tuple[str, ...]
    users: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...]


def prepare(settings: Ssh, environ: Mapping[str, str], folder: Path) -> Prepared:
    """Write into *folder* all that sshd needs.

    :raises NoSsh: nobody could log in, or something cannot be read or written.
    """
    try:
        return _prepare(settings, environ, folder)
    except OSError as error:
        raise NoSsh(f"{error.filename}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        raise NoSsh(f"{KEYGEN} ended with {error.returncode}") from error


def _prepare(settings: Ssh, environ: Mapping[str, str], folder: Path) -> Prepared:
    accounts = _accounts()
    found = {account.pw_name: _keys(settings, account) for account in accounts}
    faults = [fault for _, wrong in found.values() for fault in wrong]
    keys = {name: lines for name, (lines, _) in found.items() if lines}
    if not keys:
        why = faults or ['no key was given (-e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)")']
        raise NoSsh("; ".join(dict.fromkeys(why)))
    allowed = folder / "authorized_keys"
    allowed.mkdir(mode=0o755, exist_ok=True)
    for name, lines in keys.items():
        _write(allowed / name, "".join(f"{line}\n" for line in lines), 0o644)
    host_keys, notes = _host_keys(settings.host_keys, folder / "host_keys")
    variables, broken = session.shared(environ)
    if broken:
        notes.append(f"not in SSH sessions, for they hold a line break: {', '.join(broken)}")
    configuration = folder / "sshd_config"
    # Whoever can read it can read the user's variables, secrets among them.
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
    """Who can log in: root and `user` where root starts sshd; else whoever the container runs as."""
    if os.getuid() != 0:
        try:
            return [pwd.getpwuid(os.getuid())]
        except KeyError:
            raise NoSsh(f"uid {os.getuid()} has no name: start the services by the entrypoint") from None
    accounts = []
    for name in ("root", "user"):
        try:
            accounts.append(pwd.getpwnam(name))
        except KeyError:  # a base of the user's own need not have it
            continue
    return accounts


def _keys(settings: Ssh, account: pwd.struct_passwd) -> tuple[list[str], list[str]]:
    """The keys for *account*, and what is wrong with others.

    Files are copied: mounted ones have any owner and mode, and sshd would pass them over in silence.
    """
    sources = [("SSH_PUBLIC_KEY", settings.keys)]
    for path in (MOUNTED, Path(account.pw_dir, ".ssh/authorized_keys")):
        try:
            sources.append((str(path), path.read_text("utf-8", "replace")))
        except OSError:
            continue
    good, wrong = [], []
    for where, text in sources:
        if "PRIVATE KEY-----" in text:
            wrong.append(
                f"{where} holds a private key: keep it to yourself, and hand over the .pub beside it"
            )
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if _is_key(line):
                good.append(line.strip())
            else:
                wrong.append(f"{where}, line {number}: no public key of OpenSSH")
    return list(dict.fromkeys(good)), wrong


def _is_key(line: str) -> bool:
    argv = [KEYGEN, "-l", "-f", "-"]
    told = os.fsencode(f"{line}\n")
    return subprocess.run(argv, input=told, capture_output=True, check=False).returncode == 0


def _host_keys(kept: Path, used: Path) -> tuple[list[Path], list[str]]:
    """Copies in *used*, as only this user may read them; made in *kept* at the first start.

    A key in a layer would be everybody's key. A broken key is not replaced: clients know the host by it.

    :raises NoSsh: every key is broken.
    """
    used.mkdir(mode=0o700, exist_ok=True)
    keys: list[Path] = []
    notes: list[str] = []
    for kind in KINDS:
        name = f"ssh_host_{kind}_key"
        place = used / name
        if (text := _kept(kept / name)) is not None:
            _write(place, text, 0o600)
            if not _is_private_key(place):
                notes.append(f"{kept / name}: invalid private key; delete it to have a new one made")
                continue
        elif not place.is_file():
            argv = [KEYGEN, "-q", "-t", kind, "-N", "", "-C", "", "-f", str(place)]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            if not _keep(place, kept):
                notes.append(
                    f"host keys last as long as this container: {kept} cannot be written"
                    " (SSH_HOST_KEYS names another folder)"
                )
        keys.append(place)
    if not keys:
        raise NoSsh("; ".join(notes))
    return keys, list(dict.fromkeys(notes))


def _is_private_key(place: Path) -> bool:
    """Whether sshd can use it: a key behind a passphrase is no use to a service."""
    argv = [KEYGEN, "-y", "-P", "", "-f", str(place)]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _kept(key: Path) -> str | None:
    """None where there is none. One that may not be read is an error: clients know the host by it."""
    try:
        return key.read_text("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _keep(key: Path, folder: Path) -> bool:
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
    """What sshd reads first wins, so ours stands before the system's."""
    lines = [
        *(f"Port {port}" for port in settings.ports),
        *(f"HostKey {key}" for key in host_keys),
        "PidFile none",
        "UsePAM no",  # works for users who are not root; sessions take nothing from it
        "PrintMotd no",
        "PrintLastLog no",
        f"AuthorizedKeysFile {allowed}/%u .ssh/authorized_keys",
        # It looks at each folder above, and /tmp is everybody's. Who is not root lets nobody else in.
        *(["StrictModes no"] if os.getuid() else []),
        "Include /etc/ssh/sshd_config",
    ]
    return session.set_env(variables) + "\n".join(lines) + "\n"


def _fingerprint(key: Path) -> str:
    argv = [KEYGEN, "-l", "-f", str(key)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [*done.stdout.split(), "", ""][1]


def _write(path: Path, text: str, mode: int) -> None:
    """Never for a moment with another mode. Variables and comments of keys need not be UTF-8."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(os.fsencode(text))
