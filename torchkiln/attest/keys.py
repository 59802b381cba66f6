"""Files of keys in PEM form → keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchkiln.attest import dsse
from torchkiln.attest.dsse import PrivateKey
from torchkiln.attest.roles import KeyInRole
from torchkiln.errors import ConfigError
from torchkiln.matrix.policy import Policy, TrustedKey
from torchkiln.model.roles import Role
from torchkiln.util.strict_json import read_with_mode

_PEM = 64 << 10  # bytes; a key has some hundred


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedKey:
    """The file of a public key, and in which roles it was named."""

    path: Path
    roles: tuple[Role, ...]


def private_key(path: Path) -> PrivateKey:
    """The key in *path*; its pass phrase leaves the environment here, so that no child process has it.

    Mode and bytes are of one opened file: another one under its name would change neither.

    :raises ConfigError: it is none, or others may read it.
    """

    data, mode = _pem(path)
    if mode & 0o077:
        raise ConfigError(
            f"{path}: a private key that others may read (mode {stat.S_IMODE(mode):04o})",
            hint=f"run: chmod 600 {path}; if others may have read it, make a new key",
        )
    passphrase = os.environ.pop(dsse.PASSPHRASE, "")
    return dsse.private_key(data, passphrase or None, where=str(path))


def public_keys(named: Sequence[NamedKey]) -> list[KeyInRole]:
    """The keys in the files, each read once."""
    if not named:
        return []
    return [
        KeyInRole(key=dsse.public_key(_pem(one.path)[0], where=str(one.path)), roles=one.roles)
        for one in named
    ]


def policy_keys(
    policy: Policy, folder: Path, *, today: str
) -> tuple[tuple[KeyInRole, ...], tuple[TrustedKey, ...]]:
    """The keys that *policy* names, and those that have expired, which do not count.

    :param folder: where the policy's file is; the names in it are relative to it.
    :param today: an ISO date.
    :raises ConfigError: a file is not there, or is not a key.
    """
    expired = tuple(one for one in policy.keys if one.until and one.until < today)
    valid = [NamedKey(path=folder / one.file, roles=one.roles) for one in policy.keys if one not in expired]
    return tuple(public_keys(valid)), expired


def _pem(path: Path) -> tuple[bytes, int]:
    """The file's bytes and mode."""

    try:
        return read_with_mode(path, _PEM)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="a key is a file in PEM form") from None
