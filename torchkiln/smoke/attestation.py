"""SmokeReport, key -> signed statement; a report's file -> Witness: the report and whose signature it bears.

The statement is in-toto's, version 1: its subject is the image's digest, its predicate the whole report. What
is judged afterwards comes out of the signed bytes, never out of the file that lies beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.attest.dsse import PrivateKey, PublicKey, decode, seal, verify
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload, statement
from torchkiln.errors import ConfigError, SmokeFailed, VerificationFailed
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.smoke.report import LIMIT, SCHEMA, document, from_document, from_json
from torchkiln.smoke.verdict import verdict
from torchkiln.util.strict_json import json_of, read_file

PREDICATE = f"urn:torchkiln:smoke-report:{SCHEMA}"
_HINT = "get the file again from where it was made; do not use this one"


def told_of(report: SmokeReport) -> Statement:
    """*report* as a statement of its image.

    :raises ConfigError: it tells of an environment, so there is no image to make a statement of.
    """
    if report.image is None or report.tag is None:
        raise ConfigError(
            "a report of an environment names no image, so there is nothing to sign",
            hint="run the checks in an image: torchkiln smoke TAG",
        )
    return statement(report.tag, report.image, PREDICATE, document(report))


def report_of(told: Statement, *, where: str) -> SmokeReport:
    """The inverse of `told_of`.

    :raises VerificationFailed: *told* is of another kind, or of another image than the report in it.
    :raises ConfigError: it holds no report.
    """
    if told.kind != PREDICATE:
        raise VerificationFailed(f"{where}: predicateType: must be {PREDICATE!r}", hint=_HINT)
    report = from_document(told.said, where=f"{where}: predicate")
    if told.image != report.image:
        raise VerificationFailed(f"{where}: its subject is not the image of its report", hint=_HINT)
    return report


def attest(report: SmokeReport, key: PrivateKey) -> bytes:
    """The signed statement of *report*, as a file.

    :raises ConfigError: it tells of an environment, so there is no image to make a statement of.
    """
    return seal(PAYLOAD_TYPE, payload(told_of(report)), key)


def beside(path: Path) -> Path:
    """Where the signed statement of the report *path* lies: report.dsse.json of report.json."""
    return path.with_name(path.name.removesuffix(".json") + ".dsse.json")


def files(folder: Path) -> list[Path]:
    """What in *folder* may be reports: each JSON file, by its signed form where there are both."""
    found = sorted(folder.glob("*.json"))
    return [path for path in found if path.name.endswith(".dsse.json") or not beside(path).exists()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filed:
    """A report's file and the signed form beside it, each read once."""

    path: Path
    data: bytes = field(repr=False)
    beside: bytes | None = field(repr=False)

    def signed_report(self, trusted: Sequence[PublicKey] = ()) -> SignedReport:
        """The report, and whose signature it bears.

        Without *trusted* keys nobody's signature is looked at.

        :raises ConfigError: it is no report.
        :raises VerificationFailed: a signature is by none of *trusted*, or of something else.
        """
        name = self.path.name
        if _is_envelope(self.data):
            report, signers = _opened(self.data, trusted, name)
            return SignedReport(name=name, report=report, signed=True, signers=signers, envelope=self.data)
        report = from_json(self.data, where=name)
        if self.beside is None:
            return SignedReport(name=name, report=report, signed=False, signers=())
        envelope = beside(self.path).name
        signed, signers = _opened(self.beside, trusted, envelope)
        if signed != report:
            raise VerificationFailed(
                f"{name}: is not the report that {envelope} holds",
                hint=f"one of them is older or was changed; {envelope} alone can be given too",
            )
        return SignedReport(name=name, report=signed, signed=True, signers=signers, envelope=self.beside)


def filed(path: Path) -> Filed:
    """The report in the file *path*, plain or signed; a plain one's signature is looked for `beside` it.

    :raises ConfigError: it cannot be read.
    """
    data, envelope = _data(path), None
    if not _is_envelope(data) and beside(path).exists():
        envelope = _data(beside(path))
    return Filed(path=path, data=data, beside=envelope)


def read(path: Path, trusted: Sequence[PublicKey] = ()) -> SignedReport:
    """`filed` and its `signed_report`.

    :raises ConfigError: it cannot be read, or is no report.
    :raises VerificationFailed: there is a signature, and it is by none of *trusted*, or of something else.
    """
    return filed(path).signed_report(trusted)


def demand_sound(report: SignedReport, *, signed: bool) -> None:
    """That *report* states the verdict that its own values give, and bears a signature where that is wanted.

    :raises VerificationFailed: it is not *signed*.
    :raises SmokeFailed: it states another verdict.
    """
    if signed and not report.signed:
        raise VerificationFailed(
            f"{report.name} is not signed: {beside(Path(report.name))} is not beside it",
            hint="run the checks again with --key, or leave --trust out to look at it as it is",
        )
    stated, again = report.report.verdict, verdict(report.report.findings)
    if again != stated:
        raise SmokeFailed(
            f"{report.name} states {stated!r}, and its own values give {again!r}",
            hint="the report was changed, or made by another version: run the checks again",
        )


def _opened(data: bytes, trusted: Sequence[PublicKey], name: str) -> tuple[SmokeReport, tuple[str, ...]]:
    """First the signature, then the type, then what the payload says."""
    envelope = decode(data, where=name)
    signers = verify(envelope, trusted, where=name) if trusted else ()
    if envelope.payload_type != PAYLOAD_TYPE:
        raise VerificationFailed(
            f"{name}: signed as {envelope.payload_type[:80]!r}, not as {PAYLOAD_TYPE}", hint=_HINT
        )
    return report_of(parse(envelope.payload, where=f"{name}: payload"), where=name), signers


def _is_envelope(data: bytes) -> bool:
    try:
        told = json_of(data)
    except ValueError:
        return False
    return isinstance(told, dict) and "payloadType" in told


def _data(path: Path) -> bytes:
    try:
        return read_file(path, 2 * LIMIT)  # base64 is a third longer
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", hint="name what `smoke --report FILE` wrote"
        ) from error
