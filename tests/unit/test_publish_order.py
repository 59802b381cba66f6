"""The order of a publication, and what other tools put beside an image."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.press import Press, press
from tests.published import Scene, a_built_press, a_scene
from tests.reports import TAG
from tests.standin.registry_server import RegistryServer
from torchkiln.model.digest import Digest
from torchkiln.publish import session as module
from torchkiln.publish.publish import PreparedImage, PublishedImage, publish

__all__ = ["a_built_press", "a_scene"]

NAME = "team/app"


@pytest.fixture
def desk(tmp_path: Path) -> Press:
    return press(tmp_path / "desk")


@pytest.fixture(params=[True, False], ids=["referrers", "by a tag"])
def server(request: pytest.FixtureRequest) -> Iterator[RegistryServer]:
    with RegistryServer() as found:
        found.manners.lists_referrers = request.param
        yield found


def published(desk: Press, server: RegistryServer) -> list[str]:
    """The names under which manifests were put, in that order."""
    image = desk.build()
    report = desk.signed(desk.report(image))
    done = desk.publish(f"{server.host}/{NAME}", "--report", report, "--dated", "20261122")
    assert done.exit_code == 0, done.exception
    return list(server.repository(NAME).manifests)


def test_first_the_image_then_what_goes_with_it_then_its_names(desk: Press, server: RegistryServer) -> None:
    """So that whoever finds a name finds all the rest; and the name that never moves before those that do."""
    put = published(desk, server)
    image = json.loads(server.repository(NAME).manifests[put[0]])
    there = next(number for number, name in enumerate(put) if not name.startswith("sha256"))

    assert image["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    assert all(name.startswith("sha256") for name in put[:there])
    assert put[there] == f"{TAG}-20261122"
    assert put[there + 1] == TAG
    assert not any(name.startswith("sha256") for name in put[there:])


def test_another_image_than_the_one_that_was_cleared(
    desk: Press, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layout's image is another one when it is to be sent: somebody built meanwhile."""

    def late(ready: PreparedImage, *more: Any) -> PublishedImage:
        other = replace(ready.image, manifest=Digest("sha256:" + "5" * 64))
        return publish(replace(ready, image=other), *more)

    monkeypatch.setattr(module, "publish", late)
    report = desk.signed(desk.report(desk.build()))
    done = desk.publish(f"{server.host}/{NAME}", "--report", report)

    assert getattr(done.exception, "exit_code", None) == 2, done.exception
    assert "was cleared" in str(done.exception)
    assert server.repository(NAME).manifests == {}


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
