"""What other tools put beside an image in a registry: no fault of it, no proof of it, and it stays."""

from __future__ import annotations

import base64
import json

import pytest

from tests.published import Scene, a_built_press, a_scene

__all__ = ["a_built_press", "a_scene"]

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
IN_TOTO = "application/vnd.in-toto+json"


def enveloped(kind: str, said: bytes) -> bytes:
    """In a Sigstore bundle, by a key that nobody here knows."""
    envelope = {
        "payloadType": kind,
        "payload": base64.b64encode(said).decode(),
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
def test_what_other_tools_put_beside_it(scene: Scene, other: str) -> None:
    """No fault of the image, and no proof of it."""
    scene.publish()
    count = scene.counted()
    scene.beside(OTHERS[other][0], *OTHERS[other][1])

    assert scene.counted() == f"{count}; 1 by others ignored"
    assert scene.verify("--full").exit_code == 0


def test_it_stays_when_more_is_published(scene: Scene) -> None:
    """Also on the list that we write where the registry keeps none; and beside what is already there."""
    before = scene.beside("application/vnd.cncf.notary.signature", b"{}")
    scene.publish()
    after = scene.beside("application/spdx+json", b"{}")
    scene.publish(report=scene.desk.signed(scene.desk.report(scene.image, when="2026-11-22T18:00:00Z")))

    assert {before, after} <= set(scene.there.manifests)
    assert scene.counted().endswith("; 2 by others ignored")


def test_what_goes_with_another_image_and_stands_on_the_list(scene: Scene) -> None:
    """Of a kind that is read: others are not fetched, so nothing is known of them."""
    scene.publish()
    scene.beside(IN_TOTO, b"{}", subject="sha256:" + "5" * 64)

    if scene.server.manners.lists_referrers:
        assert "others" not in scene.counted()  # the registry's own list has it not
    else:
        assert f"its subject is sha256:{'5' * 64}, not {scene.image.manifest}" in scene.refused()
