"""`verify` accepts no statement about another image and no statement in another format."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.keys import ED, P256, UNKNOWN_KEY
from tests.published import KIND, Scene, a_built_publisher, a_scene_with_referrers, a_server
from tests.reports import OTHER, TAG
from torchkiln.attest.dsse import fingerprint, pae, sign
from torchkiln.attest.provenance import PROVENANCE, provenance
from torchkiln.attest.signers import ByKey, bundled
from torchkiln.attest.statement import PAYLOAD_TYPE, payload, statement
from torchkiln.gate.clearance import CLEARANCE
from torchkiln.smoke.attestation import attest

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server"]

SIGNATURE = "https://sigstore.dev/cosign/sign/v1"
SMOKE = "urn:torchkiln:smoke-report:2"
Json = dict[str, Any]


def document(scene: Scene, kind: str) -> dict[str, Any]:
    return dict(json.loads(base64.b64decode(scene.bundle(kind)["dsseEnvelope"]["payload"])))


def resealed(content: bytes, *, as_type: str = PAYLOAD_TYPE, key: Any = P256, kind: str = SIGNATURE) -> bytes:
    """A bundle with *content* as a statement that *key* signed."""
    return bundled(sign(as_type, content, key), fingerprint(key.public_key()), kind).data


def twice(content: dict[str, Any], key: str, value: Any) -> bytes:
    """*content* as JSON, in which *key* occurs twice; the second time, it has the value *value*."""
    text = json.dumps(content)
    return (text[:-1] + f", {json.dumps(key)}: {json.dumps(value)}}}").encode()


def subject(digest: str) -> dict[str, Any]:
    return {"name": TAG, "digest": {"sha256": digest.removeprefix("sha256:")}}


def changed(**fields: Any) -> Callable[[Json], bytes]:
    """The statement with other *fields*."""
    return lambda made: json.dumps({**made, **fields}).encode()


FORMS: dict[str, Callable[[Json], bytes]] = {
    "two subjects": lambda made: changed(subject=[*made["subject"], subject(OTHER)])(made),
    "no subject": changed(subject=[]),
    "another image": changed(subject=[subject(OTHER)]),
    "a subject by SHA-512 alone": changed(subject=[{"name": TAG, "digest": {"sha512": "a" * 128}}]),
    "a digest in capitals": lambda made: changed(
        subject=[{"name": TAG, "digest": {"sha256": made["subject"][0]["digest"]["sha256"].upper()}}]
    )(made),
    "version 0.1 of in-toto": changed(_type="https://in-toto.io/Statement/v0.1"),
    "a _type with a slash": changed(_type="https://in-toto.io/Statement/v1/"),
    "no _type": lambda made: json.dumps({key: made[key] for key in made if key != "_type"}).encode(),
    "subject twice": lambda made: twice(made, "subject", [subject(OTHER)]),
    "predicateType twice": lambda made: twice(made, "predicateType", "urn:x"),
    "predicate twice": lambda made: twice(made, "predicate", {}),
    "another predicateType": changed(predicateType="urn:x"),
    "a list": lambda made: json.dumps([made]).encode(),
    "two documents": lambda made: json.dumps(made).encode() * 2,
}


@pytest.mark.parametrize(
    ("kind", "form"),
    [*((SIGNATURE, form) for form in FORMS), (PROVENANCE, "another image"), (CLEARANCE, "another image")],
)
def test_a_statement_in_another_format(scene: Scene, form: str, kind: str) -> None:
    """It is ignored even if the publisher signed it, so that a required statement is missing."""
    scene.publish()
    forged = FORMS[form](document(scene, kind))
    data = forged if isinstance(forged, bytes) else json.dumps(forged).encode()
    scene.replace(kind, resealed(data, kind=kind))

    content = scene.refused()
    assert re.search("not signed by a trusted key|no trusted|not this image", content), content


def test_a_signature_of_only_the_payload(scene: Scene) -> None:
    """It does not cover DSSE's pre-authentication encoding (PAE), which contains the payload type."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    scene.publish()
    content = json.dumps(document(scene, SIGNATURE)).encode()
    bundle = json.loads(resealed(content))
    sig = P256.sign(content, ec.ECDSA(SHA256()))
    assert pae(PAYLOAD_TYPE, content) != content
    bundle["dsseEnvelope"]["signatures"] = [{"sig": base64.b64encode(sig).decode()}]
    scene.replace(SIGNATURE, json.dumps(bundle).encode())

    assert "not signed by a trusted key" in scene.refused()


def other_lock(scene: Scene) -> Any:
    from torchkiln.locks.lock import load_locked

    scene.publisher.build("2")
    return load_locked(scene.publisher.folder / "images", TAG)


def test_two_provenances_that_name_different_locks(scene: Scene) -> None:
    """Neither is used, because only the registry determines which one is first."""
    scene.publish()
    content = provenance(other_lock(scene), scene.image.manifest, source=None, builder="urn:x")
    fields = content.content
    fields["buildDefinition"]["internalParameters"]["recipe"] = 1  # its layers are not rebuilt
    alone = dict(scene.there.manifests)
    for said in (content, replace(content, predicate=json.dumps(fields))):
        artifact = ByKey(P256).sign(said)
        scene.there.manifests = dict(alone)
        scene.beside(artifact.kind, artifact.data)

        assert "provenance: 2 statements have different locks" in scene.refused()


def test_two_provenances_of_one_lock(scene: Scene) -> None:
    """This is no fault: the image was published again from another source revision."""
    from torchkiln.attest.provenance import SourceRevision
    from torchkiln.locks.lock import load_locked

    scene.publish()
    locked = load_locked(scene.publisher.folder / "images", TAG)
    source = SourceRevision(revision="a" * 40, changed=False)
    artifact = ByKey(P256).sign(provenance(locked, scene.image.manifest, source=source, builder="urn:y"))
    scene.beside(artifact.kind, artifact.data)

    assert scene.verify().exit_code == 0


def test_a_provenance_whose_lock_does_not_match_its_digest(scene: Scene) -> None:
    scene.publish()
    fields = document(scene, PROVENANCE)["predicate"]
    lock = next(
        statement_json
        for statement_json in fields["buildDefinition"]["resolvedDependencies"]
        if statement_json["name"] == "lock.json"
    )
    lock["content"] = base64.b64encode(base64.b64decode(lock["content"]) + b"\n").decode()
    scene.replace(PROVENANCE, ByKey(P256).sign(statement(TAG, scene.image.manifest, PROVENANCE, fields)).data)

    assert "checksum mismatch of the embedded lock" in scene.refused()


def test_a_replayed_statement_of_another_image(scene: Scene) -> None:
    """A signed statement of another image is attached to this image. Each kind of statement is tested."""
    scene.publish()
    first = scene.image
    scene.image = scene.publisher.build("2")
    report = scene.publisher.signed(scene.publisher.report(scene.image))
    assert scene.publisher.publish(scene.target, "--report", report, "--dated", "20261123").exit_code == 0
    attached = [
        content
        for name, data in scene.there.manifests.items()
        if ":" in name
        if (content := json.loads(data)).get("subject", {}).get("digest") == scene.image.manifest
    ]
    scene.image = first
    both = dict(scene.there.manifests)
    for kind in (SIGNATURE, CLEARANCE, PROVENANCE, SMOKE):
        replayed = [
            scene.there.blobs[content["layers"][0]["digest"]]
            for content in attached
            if content["annotations"].get(KIND) == kind
        ]
        assert replayed
        scene.there.manifests = dict(both)
        scene.beside("application/vnd.dev.sigstore.bundle.v0.3+json", *replayed)
        words = (*scene.publisher.keys, "--suite", str(scene.publisher.suite))
        done = scene.publisher.run("verify", f"{scene.target}@{first.manifest}", *words)

        assert getattr(done.exception, "exit_code", None) == 12
        assert "not this image" in str(done.exception)


@pytest.mark.parametrize("when", ["2999-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_report_with_a_future_date(scene: Scene, when: str) -> None:
    """A report with a future date would never be too old."""
    scene.publish()
    forged = attest(scene.publisher.report(scene.image, when=when), ED)
    scene.replace(SMOKE, bundled(forged, fingerprint(ED.public_key()), SMOKE).data)

    assert f"ran at {when}, which is in the future" in scene.refused()


NO_SUITE = "sha256:" + "0" * 64
FAILED = [{"what": "cuda", "why": "failed"}]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"override": "because"}, "published with --override: because"),
        ({"override": None, "missing": FAILED}, "it clears an image although checks are missing"),
        ({"override": "", "missing": FAILED}, "it clears an image although checks are missing"),
        # the attached report was made by another suite than the decision states, so it does not count
        ({"suite": NO_SUITE}, "was made by another suite"),
        # a suite with fewer checks does not lower the policy
        (
            {"suite": NO_SUITE, "checks": [{"check": "import", "tier": 0}]},
            "it requires the check nccl-all-reduce, which the suite does not have",
        ),
    ],
)
def test_a_signed_decision_that_clears_nothing(scene: Scene, change: dict[str, Any], fault: str) -> None:
    scene.publish()
    fields = document(scene, CLEARANCE)["predicate"] | change
    scene.replace(CLEARANCE, ByKey(P256).sign(statement(TAG, scene.image.manifest, CLEARANCE, fields)).data)

    assert fault in scene.refused()


def test_a_suite_in_the_decision_of_an_unknown_key(scene: Scene) -> None:
    scene.publish()
    fields = document(scene, CLEARANCE)["predicate"] | {"suite": NO_SUITE, "checks": []}
    artifact = ByKey(UNKNOWN_KEY).sign(statement(TAG, scene.image.manifest, CLEARANCE, fields))
    scene.beside(artifact.kind, artifact.data)

    assert scene.verify().exit_code == 0
    scene.replace(CLEARANCE, artifact.data)
    assert "no trusted decision of the gate found" in scene.refused()


def test_an_unsigned_statement_beside_signed_ones(scene: Scene) -> None:
    """BuildKit, for example, attaches in-toto statements without a signature."""
    scene.publish()
    content = statement(TAG, scene.image.manifest, PROVENANCE, {"buildDefinition": {}})
    scene.beside(PAYLOAD_TYPE, payload(content))

    assert scene.counted().endswith("; 1 by others ignored")


def test_a_statement_of_another_image_by_an_unknown_key_is_ignored(scene: Scene) -> None:
    """Otherwise anyone with write access could make any image fail."""
    scene.publish()
    artifact = ByKey(UNKNOWN_KEY).sign(statement(TAG, OTHER, SIGNATURE, {}))
    scene.beside(artifact.kind, artifact.data)

    assert scene.counted().endswith("; 1 by others ignored")
