"""Reads a folder of smoke reports that are kept beside their keys, as in docs/proofs.

`NAME.pub.pem` is the key of the reports `NAME*`. Whoever fills the folder chooses the keys, so a valid
signature says that a report was not changed since, not who made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchkiln.attest import dsse
from torchkiln.attest.dsse import PublicKey
from torchkiln.errors import ConfigError, KilnError
from torchkiln.model.lock import LockedCell
from torchkiln.model.report import SignedReport
from torchkiln.smoke import attestation
from torchkiln.util.strict_json import read_file

_KEY = ".pub.pem"
_KEY_LIMIT = 1 << 16  # bytes


def reports_in(folder: Path) -> tuple[SignedReport, ...]:
    """The reports of images in *folder*, by name; a signed one is verified if its key is there.

    :raises ConfigError: the folder or a key cannot be read.
    :raises VerificationFailed: a signature is invalid.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", hint="name a folder of smoke reports")
    keys = {path.name.removesuffix(_KEY): _key(path) for path in sorted(folder.glob(f"*{_KEY}"))}
    found = []
    for path in attestation.files(folder):
        try:
            filed = attestation.filed(path)
            filed.signed_report()
        except KilnError:  # not every file in a folder is a report
            continue
        found.append(filed.signed_report([keys[name] for name in _beginning(path.name, keys)]))
    return tuple(signed for signed in found if signed.report.image and not signed.report.project)


def files_of(folder: Path, reports: Sequence[SignedReport]) -> dict[str, bytes]:
    """The files of *reports* in *folder*, and of the keys that signed them, by name.

    :raises ConfigError: one was removed since.
    """
    keys = {path.name.removesuffix(_KEY): path for path in sorted(folder.glob(f"*{_KEY}"))}
    found = {signed.name: attestation.filed(folder / signed.name).data for signed in reports}
    for name in sorted(found):
        for prefix in _beginning(name, keys):
            found[keys[prefix].name] = keys[prefix].read_bytes()
    return found


def _key(path: Path) -> PublicKey:
    try:
        return dsse.public_key(read_file(path, _KEY_LIMIT), where=path.name)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="remove it, or make it readable") from error


def _beginning(name: str, prefixes: Iterable[str]) -> list[str]:
    """The longest of *prefixes* with which *name* begins, if there is one."""
    matches = [prefix for prefix in prefixes if name.startswith(prefix)]
    return [max(matches, key=len)] if matches else []


def same_packages(reports: Sequence[SignedReport], locked: LockedCell) -> bool:
    """Whether the image of *reports*, all of one image, had the packages of *locked*, by name and version.

    The check `lock` measures what is installed; without a report of it the answer is no.
    """
    expected = {wheel.name: wheel.version for wheel in locked.wheels}
    measured = [
        json.loads(finding.measured).get("installed")
        for signed_report in reports
        for finding in signed_report.report.findings
        if finding.id == "lock"
    ]
    return bool(measured) and all(installed == expected for installed in measured)
