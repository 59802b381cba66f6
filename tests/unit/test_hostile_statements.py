"""Changed or oversized statements, envelopes and bundles are read, or refused with a message."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import peak
from tests.document_strategies import FEW, VALUES, answer, json_bytes, mutated, spoiled
from tests.keys import P256
from tests.published import Scene, a_built_publisher, a_copied_publisher
from tests.publisher import Publisher
from tests.reports import report
from tests.servers.registry_server import RegistryServer
from tests.unit.document_readers import READERS, value_of
from torchkiln.attest.dsse import BUNDLE_TYPE, decode, private_key, public_key
from torchkiln.attest.keys import KeyInRole
from torchkiln.attest.provenance import origin
from torchkiln.attest.signers import Trust
from torchkiln.attest.statement import PAYLOAD_TYPE, parse
from torchkiln.errors import KilnError, VerificationFailed
from torchkiln.smoke.attestation import statement_of
from torchkiln.util.places import ROOT

__all__ = ["a_built_publisher", "a_copied_publisher"]


@given(data=st.data())
@FEW
def test_a_bundle_with_one_change_has_the_signed_content(data: st.DataObject) -> None:
    """Or no valid signature."""
    true = READERS["bundle"].sound
    changed = data.draw(
        mutated(json.loads(true)).map(json_bytes) | spoiled(true) | VALUES.map(json_bytes) | st.binary()
    )
    trust = Trust(keys=(KeyInRole(key=P256.public_key(), roles=("publisher",)),))
    found = answer(lambda: trust.open(changed, BUNDLE_TYPE, where="x"))
    if found is not None and found.signers:
        assert found.statement == statement_of(report())


# --- fixed cases --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signatures": [{"sig": "AAAA"}] * 100_000}, "100000 entries; at most 16 are allowed"),
        ({"signatures": []}, "must not be empty"),
        ({"signatures": [{"sig": ["AAAA"]}]}, "must be text"),
        ({"signatures": [{"sig": "AAAA", "keyid": {}}]}, "must be text"),
        ({"payload": "%%%"}, "base64"),
        ({"payload": "ü"}, "base64"),
        ({"payload": "A"}, "base64"),
        ({"payload": 7}, "must be text"),
        ({"payloadType": ["x"]}, "must be text"),
        ({"payload": None}, "must be text"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_envelopes(change: dict[str, Any], message: str) -> None:
    envelope = {**value_of(READERS["envelope"]), **change}
    with pytest.raises(VerificationFailed, match=message):
        decode(json_bytes(envelope), where="x")


def test_a_lock_in_a_provenance_that_is_not_ascii() -> None:
    """For such a text, the base64 module raises a different exception than for other invalid texts."""
    document = value_of(READERS["provenance"])
    document["predicate"]["buildDefinition"]["resolvedDependencies"][0]["content"] = "ü"
    with pytest.raises(VerificationFailed, match="no lock, or no builder"):
        origin(parse(json_bytes(document), where="x"), where="x")


PEMS = (
    b"",
    b"\0" * 1000,
    b"-----BEGIN PUBLIC KEY-----\n",
    b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 60_000 + b"\n-----END PUBLIC KEY-----\n",
    b"-----BEGIN PUBLIC KEY-----\n\xff\xfe\n-----END PUBLIC KEY-----\n",
    b"-----BEGIN PUBLIC KEY-----\n" * 2000,
    b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    b"-----BEGIN RSA PUBLIC KEY-----\nMAA=\n-----END RSA PUBLIC KEY-----\n",
    b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n",
    b"-----BEGIN EC PRIVATE KEY-----\nMAA=\n-----END EC PRIVATE KEY-----\n",
)


@pytest.mark.parametrize("pem", PEMS, ids=lambda pem: repr(pem[:40]))
def test_invalid_keys(pem: bytes) -> None:
    for load in (public_key, lambda data, where: private_key(data, None, where=where)):
        with pytest.raises(KilnError) as error:
            load(pem, where="key.pem")
        assert error.value.exit_code == 2
        assert len(error.value.message) < 500


@given(data=st.binary(max_size=100).map(lambda one: base64.encodebytes(one)))
@FEW
def test_keys_of_any_bytes(data: bytes) -> None:
    for kind in (b"PUBLIC KEY", b"PRIVATE KEY", b"EC PRIVATE KEY", b"ENCRYPTED PRIVATE KEY"):
        pem = b"-----BEGIN " + kind + b"-----\n" + data + b"-----END " + kind + b"-----\n"
        answer(lambda pem=pem: public_key(pem, where="x"))
        answer(lambda pem=pem: private_key(pem, None, where="x"))


PREDICATES = {
    "empty lists": lambda size: b"[" + b"[]," * (size // 3) + b"[]]",
    "empty mappings": lambda size: b"[" + b"{}," * (size // 3) + b"{}]",
    "short strings": lambda size: b'["' + b'","'.join(b"%x" % n for n in range(size // 9)) + b'"]',
    "many keys": lambda size: b"{" + b",".join(b'"%x":0' % n for n in range(size // 10)) + b"}",
    "four-byte characters": lambda size: json.dumps("\U0001f600" * (size // 4), ensure_ascii=False).encode(),
}


@pytest.fixture(name="scene")
def a_scene(publisher: Publisher) -> Iterator[Scene]:
    """A registry with the referrers API only: the fallback tag would list the same statements again."""
    with RegistryServer() as server:
        server.behaviour.lists_referrers = True
        yield Scene(publisher, server)


@pytest.mark.parametrize("what", PREDICATES)
@pytest.mark.proof
def test_large_statements(scene: Scene, what: str) -> None:
    """No key is trusted here, so all statements are kept in memory."""
    scene.publish()
    subject = [{"name": "", "digest": {"sha256": scene.image.manifest.removeprefix("sha256:")}}]
    head = json.dumps({"_type": "https://in-toto.io/Statement/v1", "subject": subject})[:-1].encode()
    for number in range(2):
        kind = b', "predicateType": "urn:x:%d", "predicate": ' % number
        scene.beside(PAYLOAD_TYPE, head + kind + PREDICATES[what](7 << 20) + b"}")
    words = ("verify", f"{scene.target}@{scene.image.manifest}", "--suite", str(scene.publisher.suite))
    done = peak.run(*words, folder=ROOT, env=scene.publisher.environ)
    assert done.code == 0, done.err[-2000:]
    assert done.peak < peak.LIMIT


def test_more_statements_than_the_limit(scene: Scene) -> None:
    """The image is refused, because one of the unread statements could be a retraction."""
    scene.publish()
    for number in range(6):
        scene.beside(PAYLOAD_TYPE, b"%d" % number + b" " * (6 << 20))

    done = scene.verify()
    assert getattr(done.exception, "exit_code", None) == 12
    assert "more than the limit of 33554432" in str(done.exception)


def test_a_statement_over_the_size_limit(scene: Scene) -> None:
    scene.publish()
    scene.beside(PAYLOAD_TYPE, b" " * (9 << 20))

    assert "longer than 8388608 bytes" in scene.refused()
