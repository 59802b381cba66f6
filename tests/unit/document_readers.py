"""All readers of untrusted documents, each with a sound document and the error that it raises for others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import sboms
from tests.arranged_documents import TAG
from tests.document_strategies import json_bytes
from tests.keys import P256
from tests.oci_samples import digest
from tests.planned import FACTS
from tests.reports import IMAGE, LOCKED, SUITE, WHEN, report, signed_report
from torchkiln.attest.dsse import decode, sign
from torchkiln.attest.keys import KeyInRole
from torchkiln.attest.provenance import origin, provenance
from torchkiln.attest.publication import publication, published_names, reason_of, retraction
from torchkiln.attest.signers import Trust, bundled
from torchkiln.attest.sigstore_bundle import BUNDLE_TYPE, certificate
from torchkiln.attest.statement import PAYLOAD_TYPE, Statement, parse, payload
from torchkiln.base import archive, artefact, effects
from torchkiln.errors import ConfigError, KilnError, Stale, VerificationFailed
from torchkiln.gate.clearance import clearance, decision_of
from torchkiln.gate.gate import clear, judge
from torchkiln.locks import file as lock_file
from torchkiln.matrix import cuda_redist, matrix, mirrors
from torchkiln.matrix.policy import Policy
from torchkiln.model.lock import LockedBase, LockedTools
from torchkiln.oci.documents import descriptors, diff_ids, read_document
from torchkiln.registry.credentials import find_login
from torchkiln.registry.reading import Document
from torchkiln.registry.reference import Repository
from torchkiln.sbom.cyclonedx import cyclonedx, sbom_statement
from torchkiln.sbom.listed import listed
from torchkiln.smoke import report as smoke_report
from torchkiln.smoke.attestation import report_of, statement_of
from torchkiln.util.places import ROOT


@dataclass(frozen=True, kw_only=True)
class DocumentReader:
    """A reader of documents of one kind.

    :ivar sound: a document that it reads.
    :ivar refusal: what it raises for any other; all are errors with a message for users, but `ValueError`.
    :ivar strict: whether it refuses an unknown key at the top.
    """

    sound: bytes
    read: Callable[[bytes], object]
    refusal: type[Exception] = VerificationFailed
    strict: bool = False
    yaml: bool = False


def _from_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """*read* of a file with the given bytes."""

    def read_bytes(data: bytes) -> object:
        with TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(data)
            return read(Path(folder) / name)

    return read_bytes


def _statement(
    made: Statement, read: Callable[..., object], refusal: type[Exception] = VerificationFailed
) -> DocumentReader:
    return DocumentReader(
        sound=payload(made), read=lambda data: read(parse(data, where="x"), where="x"), refusal=refusal
    )


def _layout(document: Any, use: Callable[[Path, Any], object]) -> DocumentReader:
    """A document of an OCI layout; *use* reads its parts."""

    def read(path: Path) -> object:
        return use(path, read_document(path))

    return DocumentReader(sound=json_bytes(document), read=_from_file(read, "blob"))


def _manifest(data: bytes) -> object:
    return Document(digest=IMAGE, media_type="x", data=data).json


_ENTRY = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(b"a"), "size": 7}
_CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["A=b"], "Cmd": ["x"], "Labels": {"a": "b"}, "User": "0"},
    "rootfs": {"type": "layers", "diff_ids": [digest(b"a")]},
    "history": [{"created_by": "x"}],
}
_ENVELOPE = sign(PAYLOAD_TYPE, payload(statement_of(report())), P256)
_TRUSTED = KeyInRole(key=P256.public_key(), roles=("publisher",))
_BUNDLE = bundled(_ENVELOPE, None, "urn:x").data
_REDIST = (
    'schema: 1\nsource: "a file for tests"\nuntrusted: true\nreleases:\n  "12.1.1":\n'
    f'    cuda_nvcc: {{version: "12.1.105", size: 7, sha256: "{"a" * 64}"}}\n'
)
_EFFECT = effects.Effects(
    form="layer",
    blob=IMAGE,
    epoch=7,
    dpkg_options=(),
    merged=("bin=usr/bin",),
    removed=("b",),
    changed=(effects.Effect(path="a", text="x"),),
)
_LOGINS = {"auths": {"registry.example": {"username": "kim", "password": "x"}}}


READERS: Mapping[str, DocumentReader] = {
    "lock": DocumentReader(
        sound=(ROOT / "images" / TAG / "lock.json").read_bytes(),
        read=lock_file.from_json,
        refusal=Stale,
        strict=True,
    ),
    "base": DocumentReader(
        sound=artefact.to_json(LOCKED.base),
        read=lambda data: artefact.from_json(data, LockedBase),
        refusal=ConfigError,
        strict=True,
    ),
    "tools": DocumentReader(
        sound=(ROOT / "images/base-debian12/devel.json").read_bytes(),
        read=lambda data: artefact.from_json(data, LockedTools),
        refusal=ConfigError,
        strict=True,
    ),
    "files of a base": DocumentReader(
        sound=archive.to_json(sboms.files(sboms.locked())),
        read=archive.from_json,
        refusal=ConfigError,
        strict=True,
    ),
    "effects": DocumentReader(
        sound=json_bytes(effects.document(_EFFECT)),
        read=lambda data: effects.from_bytes(effects.encode_bytes(data)[0], "x"),
        refusal=ValueError,
        strict=True,
    ),
    "report": DocumentReader(
        sound=smoke_report.to_json(report()), read=smoke_report.from_json, refusal=ConfigError, strict=True
    ),
    "SBOM": DocumentReader(sound=cyclonedx(sboms.bill()), read=listed),
    "provenance": _statement(provenance(LOCKED, IMAGE, source=None, builder="urn:x"), origin),
    "decision": _statement(
        clearance(clear(judge([signed_report(report())], Policy(), LOCKED, SUITE, image=IMAGE))), decision_of
    ),
    "retraction": _statement(retraction(TAG, IMAGE, reason="x", when=WHEN), reason_of),
    "names": _statement(publication(TAG, IMAGE, ["v1"]), published_names),
    "signed report": _statement(statement_of(report()), report_of, KilnError),
    "signed SBOM": _statement(
        sbom_statement(sboms.bill()), lambda one, where: listed(one.predicate.encode(), where=where)
    ),
    "envelope": DocumentReader(sound=_ENVELOPE, read=lambda data: decode(data, where="x")),
    "bundle": DocumentReader(
        sound=_BUNDLE,
        read=lambda data: Trust(keys=(_TRUSTED,)).open(data, BUNDLE_TYPE, where="x"),
    ),
    "certificate in a bundle": DocumentReader(
        sound=json_bytes(
            {**json.loads(_BUNDLE), "verificationMaterial": {"certificate": {"rawBytes": "AAAA"}}}
        ),
        read=lambda data: certificate(data, where="x"),
    ),
    "unsigned statement": DocumentReader(
        sound=payload(statement_of(report())), read=lambda data: Trust().open(data, PAYLOAD_TYPE, where="x")
    ),
    "index of a layout": _layout(
        {"schemaVersion": 2, "manifests": [_ENTRY]}, lambda path, it: descriptors(path, "manifests", it)
    ),
    "manifest": _layout(
        {"schemaVersion": 2, "config": _ENTRY, "layers": [_ENTRY], "subject": _ENTRY},
        lambda path, it: descriptors(path, "layers", it),
    ),
    "config": _layout(_CONFIG, diff_ids),
    "manifest of a registry": DocumentReader(sound=json_bytes({"schemaVersion": 2}), read=_manifest),
    "logins": DocumentReader(
        sound=json_bytes(_LOGINS),
        read=_from_file(
            lambda path: find_login(
                Repository(host="registry.example", name="a"), {"DOCKER_CONFIG": str(path.parent)}
            ),
            "config.json",
        ),
        refusal=ConfigError,
    ),
    "matrix": DocumentReader(
        sound=(ROOT / "matrix.yaml").read_bytes(),
        read=_from_file(lambda path: matrix.read(path, FACTS), "matrix.yaml"),
        refusal=ConfigError,
        strict=True,
        yaml=True,
    ),
    "facts of NVIDIA's archives": DocumentReader(
        sound=_REDIST.encode(),
        read=lambda data: cuda_redist.parse(data, name="x"),
        refusal=ConfigError,
        strict=True,
        yaml=True,
    ),
    "mirrors": DocumentReader(
        sound=(ROOT / "torchkiln/data/mirrors.yaml").read_bytes(),
        read=lambda data: mirrors.parse(data, name="x"),
        refusal=ConfigError,
        strict=True,
        yaml=True,
    ),
}


def value_of(reader: DocumentReader) -> Any:
    """The value in the sound document of a reader of JSON."""
    return json.loads(reader.sound)
