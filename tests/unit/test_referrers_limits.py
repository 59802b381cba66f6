"""The referrers of an image: those of other tools are not downloaded, and torchkiln's are limited."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.peak import LIMIT, run
from tests.published import (
    INDEX,
    MANIFEST,
    Scene,
    a_built_publisher,
    a_scene_with_referrers,
    a_server,
    each_scene,
    sha256,
)
from tests.reports import TAG
from torchkiln.publishing import attached
from torchkiln.registry import referrers, session
from torchkiln.registry.messages import HttpRequest, HttpResponse

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server", "each_scene"]

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
FOREIGN = "application/vnd.example.flood"


@pytest.fixture(name="requests")
def counted_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of all requests that are sent during the test."""
    urls: list[str] = []
    send = session.Registry._send

    def count(self: session.Registry, request: HttpRequest) -> HttpResponse:
        urls.append(request.url)
        return send(self, request)

    monkeypatch.setattr(session.Registry, "_send", count)
    return urls


def flood(scene: Scene, count: int, kind: str, **fields: Any) -> None:
    """Add *count* entries to the list of referrers, before the existing ones."""
    entries = [
        {"mediaType": MANIFEST, "artifactType": kind, "digest": sha256(b"%d" % number), "size": 700, **fields}
        for number in range(count)
    ]
    listing(scene, [*entries, *known(scene)])


def known(scene: Scene) -> list[Any]:
    if scene.server.behaviour.lists_referrers:
        return list(json.loads(scene.there.referrers(scene.image.manifest))["manifests"])
    return scene.listed()


def listing(scene: Scene, entries: list[Any]) -> None:
    data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    if scene.server.behaviour.lists_referrers:
        scene.there.referrers = lambda _: data  # type: ignore[method-assign]
    else:
        scene.there.manifests[scene.image.manifest.replace(":", "-")] = data


def test_3000_foreign_referrers_cost_nothing(each_scene: Scene, requests: list[str]) -> None:
    """They are counted, but not downloaded. torchkiln's referrers, which follow them, are found."""
    each_scene.publish()
    requests.clear()
    before = each_scene.counted()
    alone = len(requests)
    flood(each_scene, 3000, FOREIGN)
    requests.clear()

    assert each_scene.counted() == f"{before}; 3000 by others ignored"
    assert len(requests) == alone


def test_100000_foreign_referrers_in_the_registrys_list(each_scene: Scene, requests: list[str]) -> None:
    """The referrers API returns 30 MB here; the list under a fallback tag may have only 4 MiB."""
    each_scene.publish()
    if not each_scene.server.behaviour.lists_referrers:
        flood(each_scene, 100_000, FOREIGN)
        assert "longer than 4194304 bytes" in str(each_scene.verify().exception)
        return
    flood(each_scene, 100_000, FOREIGN, annotations={"org.example": "x" * 20})
    argv = (
        "verify",
        f"{each_scene.target}:{TAG}",
        *each_scene.publisher.keys,
        "--suite",
        str(each_scene.publisher.suite),
    )
    done = run(*argv, folder=each_scene.publisher.folder)

    assert (done.code, done.err.count("100000 by others")) == (0, 1), done.err
    assert done.peak < LIMIT


def test_3000_referrers_that_look_like_ours(scene: Scene, requests: list[str]) -> None:
    """They are too many to read. `verify` fails, because an unread one could be a retraction."""
    scene.publish()
    flood(scene, 3000, BUNDLE)
    requests.clear()

    message = scene.refused()
    assert f"statements, more than the limit of {referrers._MOST}; none was read" in message
    assert len(requests) < 10
    listed = scene.publisher.run("ls", scene.target, *scene.publisher.keys, "--json")
    assert [image["good"] for image in json.loads(listed.stdout)["images"]] == [False]


def test_the_maximum_number_of_missing_referrers(scene: Scene, requests: list[str]) -> None:
    """One request is sent for each of them."""
    scene.publish()
    flood(scene, referrers._MOST - len(known(scene)), BUNDLE)
    requests.clear()

    assert "is listed, but not found" in scene.refused()
    assert len(requests) < referrers._MOST + 50


def test_large_statements_are_not_downloaded(
    scene: Scene, requests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sizes are known from the manifests."""
    monkeypatch.setattr(attached, "_ALL", 1 << 20)
    scene.publish()
    for number in range(8):
        scene.beside(BUNDLE, b"%d" % number + b"x" * (1 << 18))
    requests.clear()

    assert "bytes in total, more than the limit of 1048576" in scene.refused()
    assert not [url for url in requests if "/blobs/" in url and "config" not in url][1:]


def test_a_document_longer_than_in_its_manifest(scene: Scene) -> None:
    scene.publish()
    scene.beside(BUNDLE, b"{}")
    scene.there.blobs[sha256(b"{}")] = b"{}" + b" " * (1 << 20)

    assert "longer than 2 bytes" in scene.refused()


ODD = (
    {"size": "12"},
    {"size": True},
    {"size": -1},
    {"size": 1.5},
    {"digest": "sha256:" + "A" * 64},
    {"digest": "sha512:" + "a" * 128},
    {"digest": ["sha256"]},
    {"digest": None},
    {"artifactType": ["x"]},
    {"artifactType": {}},
    {"annotations": {"a": ["b"]}},
    {"annotations": {"a": {}}},
    {"annotations": [1]},
    {"annotations": "x"},
    {"mediaType": 7},
)


def test_entries_of_wrong_types(each_scene: Scene) -> None:
    """An invalid entry is counted as another tool's entry; it is no error, and hides no other entry."""
    each_scene.publish()
    entry = {"mediaType": MANIFEST, "artifactType": FOREIGN, "size": 7}
    odd = [entry | {"digest": sha256(b"%d" % number)} | fields for number, fields in enumerate(ODD)]
    listing(each_scene, [*odd, 7, None, odd, *known(each_scene)])

    assert each_scene.counted().endswith(f"; {len(ODD)} by others ignored")


def test_catalog_of_too_many_tags(scene: Scene) -> None:
    """`ls` fails, but `verify` still finds the image by its name."""
    scene.publish()
    data = scene.there.manifests[TAG]
    scene.there.manifests.update({f"t{number}": data for number in range(6000)})

    done = scene.publisher.run("ls", scene.target)
    assert "more than 5000 tags" in str(done.exception)
    assert scene.verify().exit_code == 0
