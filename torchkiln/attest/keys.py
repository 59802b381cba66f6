"""Reads keys from PEM files, and says in which roles they are trusted.

A laboratory runs the checks and signs smoke reports. A publisher signs everything else that goes with an
image: signature, provenance, SBOM, the gate's decision, names, retraction. A key counts only in its roles.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.attest import dsse
from torchkiln.attest.dsse import PrivateKey, PublicKey, fingerprint
from torchkiln.errors import ConfigError
from torchkiln.matrix.policy import Policy
from torchkiln.model.report import Role
from torchkiln.util.strict_json import read_with_mode

_PEM = 64 << 10  # maximum bytes of a file; a key has a few hundred
_REPORT = "urn:torchkiln:smoke-report:"  # the predicate type without its version


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyInRole:
    key: PublicKey
    roles: tuple[Role, ...]

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignerIdentity:
    """The identity of a keyless signer, as Fulcio writes it into certificates."""

    identity: str  # "https://git.example/team/repo/.github/workflows/publish.yml@refs/heads/main"
    issuer: str  # "https://token.actions.githubusercontent.com"
    roles: tuple[Role, ...]  # in which it is trusted


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedKey:
    """The file of a public key, and the roles in which it is trusted."""

    path: Path
    roles: tuple[Role, ...]


def private_key(path: Path) -> PrivateKey:
    """The key in *path*; removes its passphrase from the environment, so that child processes do not get it.

    The mode and the content are read from the same open file, which cannot be replaced in between.

    :raises ConfigError: it is not a private key, or other users may read it.
    """
    data, mode = _pem(path)
    if mode & 0o077:
        raise ConfigError(
            f"{path}: permissions {stat.S_IMODE(mode):04o} for the private key are too open",
            hint=f"run: chmod 600 {path}; if another user could have read it, generate a new key",
        )
    passphrase = os.environ.pop(dsse.PASSPHRASE, "")
    return dsse.private_key(data, passphrase or None, where=str(path))


def public_keys(named: Sequence[NamedKey]) -> list[KeyInRole]:
    """The keys in the files, each read once."""
    return [
        KeyInRole(key=dsse.public_key(_pem(file.path)[0], where=str(file.path)), roles=file.roles)
        for file in named
    ]


def policy_keys(policy: Policy, file: Path, say: Callable[[str], None]) -> tuple[KeyInRole, ...]:
    """The valid keys of *policy* in the matrix *file*; *say* gets a line for each expired one.

    :raises ConfigError: the file of a key does not exist, or is not a key.
    """
    today = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    expired = [key for key in policy.keys if key.until and key.until < today]
    valid = [
        NamedKey(path=file.parent / key.file, roles=key.roles) for key in policy.keys if key not in expired
    ]
    found = public_keys(valid)
    for key in expired:
        say(f"{key.file}: the key expired on {key.until}: its signatures do not count")
    return tuple(found)


def _pem(path: Path) -> tuple[bytes, int]:
    try:
        return read_with_mode(path, _PEM)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a key file in PEM format") from None


def role_of(kind: str) -> Role:
    """The role that may sign statements of this *kind*, a predicate type."""
    return "laboratory" if kind.startswith(_REPORT) else "publisher"


def keys_for(role: Role, keys: Iterable[KeyInRole]) -> tuple[PublicKey, ...]:
    """The keys whose signatures count in that *role*."""
    return tuple(trusted.key for trusted in keys if role in trusted.roles)
