"""The roles in which keys are trusted: which role may sign which predicate type.

A laboratory runs the checks and signs smoke reports. A publisher signs everything else that goes with an
image: signature, provenance, SBOM, the gate's decision, names, retraction. A key counts only in its roles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchkiln.attest.dsse import PublicKey, fingerprint
from torchkiln.model.roles import ROLES, Role

_REPORT = "urn:torchkiln:smoke-report:"  # the predicate type without its version


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyInRole:
    """A public key, and the roles in which it is trusted."""

    key: PublicKey
    roles: tuple[Role, ...] = ROLES

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key."""
        return fingerprint(self.key)


def role_of(kind: str) -> Role:
    """The role that may sign statements of this *kind*, a predicate type."""
    return "laboratory" if kind.startswith(_REPORT) else "publisher"


def keys_for(role: Role, keys: Iterable[KeyInRole]) -> tuple[PublicKey, ...]:
    """The keys whose signatures count in that *role*."""
    return tuple(trusted.key for trusted in keys if role in trusted.roles)


def role_named(text: str) -> tuple[tuple[Role, ...], str]:
    """Split `ROLE=FILE` into roles and file; all roles if *text* names none.

    >>> role_named("laboratory=lab.pem")
    (('laboratory',), 'lab.pem')
    >>> role_named("lab.pem")
    (('publisher', 'laboratory'), 'lab.pem')
    """
    before, equals, rest = text.partition("=")
    if equals and before in ROLES:
        return (before,), rest
    return ROLES, text
