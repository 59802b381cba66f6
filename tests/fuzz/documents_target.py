"""Fuzz torchkiln's JSON reader with bytes and changed documents: it must refuse, or agree with other readers.

The other readers are the standard library's and orjson, which is independent (Rust).
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from tests.document_strategies import json_bytes, places
from tests.fuzz.source import Decisions
from torchkiln.attest.dsse import decode
from torchkiln.attest.provenance import origin
from torchkiln.attest.retraction import reason_of
from torchkiln.attest.signers import opened
from torchkiln.attest.sigstore_bundle import BUNDLE_TYPE, certificate
from torchkiln.attest.statement import PAYLOAD_TYPE, parse
from torchkiln.base import artefact
from torchkiln.errors import KilnError, printable
from torchkiln.gate.clearance import decision_of
from torchkiln.locks import file as lock_file
from torchkiln.oci.documents import descriptors, diff_ids
from torchkiln.oci.spelling import wrong_case_keys
from torchkiln.sbom.listed import listed
from torchkiln.smoke import report
from torchkiln.util.places import ROOT
from torchkiln.util.strict_json import json_of

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
_DIGEST = "sha256:" + "a" * 64
_ENTRY = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": _DIGEST, "size": 7}
_STATEMENT = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": "x", "digest": {"sha256": "a" * 64}}],
    "predicateType": "urn:torchkiln:retraction:1",
    "predicate": {"reason": "x", "when": "2026-11-22T17:05:16Z"},
}
_ENVELOPE = {
    "payload": base64.b64encode(json.dumps(_STATEMENT).encode()).decode(),
    "payloadType": PAYLOAD_TYPE,
    "signatures": [{"sig": "AAAA", "keyid": "x"}],
}
_BUNDLE = {
    "mediaType": BUNDLE_TYPE,
    "verificationMaterial": {"publicKey": {"hint": "AAAA"}, "certificate": {"rawBytes": "AAAA"}},
    "dsseEnvelope": _ENVELOPE,
}
_CONFIG = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Env": ["A=b"], "Cmd": ["x"], "Labels": {"a": "b"}, "User": "0"},
    "rootfs": {"type": "layers", "diff_ids": [_DIGEST]},
    "history": [{"created_by": "x"}],
}
_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        1 << 63,
        1 << 64,
        10**30,
        float("inf"),
        float("nan"),
        "",
        "\0",
        "\ud800",
    ),
    *("\x1b[2J", "ü", [], {}, [[]], ["x"], {"a": "b"}, [None], {"Layers": []}, "x" * 500, [0] * 50),
)


@cache
def documents() -> tuple[Any, ...]:
    """Valid documents of every kind that is read from untrusted sources."""
    files = (
        f"images/{TAG}/lock.json",
        "images/base-debian12/base.json",
        "docs/proofs/2.7.1-cuda12.1-debian12-tier0.json",
    )
    index = {"schemaVersion": 2, "manifests": [_ENTRY]}
    manifest = {"schemaVersion": 2, "config": _ENTRY, "layers": [_ENTRY], "subject": _ENTRY}
    sbom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "metadata": {"component": {"type": "container"}},
        "components": [{"name": "x", "version": "1", "purl": "pkg:pypi/x@1"}],
    }
    small = (index, manifest, _CONFIG, _STATEMENT, _ENVELOPE, _BUNDLE, sbom)
    return (*small, *(json.loads((ROOT / file).read_bytes()) for file in files))


READERS: tuple[Callable[[bytes], object], ...] = (
    lock_file.from_json,
    artefact.from_json,
    report.from_json,
    lambda data: decode(data, where="x"),
    lambda data: opened(data, BUNDLE_TYPE, [], where="x"),
    lambda data: certificate(data, where="x"),
    listed,
    lambda data: [reader(parse(data, where="x"), where="x") for reader in (origin, decision_of, reason_of)],
)


def check(data: bytes, _scratch: Path) -> str:
    """The result: "accepted" or "refused"; raises AssertionError if two readers disagree."""
    decisions = Decisions(data)
    return judge(decisions.rest() if decisions.number(3) == 3 else program(decisions))


def judge(data: bytes) -> str:
    """Compare torchkiln's reader with the standard library and orjson."""
    # A lock is a hundred times longer than other documents, so only readers of locks get it.
    for reader in READERS if len(data) < 8192 else READERS[:3]:
        _read_or_refuse(lambda reader=reader: reader(data))  # type: ignore[misc]
    try:
        value = json_of(data)
    except ValueError:
        return "refused"
    same(value, json.loads(data))
    same(value, orjson.loads(data))
    if isinstance(value, dict):
        for key in ("manifests", "layers"):
            _read_or_refuse(lambda key=key: descriptors(Path("x"), key, value))  # type: ignore[misc]
        _read_or_refuse(lambda: diff_ids(Path("x"), value))
        assert all(line == line.strip() for line in wrong_case_keys(value))
    return "accepted"


def _read_or_refuse(read: Callable[[], object]) -> None:
    message = ""
    try:
        read()
    except KilnError as error:
        message = error.message
    assert message == printable(message)
    assert len(message) < 200_000


def same(ours: Any, theirs: Any) -> None:
    """Require equal values and types: 1 is neither true nor 1.0."""
    pairs = [(ours, theirs)]
    while pairs:
        left, right = pairs.pop()
        assert type(left) is type(right), (left, right)
        if isinstance(left, dict):
            assert list(left) == list(right)
            pairs += zip(left.values(), right.values(), strict=True)
        elif isinstance(left, list):
            pairs += zip(left, right, strict=True)
        else:
            assert left == right, (left, right)


def program(decisions: Decisions) -> bytes:
    """A valid document with up to four changes, and possibly some changed bytes."""
    changed = copy.deepcopy(decisions.choice(documents()))
    for _ in range(1 + decisions.number(3)):
        there = list(places(changed))
        if not there:
            break
        owner, key = decisions.choice(there)
        change = decisions.number(3)
        if change == 0:
            del owner[key]
        elif change == 1:
            owner[key] = copy.deepcopy(decisions.choice(_ODD))
        elif change == 2 and isinstance(owner, dict):
            owner[key.swapcase()] = owner[key]
        else:
            owner[key] = [owner[key]]
    data = json_bytes(changed)
    if decisions.number(3) == 3 and data:
        at = decisions.number(len(data))
        data = data[:at] + decisions.take(decisions.number(6)) + data[at + decisions.number(4) :]
    return data


def corpus(_scratch: Path) -> list[bytes]:
    """Raw JSON of each kind of value, and a few inputs for `program`."""
    raw = [
        b'{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"]}',
        b"[1e999]",
        b'{"a": 1, "a": 2}',
        b"[[[[]]]]",
    ]
    raw += [json_bytes(document) for document in documents()[:7]]
    return [b"\x03" + item for item in raw] + [bytes(range(n, n + 40)) for n in range(0, 200, 10)]
