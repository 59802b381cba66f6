"""The order in which `publish` uploads, and attachments of other tools."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.published import Scene, a_built_publisher, a_scene_with_referrers, a_server, each_scene
from tests.reports import TAG
from torchkiln.model.digest import Digest
from torchkiln.publishing import session as module
from torchkiln.publishing.publish import PreparedImage, PublishedImage, publish

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server", "each_scene"]


def test_first_the_image_then_its_attachments_then_its_names(each_scene: Scene) -> None:
    """When a name appears, the image is complete. Moving names are set after the immutable name."""
    each_scene.publish()
    put = list(each_scene.there.manifests)
    image = json.loads(each_scene.there.manifests[put[0]])
    there = next(number for number, name in enumerate(put) if not name.startswith("sha256"))

    assert image["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    assert all(name.startswith("sha256") for name in put[:there])
    assert put[there] == f"{TAG}-20261122"
    assert put[there + 1] == TAG
    assert not any(name.startswith("sha256") for name in put[there:])


def test_another_image_than_the_cleared_one_is_not_published(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, a build may replace the layout's image before the upload."""

    def late(ready: PreparedImage, *more: Any) -> PublishedImage:
        replaced = replace(ready.image, manifest=Digest("sha256:" + "5" * 64))
        return publish(replace(ready, image=replaced), *more)

    monkeypatch.setattr(module, "publish", late)
    report = scene.publisher.signed(scene.publisher.report(scene.image))
    done = scene.publisher.publish(scene.target, "--report", report)

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert "was cleared" in str(done.exception)
    assert scene.there.manifests == {}


BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
IN_TOTO = "application/vnd.in-toto+json"


def enveloped(kind: str, payload: bytes) -> bytes:
    """A Sigstore bundle with *payload*, signed with an unknown key."""
    envelope = {
        "payloadType": kind,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"sig": base64.b64encode(b"\0" * 64).decode()}],
    }
    return json.dumps({"mediaType": BUNDLE, "verificationMaterial": {}, "dsseEnvelope": envelope}).encode()


OTHERS = {
    "a Notation signature": ("application/vnd.cncf.notary.signature", [b"{}"]),
    "a SOCI index of two layers": ("application/vnd.amazon.soci.index.v2+json", [b"1", b"2"]),
    "an SBOM of another tool": ("application/spdx+json", [b'{"spdxVersion": "SPDX-2.3"}']),
    "cosign's signature of a message": (
        BUNDLE,
        [json.dumps({"mediaType": BUNDLE, "verificationMaterial": {}, "messageSignature": {}}).encode()],
    ),
    "an envelope of something else": (BUNDLE, [enveloped("text/plain", b"hello")]),
    "an older statement": (
        BUNDLE,
        [enveloped(IN_TOTO, b'{"_type": "https://in-toto.io/Statement/v0.1", "subject": []}')],
    ),
    "no statement": (IN_TOTO, [b"not JSON"]),
    "nothing": ("application/vnd.example.empty", []),
}


@pytest.mark.parametrize("other", OTHERS)
def test_attachments_of_other_tools_are_ignored(scene: Scene, other: str) -> None:
    """They are no fault, and they prove nothing about the image."""
    scene.publish()
    count = scene.counted()
    scene.beside(OTHERS[other][0], *OTHERS[other][1])

    assert scene.counted() == f"{count}; 1 by others ignored"
    assert scene.verify("--full").exit_code == 0


def test_attachments_of_other_tools_are_kept(each_scene: Scene) -> None:
    """`publish` also keeps them in the list that it writes for registries without the referrers API."""
    before = each_scene.beside("application/vnd.cncf.notary.signature", b"{}")
    each_scene.publish()
    after = each_scene.beside("application/spdx+json", b"{}")
    each_scene.publish(
        report=each_scene.publisher.signed(
            each_scene.publisher.report(each_scene.image, when="2026-11-22T18:00:00Z")
        )
    )

    assert {before, after} <= set(each_scene.there.manifests)
    assert each_scene.counted().endswith("; 2 by others ignored")


def test_an_attachment_of_another_image_in_the_list(each_scene: Scene) -> None:
    """Its kind is one that `verify` reads; attachments of other kinds are not downloaded."""
    each_scene.publish()
    each_scene.beside(IN_TOTO, b"{}", subject="sha256:" + "5" * 64)

    if each_scene.server.behaviour.lists_referrers:
        assert "others" not in each_scene.counted()  # the registry lists it only for its own subject
    else:
        assert f"its subject is sha256:{'5' * 64}, not {each_scene.image.manifest}" in each_scene.refused()
