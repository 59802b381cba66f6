"""Reads a folder of smoke reports that are kept beside their keys, as in docs/proofs.

`NAME.pub.pem` is the key of the reports `NAME*`. The owner of the folder chooses the keys, so a valid
signature shows that a report was not changed after it was signed, but not who made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchkiln.attest import dsse
from torchkiln.errors import ConfigError, KilnError
from torchkiln.locks.file import LIMIT, from_json, lock_digest
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport
from torchkiln.smoke import attestation
from torchkiln.util.strict_json import read_file, read_given

_KEY = ".pub.pem"
_KEY_LIMIT = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptReport:
    """A report; *files* has the names and bytes of its file, and of the key that verified it."""

    signed: SignedReport
    files: tuple[tuple[str, bytes], ...]


def kept_reports(folder: Path) -> tuple[KeptReport, ...]:
    """The reports on images of cells in *folder*, sorted; a signed report is verified if its key is there.

    :raises ConfigError: the folder or a key cannot be read.
    :raises VerificationFailed: a signature is invalid.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory", hint="name a folder of smoke reports")
    keys = {
        path.name.removesuffix(_KEY): read_given(path, _KEY_LIMIT, hint="remove it, or make it readable")
        for path in sorted(folder.glob(f"*{_KEY}"))
    }
    trusted = {name: dsse.public_key(pem, where=f"{name}{_KEY}") for name, pem in keys.items()}
    found = []
    for path in attestation.files(folder):
        try:
            filed = attestation.filed(path)
            report = filed.signed_report().report
        except KilnError:  # not every file in a folder is a report
            continue
        if report.image is None or report.project:
            continue
        names = _beginning(path.name, keys)
        signed = filed.signed_report([trusted[name] for name in names])
        own = [(f"{name}{_KEY}", keys[name]) for name in names if signed.signers]
        found.append(KeptReport(signed=signed, files=((path.name, filed.data), *own)))
    return tuple(found)


def reports_in(folder: Path) -> tuple[SignedReport, ...]:
    """The reports of `kept_reports`, without the bytes."""
    return tuple(kept.signed for kept in kept_reports(folder))


def _beginning(name: str, prefixes: Iterable[str]) -> list[str]:
    """The longest of *prefixes* with which *name* begins, if there is one."""
    matches = [prefix for prefix in prefixes if name.startswith(prefix)]
    return [max(matches, key=len)] if matches else []


def locks_in(folder: Path) -> dict[Digest, LockedCell]:
    """The locks of earlier images by digest: `NAME.lock.json` beside their reports, without damaged ones."""
    found = {}
    for path in sorted(folder.glob("*.lock.json")):
        with suppress(KilnError, OSError):
            locked = from_json(read_file(path, LIMIT))
            found[lock_digest(locked)] = locked
    return found
