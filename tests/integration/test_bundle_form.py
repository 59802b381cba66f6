"""An image's attachments, read by other tools: cosign's layout in a registry, DSSE, Sigstore's bundles.

cosign's specs/BUNDLE_SPEC.md defines the layout; the tests read it as plain JSON. securesystemslib and
Sigstore's JavaScript library verify the signatures.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import Key, SSlibKey
from sigstore_models.bundle.v1 import Bundle

from tests.keyless_scene import Job, Prepared, job, prepare
from tests.keys import ED, P256, UNKNOWN_KEY, public_pem
from tests.node_tools import complaint
from tests.servers.registry_server import RegistryServer, Repository
from tests.servers.sigstore_server import IDENTITY, ISSUER

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
CONTENT, KIND = "dev.sigstore.bundle.content", "dev.sigstore.bundle.predicateType"
REPORT = "urn:torchkiln:smoke-report:"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("bundles") / "prepared")


@pytest.fixture(scope="module")
def there(prepared: Prepared) -> Iterator[Repository]:
    """A repository with a published image. The key P256 has signed its statements, the key ED its report."""
    with RegistryServer() as server:
        server.behaviour.lists_referrers = True
        done = prepared.publisher.publish(f"{server.host}/team/app", "--report", prepared.report)
        assert done.exit_code == 0, done.exception
        yield server.repository("team/app")


def signed(there: Repository) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The signed statements, as pairs of manifest and bundle."""
    found = 0
    for name, data in there.manifests.items():
        manifest = json.loads(data)
        if name.startswith("sha256:") and "subject" in manifest:
            found += 1
            yield manifest, json.loads(there.blobs[manifest["layers"][0]["digest"]])
    assert found >= 5


def spki(pem: bytes) -> bytes:
    return load_pem_public_key(pem).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def hint_of(key: Any) -> str:
    return base64.b64encode(hashlib.sha256(spki(public_pem(key))).digest()).decode()


def signer_of(manifest: dict[str, Any]) -> Any:
    return ED if manifest["annotations"][KIND].startswith(REPORT) else P256


def test_attachments_have_the_layout_of_cosign(prepared: Prepared, there: Repository) -> None:
    image = there.manifests[next(iter(there.tags))]
    digest = "sha256:" + hashlib.sha256(image).hexdigest()
    for manifest, bundle in signed(there):
        blob = there.blobs[manifest["layers"][0]["digest"]]
        payload = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        assert manifest == {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": BUNDLE,
            "config": {
                "mediaType": "application/vnd.oci.empty.v1+json",
                "digest": "sha256:" + hashlib.sha256(b"{}").hexdigest(),
                "size": 2,
            },
            "layers": [
                {
                    "mediaType": BUNDLE,
                    "digest": "sha256:" + hashlib.sha256(blob).hexdigest(),
                    "size": len(blob),
                }
            ],
            "subject": {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest,
                "size": len(image),
            },
            "annotations": {CONTENT: "dsse-envelope", KIND: payload["predicateType"]},
        }
        assert there.blobs[manifest["config"]["digest"]] == b"{}"
        assert payload["subject"][0]["digest"] == {"sha256": digest.removeprefix("sha256:")}
    kinds = {manifest["annotations"][KIND] for manifest, _ in signed(there)}
    assert "https://sigstore.dev/cosign/sign/v1" in kinds  # what `cosign verify` requires


def test_a_bundle_names_its_key_only_by_its_hint(there: Repository) -> None:
    """cosign's library ignores a signature whose key id is not the SSH fingerprint."""
    for manifest, bundle in signed(there):
        assert bundle["mediaType"] == BUNDLE
        hint = {"hint": hint_of(signer_of(manifest))}
        assert bundle["verificationMaterial"] == {"publicKey": hint, "tlogEntries": []}
        (signature,) = bundle["dsseEnvelope"]["signatures"]
        assert set(signature) == {"sig"}


def test_sigstores_model_reads_them(there: Repository) -> None:
    for _, bundle in signed(there):
        read = Bundle.from_json(json.dumps(bundle))

        assert read.dsse_envelope is not None
        assert read.dsse_envelope.payload_type == "application/vnd.in-toto+json"


def test_securesystemslib_verifies_them(there: Repository) -> None:
    """securesystemslib accepts the signer's public key, and rejects another key."""
    for manifest, bundle in signed(there):
        signatures = [{"keyid": "it", **signature} for signature in bundle["dsseEnvelope"]["signatures"]]
        envelope = Envelope.from_dict({**bundle["dsseEnvelope"], "signatures": signatures})
        envelope.verify([public(signer_of(manifest))], 1)
        with pytest.raises(VerificationError):
            envelope.verify([public(UNKNOWN_KEY)], 1)


def public(key: Any) -> Key:
    """*key* for securesystemslib, which requires and compares key ids."""
    return SSlibKey.from_crypto(key.public_key(), keyid="it")


def test_sigstores_javascript_verifies_them(there: Repository) -> None:
    """Sigstore's JavaScript library accepts one bundle of each signer."""
    of_each = {id(signer_of(manifest)): (signer_of(manifest), bundle) for manifest, bundle in signed(there)}
    assert len(of_each) == 2
    for key, bundle in of_each.values():
        assert complaint(bundle=bundle, keys={hint_of(key): public_pem(key).decode()}) == ""
        wrong = complaint(bundle=bundle, keys={hint_of(key): public_pem(UNKNOWN_KEY).decode()})
        assert "signature verification failed" in wrong


@pytest.mark.parametrize("rekor", [1, 2])
def test_sigstores_javascript_verifies_signatures_of_a_job(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rekor: int
) -> None:
    """Sigstore's JavaScript library checks certificate, certificate log, signature log and time."""
    with job(prepared, monkeypatch, rekor=rekor) as scene:
        assert scene.publish().exit_code == 0
        root = json.loads(scene.sigstore.trust(tmp_path / "trust.json").read_text())["trustedRoot"]
        bundle = next(iter(scene.bundles().values()))

        assert complaint(bundle=bundle, trustedRoot=root, identity=IDENTITY, issuer=ISSUER) == ""
        assert "identity" in complaint(
            bundle=bundle, trustedRoot=root, identity=IDENTITY + "2", issuer=ISSUER
        )
        other_root = {**root, "tlogs": []}
        assert complaint(bundle=bundle, trustedRoot=other_root, identity=IDENTITY, issuer=ISSUER)


def test_a_jobs_bundle_has_the_same_layout(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def manifests_of(scene: Job) -> Iterator[dict[str, Any]]:
        for name in scene.bundles():
            yield json.loads(scene.there.manifests[name])

    with job(prepared, monkeypatch) as scene:
        assert scene.publish().exit_code == 0
        for manifest in manifests_of(scene):
            assert manifest["artifactType"] == manifest["layers"][0]["mediaType"] == BUNDLE
            assert manifest["annotations"][CONTENT] == "dsse-envelope"
