"""Statements of something else, or in another form: `verify` takes none for what it is not."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.keys import ED, P256, STRANGER
from tests.published import KIND, Scene, a_built_press, a_scene_with_referrers
from tests.reports import OTHER, TAG
from torchkiln.attest.dsse import fingerprint, pae, sign
from torchkiln.attest.provenance import PROVENANCE, provenance
from torchkiln.attest.signers import ByKey, bundled
from torchkiln.attest.statement import PAYLOAD_TYPE, payload, statement
from torchkiln.gate.clearance import CLEARANCE
from torchkiln.smoke.attestation import attest

__all__ = ["a_built_press", "a_scene_with_referrers"]

SIGNATURE = "https://sigstore.dev/cosign/sign/v1"
SMOKE = "urn:torchkiln:smoke-report:2"


def document(scene: Scene, kind: str) -> dict[str, Any]:
    """The signed statement of that *kind*, as it is."""
    return dict(json.loads(base64.b64decode(scene.bundle(kind)["dsseEnvelope"]["payload"])))


def resealed(told: bytes, *, as_type: str = PAYLOAD_TYPE, key: Any = P256, kind: str = SIGNATURE) -> bytes:
    """Any bytes, signed."""
    return bundled(sign(as_type, told, key), fingerprint(key.public_key()), kind).data


def twice(told: dict[str, Any], key: str, value: Any) -> bytes:
    """With *key* a second time."""
    text = json.dumps(told)
    return (text[:-1] + f", {json.dumps(key)}: {json.dumps(value)}}}").encode()


def subject(digest: str) -> dict[str, Any]:
    return {"name": TAG, "digest": {"sha256": digest.removeprefix("sha256:")}}


FORMS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "two subjects": lambda one: json.dumps({**one, "subject": [*one["subject"], subject(OTHER)]}).encode(),
    "no subject": lambda one: json.dumps({**one, "subject": []}).encode(),
    "another image": lambda one: json.dumps({**one, "subject": [subject(OTHER)]}).encode(),
    "a subject by SHA-512 alone": lambda one: json.dumps(
        {**one, "subject": [{"name": TAG, "digest": {"sha512": "a" * 128}}]}
    ).encode(),
    "a digest in capitals": lambda one: (
        json.dumps(one)
        .replace(one["subject"][0]["digest"]["sha256"], one["subject"][0]["digest"]["sha256"].upper())
        .encode()
    ),
    "version 0.1 of in-toto": lambda one: json.dumps(
        {**one, "_type": "https://in-toto.io/Statement/v0.1"}
    ).encode(),
    "a _type with a slash": lambda one: json.dumps(
        {**one, "_type": "https://in-toto.io/Statement/v1/"}
    ).encode(),
    "no _type": lambda one: json.dumps({key: one[key] for key in one if key != "_type"}).encode(),
    "subject twice": lambda one: twice(one, "subject", [subject(OTHER)]),
    "predicateType twice": lambda one: twice(one, "predicateType", "urn:x"),
    "predicate twice": lambda one: twice(one, "predicate", {}),
    "another predicateType": lambda one: json.dumps({**one, "predicateType": "urn:x"}).encode(),
    "a list": lambda one: json.dumps([one]).encode(),
    "two documents": lambda one: json.dumps(one).encode() * 2,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [SIGNATURE, PROVENANCE, CLEARANCE])
def test_a_statement_of_another_form(scene: Scene, form: str, kind: str) -> None:
    """Signed by the publisher: it counts for nothing, so that what it should say is missed."""
    scene.publish()
    lie = FORMS[form](document(scene, kind))
    scene.replace(kind, resealed(lie, kind=kind))

    told = scene.refused()
    assert re.search("not signed by a trusted key|no trusted|not this image", told), told


@pytest.mark.parametrize(
    "as_type", ["application/json", "text/plain", "application/vnd.in-toto+json; v=1", ""]
)
def test_a_payload_that_was_signed_as_something_else(scene: Scene, as_type: str) -> None:
    scene.publish()
    told = json.dumps(document(scene, SIGNATURE)).encode()
    scene.replace(SIGNATURE, resealed(told, as_type=as_type))

    assert "not signed by a trusted key" in scene.refused()


def test_a_payload_type_that_was_written_anew(scene: Scene) -> None:
    """The type is signed with the payload: what was signed as JSON does not become a statement."""
    scene.publish()
    bundle = json.loads(resealed(json.dumps(document(scene, SIGNATURE)).encode(), as_type="application/json"))
    bundle["dsseEnvelope"]["payloadType"] = PAYLOAD_TYPE
    scene.replace(SIGNATURE, json.dumps(bundle).encode())

    assert "not signed by a trusted key" in scene.refused()


def test_a_signature_of_the_payload_alone(scene: Scene) -> None:
    """Not of DSSE's encoding of it."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    scene.publish()
    told = json.dumps(document(scene, SIGNATURE)).encode()
    bundle = json.loads(resealed(told))
    sig = P256.sign(told, ec.ECDSA(SHA256()))
    assert pae(PAYLOAD_TYPE, told) != told
    bundle["dsseEnvelope"]["signatures"] = [{"sig": base64.b64encode(sig).decode()}]
    scene.replace(SIGNATURE, json.dumps(bundle).encode())

    assert "not signed by a trusted key" in scene.refused()


@pytest.mark.parametrize("order", [1, -1])
def test_several_signatures(scene: Scene, order: int) -> None:
    """One by a trusted key is enough; others, good or bad, add and take nothing."""
    scene.publish()
    told = json.dumps(document(scene, SIGNATURE)).encode()
    bundle = json.loads(resealed(told))
    stranger = json.loads(sign(PAYLOAD_TYPE, told, STRANGER))["signatures"]
    nonsense = {"sig": base64.b64encode(b"\0" * 64).decode(), "keyid": fingerprint(ED.public_key())}
    bundle["dsseEnvelope"]["signatures"] = [
        *bundle["dsseEnvelope"]["signatures"],
        *stranger,
        nonsense,
    ][::order]
    scene.replace(SIGNATURE, json.dumps(bundle).encode())
    assert scene.verify().exit_code == 0

    bundle["dsseEnvelope"]["signatures"] = [*stranger, *stranger]
    scene.replace(SIGNATURE, json.dumps(bundle).encode())
    assert "not signed by a trusted key" in scene.refused()


def test_seventeen_signatures(scene: Scene) -> None:
    scene.publish()
    bundle = json.loads(resealed(json.dumps(document(scene, SIGNATURE)).encode()))
    bundle["dsseEnvelope"]["signatures"] *= 17
    scene.replace(SIGNATURE, json.dumps(bundle).encode())

    assert "not signed by a trusted key" in scene.refused()


def test_no_signature(scene: Scene) -> None:
    scene.publish()
    bundle = scene.bundle(SIGNATURE)
    bundle["dsseEnvelope"]["signatures"] = []
    scene.replace(SIGNATURE, json.dumps(bundle).encode())

    assert "not signed by a trusted key" in scene.refused()


def other_lock(scene: Scene) -> Any:
    """The lock of another image of the same cell."""
    from torchkiln.lock.lock import load_locked

    scene.desk.build("2")
    return load_locked(scene.desk.folder / "images", TAG)


@pytest.mark.parametrize("recipe", [None, 1])
def test_two_provenances_that_name_different_locks(scene: Scene, recipe: int | None) -> None:
    """A registry says in which order they come: neither the first nor the last decides."""
    scene.publish()
    told = provenance(other_lock(scene), scene.image.manifest, source=None, builder="urn:x")
    if recipe is not None:  # an older one's layers are not computed again
        said = told.content
        said["buildDefinition"]["internalParameters"]["recipe"] = recipe
        told = replace(told, predicate=json.dumps(said))
    artifact = ByKey(P256).sign(told)
    scene.beside(artifact.kind, artifact.data)

    assert "provenance: 2 statements have different locks" in scene.refused()


def test_two_provenances_of_one_lock(scene: Scene) -> None:
    """Published again by another source: no fault."""
    from torchkiln.attest.provenance import SourceRevision
    from torchkiln.lock.lock import load_locked

    scene.publish()
    locked = load_locked(scene.desk.folder / "images", TAG)
    source = SourceRevision(revision="a" * 40, changed=False)
    artifact = ByKey(P256).sign(provenance(locked, scene.image.manifest, source=source, builder="urn:y"))
    scene.beside(artifact.kind, artifact.data)

    assert scene.verify().exit_code == 0


def test_a_provenance_whose_lock_is_not_what_its_digest_says(scene: Scene) -> None:
    scene.publish()
    said = document(scene, PROVENANCE)["predicate"]
    lock = next(one for one in said["buildDefinition"]["resolvedDependencies"] if one["name"] == "lock.json")
    lock["content"] = base64.b64encode(base64.b64decode(lock["content"]) + b"\n").decode()
    scene.replace(PROVENANCE, ByKey(P256).sign(statement(TAG, scene.image.manifest, PROVENANCE, said)).data)

    assert "checksum mismatch of the lock in it" in scene.refused()


@pytest.mark.parametrize("kind", [SIGNATURE, CLEARANCE, PROVENANCE, SMOKE])
def test_a_statement_of_a_sibling_replayed(scene: Scene, kind: str) -> None:
    """As it was signed, put beside this image."""
    scene.publish()
    first = scene.image
    scene.image = scene.desk.build("2")
    report = scene.desk.signed(scene.desk.report(scene.image))
    assert scene.desk.publish(scene.target, "--report", report, "--dated", "20261123").exit_code == 0
    replayed = [
        scene.there.blobs[told["layers"][0]["digest"]]
        for name, told in ((name, json.loads(data)) for name, data in scene.there.manifests.items())
        if ":" in name
        and told.get("annotations", {}).get(KIND) == kind
        and told["subject"]["digest"] == scene.image.manifest
    ]
    scene.image = first
    scene.beside("application/vnd.dev.sigstore.bundle.v0.3+json", *replayed)
    words = (*scene.desk.keys, "--suite", str(scene.desk.suite))
    done = scene.desk.run("verify", f"{scene.target}@{first.manifest}", *words)

    assert getattr(done.exception, "exit_code", None) == 12
    assert "not this image" in str(done.exception)


def test_a_report_of_another_lock(scene: Scene) -> None:
    """Of this digest by its own word, and the image.json that it read inside is another lock's."""
    scene.publish()
    told = scene.desk.report(scene.image)
    host = json.loads(told.host) | {"image_json_sha256": "0" * 64}
    lie = attest(replace(told, host=json.dumps(host)), ED)
    scene.replace(SMOKE, bundled(lie, fingerprint(ED.public_key()), SMOKE).data)

    assert "the image.json in the image differs from that of the lock" in scene.refused()


def test_a_report_whose_subject_is_this_image_and_whose_words_are_of_another(scene: Scene) -> None:
    scene.publish()
    told = document(scene, SMOKE)
    told["predicate"]["image"] = OTHER
    scene.replace(SMOKE, resealed(json.dumps(told).encode(), key=ED, kind=SMOKE))

    assert "its subject is not the image of its report" in scene.refused()


@pytest.mark.parametrize("when", ["2999-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_report_of_the_future(scene: Scene, when: str) -> None:
    """So that it would never be too old."""
    scene.publish()
    lie = attest(scene.desk.report(scene.image, when=when), ED)
    scene.replace(SMOKE, bundled(lie, fingerprint(ED.public_key()), SMOKE).data)

    assert f"ran at {when}, which is in the future" in scene.refused()


def decided(scene: Scene, **change: Any) -> None:
    """The gate's decision with other words, signed by the publisher."""
    said = document(scene, CLEARANCE)["predicate"] | change
    scene.replace(CLEARANCE, ByKey(P256).sign(statement(TAG, scene.image.manifest, CLEARANCE, said)).data)


def test_a_decision_that_overrides(scene: Scene) -> None:
    scene.publish()
    decided(scene, override="because")

    assert "published with --override: because" in scene.refused()


@pytest.mark.parametrize("override", [None, ""])
def test_a_decision_that_clears_though_something_is_missing(scene: Scene, override: str | None) -> None:
    scene.publish()
    decided(scene, override=override, missing=[{"what": "cuda", "why": "failed"}])

    assert "it clears an image although checks are missing" in scene.refused()


def test_a_suite_that_a_decision_names_and_no_laboratory_ran(scene: Scene) -> None:
    """The publisher says which suite: reports by another one do not count for it."""
    scene.publish()
    decided(scene, suite="sha256:" + "0" * 64)

    assert "was made by another suite" in scene.refused()


def test_a_suite_with_fewer_checks_does_not_lower_the_policy(scene: Scene) -> None:
    scene.publish()
    decided(scene, suite="sha256:" + "0" * 64, checks=[{"check": "import", "tier": 0}])

    assert "it requires the check nccl-all-reduce, which the suite does not have" in scene.refused()


def test_a_suite_by_a_stranger_s_decision(scene: Scene) -> None:
    scene.publish()
    said = document(scene, CLEARANCE)["predicate"] | {"suite": "sha256:" + "0" * 64, "checks": []}
    artifact = ByKey(STRANGER).sign(statement(TAG, scene.image.manifest, CLEARANCE, said))
    scene.beside(artifact.kind, artifact.data)

    assert scene.verify().exit_code == 0
    scene.replace(CLEARANCE, artifact.data)
    assert "no trusted decision of the gate found" in scene.refused()


def test_a_statement_that_nobody_signed_beside_signed_ones(scene: Scene) -> None:
    """The bare statement, as BuildKit would put it there."""
    scene.publish()
    told = statement(TAG, scene.image.manifest, PROVENANCE, {"buildDefinition": {}})
    scene.beside(PAYLOAD_TYPE, payload(told))

    assert scene.counted().endswith("; 1 by others ignored")


def test_a_statement_of_another_image_by_a_stranger_is_no_fault(scene: Scene) -> None:
    """Else whoever can write there could make any image fail."""
    scene.publish()
    artifact = ByKey(STRANGER).sign(statement(TAG, OTHER, SIGNATURE, {}))
    scene.beside(artifact.kind, artifact.data)

    assert scene.counted().endswith("; 1 by others ignored")
