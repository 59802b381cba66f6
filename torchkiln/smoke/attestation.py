"""Sign smoke reports, and read reports with their signatures.

A signed report is an in-toto statement, version 1. Its subject is the image's digest, and its predicate is
the whole report. If there is a signed report, the unsigned file beside it is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.attest.dsse import PrivateKey, PublicKey, decode, sign, verify
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload, statement
from torchkiln.errors import ConfigError, SmokeFailed, VerificationFailed
from torchkiln.model.report import SignedReport, SmokeReport
from torchkiln.smoke.report import LIMIT, SCHEMA, document, from_document, from_json
from torchkiln.smoke.verdict import verdict
from torchkiln.util.strict_json import json_of, read_given

PREDICATE = f"urn:torchkiln:smoke-report:{SCHEMA}"
_HINT = "do not use this file; get the original again"


def statement_of(report: SmokeReport) -> Statement:
    """The in-toto statement about the image of *report*, with *report* as the predicate.

    :raises ConfigError: it is the report of an environment, not of an image.
    """
    if report.image is None or report.tag is None:
        raise ConfigError(
            "cannot sign the report of an environment: it names no image",
            hint="run the checks in an image: torchkiln smoke TAG",
        )
    return statement(report.tag, report.image, PREDICATE, document(report))


def report_of(signed: Statement, *, where: str) -> SmokeReport:
    """The report in *signed*, a statement that `statement_of` made.

    :raises VerificationFailed: *signed* has another predicate type, or its subject is not the report's image.
    :raises ConfigError: its report is invalid.
    """
    if signed.kind != PREDICATE:
        raise VerificationFailed(f"{where}: predicateType: must be {PREDICATE!r}", hint=_HINT)
    report = from_document(signed.content, where=f"{where}: predicate")
    if signed.image != report.image:
        raise VerificationFailed(f"{where}: the subject is not the image of the report", hint=_HINT)
    return report


def attest(report: SmokeReport, key: PrivateKey) -> bytes:
    """The signed statement with *report*, as the content of a file.

    :raises ConfigError: it is the report of an environment, not of an image.
    """
    return sign(PAYLOAD_TYPE, payload(statement_of(report)), key)


def beside(path: Path) -> Path:
    """The path of the signed form of the report *path*: report.dsse.json for report.json."""
    return path.with_name(path.name.removesuffix(".json") + ".dsse.json")


def files(folder: Path) -> list[Path]:
    """The reports in *folder*: the signed form of each, or else its plain JSON file."""
    found = sorted(folder.glob("*.json"))
    return [path for path in found if path.name.endswith(".dsse.json") or not beside(path).exists()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filed:
    """The content of a report's file, and of the signed report beside it."""

    path: Path
    data: bytes = field(repr=False)
    beside: bytes | None = field(repr=False)

    def signed_report(self, trusted: Sequence[PublicKey] = ()) -> SignedReport:
        """The report and its signers; without *trusted* keys, signatures are not verified.

        :raises ConfigError: the report is invalid.
        :raises VerificationFailed: no key in *trusted* made the signature, or it signs other content.
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
                f"{name}: differs from the report in {envelope}",
                hint=f"one of them is older or was changed; pass only {envelope} to use that",
            )
        return SignedReport(name=name, report=signed, signed=True, signers=signers, envelope=self.beside)


def filed(path: Path) -> Filed:
    """Read the report *path*, plain or signed; for a plain report, read the signed form beside it, too.

    :raises ConfigError: it cannot be read.
    """
    data, envelope = _data(path), None
    if not _is_envelope(data) and beside(path).exists():
        envelope = _data(beside(path))
    return Filed(path=path, data=data, beside=envelope)


def read(path: Path, trusted: Sequence[PublicKey] = ()) -> SignedReport:
    """Read the report *path* with its signers.

    :raises ConfigError: it cannot be read, or is invalid.
    :raises VerificationFailed: no key in *trusted* made the signature, or it signs other content.
    """
    return filed(path).signed_report(trusted)


def demand_sound(report: SignedReport, *, signed: bool) -> None:
    """Check that the verdict in *report* follows from its values; with *signed*, that it is signed.

    :raises VerificationFailed: it is not signed.
    :raises SmokeFailed: its values give another verdict.
    """
    if signed and not report.signed:
        raise VerificationFailed(
            f"{report.name} is not signed: {beside(Path(report.name))} not found",
            hint="run the checks again with --key, or read it unverified without --trust",
        )
    stated, computed = report.report.verdict, verdict(report.report.findings)
    if computed != stated:
        raise SmokeFailed(
            f"{report.name}: its verdict is {stated!r}, but its values give {computed!r}",
            hint="the report was changed, or made by another version; run the checks again",
        )


def _opened(data: bytes, trusted: Sequence[PublicKey], name: str) -> tuple[SmokeReport, tuple[str, ...]]:
    """Verify the signature and the payload type, then parse the payload."""
    envelope = decode(data, where=name)
    signers = verify(envelope, trusted, where=name) if trusted else ()
    if envelope.payload_type != PAYLOAD_TYPE:
        raise VerificationFailed(
            f"{name}: payloadType: must be {PAYLOAD_TYPE!r}, not {envelope.payload_type[:80]!r}", hint=_HINT
        )
    return report_of(parse(envelope.payload, where=f"{name}: payload"), where=name), signers


def _is_envelope(data: bytes) -> bool:
    try:
        content = json_of(data)
    except ValueError:
        return False
    return isinstance(content, dict) and "payloadType" in content


def _data(path: Path) -> bytes:
    hint = "pass a file that `torchkiln smoke TAG --report FILE` wrote"
    return read_given(path, 2 * LIMIT, hint=hint)  # a signed report is in base64, which is a third longer
