"""SmokeReport, key -> signed statement; a report's file -> Witness: the report and whose signature it bears.

The statement is in-toto's, version 1: its subject is the image's digest, its predicate the whole report. What
is judged afterwards comes out of the signed bytes, never out of the file that lies beside them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.nouns import SmokeReport, Witness
from torchkiln.report import LIMIT, SCHEMA, document, from_document, from_json
from torchkiln.schema import sentences
from torchkiln.signature import PrivateKey, PublicKey, decode, seal, verify
from torchkiln.strict import json_of, read_file

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = f"urn:torchkiln:smoke-report:{SCHEMA}"
_HINT = "get the file again from where it was made; do not use this one"
_STATEMENT: dict[str, Any] = {
    "type": "object",
    "required": ["_type", "subject", "predicateType", "predicate"],
    "properties": {
        "_type": {"const": STATEMENT},
        "predicateType": {"const": PREDICATE},
        "subject": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["digest"],
                "properties": {"digest": {"type": "object", "required": ["sha256"]}},
            },
        },
    },
}


def attest(report: SmokeReport, key: PrivateKey) -> bytes:
    """The signed statement of *report*, as a file.

    :raises ConfigError: it tells of an environment, so there is no image to make a statement of.
    """
    if report.image is None:
        raise ConfigError(
            "a report of an environment names no image, so there is nothing to sign",
            hint="run the checks in an image: torchkiln smoke TAG",
        )
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": report.tag, "digest": {"sha256": report.image.partition(":")[2]}}],
        "predicateType": PREDICATE,
        "predicate": document(report),
    }
    return seal(PAYLOAD_TYPE, json.dumps(statement, separators=(",", ":")).encode(), key)


def beside(path: Path) -> Path:
    """Where the signed statement of the report *path* lies: report.dsse.json of report.json."""
    return path.with_name(path.name.removesuffix(".json") + ".dsse.json")


def files(folder: Path) -> list[Path]:
    """What in *folder* may be reports: each JSON file, by its signed form where there are both."""
    found = sorted(folder.glob("*.json"))
    return [path for path in found if path.name.endswith(".dsse.json") or not beside(path).exists()]


def read(path: Path, trusted: Sequence[PublicKey] = ()) -> Witness:
    """The report in the file *path*, plain or signed; a plain one's signature is looked for `beside` it.

    Without *trusted* keys nobody's signature is looked at.

    :raises ConfigError: it cannot be read, or is no report.
    :raises VerificationFailed: there is a signature, and it is by none of *trusted*, or of something else.
    """
    data = _data(path)
    if _is_envelope(data):
        report, signers = _opened(data, trusted, path.name)
        return Witness(name=path.name, report=report, signed=True, signers=signers, envelope=data)
    report = from_json(data, where=path.name)
    envelope = beside(path)
    if not envelope.exists():
        return Witness(name=path.name, report=report, signed=False, signers=())
    data = _data(envelope)
    signed, signers = _opened(data, trusted, envelope.name)
    if signed != report:
        raise VerificationFailed(
            f"{path.name}: is not the report that {envelope.name} holds",
            hint=f"one of them is older or was changed; {envelope.name} alone can be given too",
        )
    return Witness(name=path.name, report=signed, signed=True, signers=signers, envelope=data)


def _opened(data: bytes, trusted: Sequence[PublicKey], name: str) -> tuple[SmokeReport, tuple[str, ...]]:
    """First the signature, then the type, then what the payload says."""
    envelope = decode(data, where=name)
    signers = verify(envelope, trusted, where=name) if trusted else ()
    if envelope.payload_type != PAYLOAD_TYPE:
        raise VerificationFailed(
            f"{name}: signed as {envelope.payload_type[:80]!r}, not as {PAYLOAD_TYPE}", hint=_HINT
        )
    try:
        told = json_of(envelope.payload)
    except ValueError as error:
        raise VerificationFailed(f"{name}: payload: {error}", hint=_HINT) from None
    if wrong := sentences(told, _STATEMENT, f"{name}: payload"):
        raise VerificationFailed("\n".join(wrong), hint=_HINT)
    report = from_document(told["predicate"], where=f"{name}: predicate")
    if f"sha256:{told['subject'][0]['digest']['sha256']}" != report.image:
        raise VerificationFailed(f"{name}: its subject is not the image of its report", hint=_HINT)
    return report, signers


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
