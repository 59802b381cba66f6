"""A published image in a registry in memory, with the referrers API or a tag; tests can change all of it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.publisher import Publisher, new_publisher
from tests.reports import TAG
from tests.servers.registry_server import Behaviour, RegistryServer, Repository
from torchkiln.errors import VerificationFailed
from torchkiln.oci.layout import open_layout

KIND = "dev.sigstore.bundle.predicateType"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Scene:
    """A published image in a registry in memory; tests may change all content of the registry."""

    def __init__(self, publisher: Publisher, server: RegistryServer) -> None:
        self.publisher, self.server, self.target = publisher, server, f"{server.host}/team/app"
        self.image = open_layout(publisher.layout).image(TAG)

    def beside(
        self,
        kind: str,
        *documents: bytes,
        subject: str | None = None,
        annotations: dict[str, str] | None = None,
    ) -> str:
        """Attach *documents* of the media type *kind* to the image, as another tool would.

        :param subject: the manifest's subject, by default the image.
        :param annotations: of the manifest, and in the registry's list.
        """
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": kind,
            "layers": [{"mediaType": kind, "digest": sha256(item), "size": len(item)} for item in documents],
            "subject": {"mediaType": MANIFEST, "digest": subject or self.image.manifest, "size": 1},
            **({"annotations": annotations} if annotations else {}),
        }
        self.there.blobs |= {sha256(item): item for item in documents}
        return self._store(json.dumps(document).encode())

    def lose(self, kind: str) -> None:
        """Remove the attachment of *kind* from the registry and from its list."""
        name, _ = self.attached(kind)
        del self.there.manifests[name]
        self._set_list([item for item in self.listed() if item["digest"] != name])

    def listed(self) -> list[dict[str, Any]]:
        """The list of referrers under the tag."""
        data = self.there.manifests.get(self.image.manifest.replace(":", "-"))
        return list(json.loads(data)["manifests"]) if data else []

    def _store(self, manifest: bytes) -> str:
        """Store *manifest*; returns its digest. Without the referrers API, list it under the tag."""
        name, kind = sha256(manifest), json.loads(manifest)["artifactType"]
        self.there.manifests[name] = manifest
        entry = {"mediaType": MANIFEST, "artifactType": kind, "digest": name, "size": len(manifest)}
        entry["annotations"] = json.loads(manifest).get("annotations", {})
        self._set_list([*self.listed(), entry])
        return name

    def _set_list(self, entries: list[dict[str, Any]]) -> None:
        if not self.server.behaviour.lists_referrers:
            document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
            self.there.manifests[self.image.manifest.replace(":", "-")] = json.dumps(document).encode()

    @property
    def there(self) -> Repository:
        return self.server.repository("team/app")

    def publish(self, *more: str, report: str = "") -> None:
        """Publish the image; without options, copy the publication of an earlier test of the module."""
        usual = not more and not report and not self.server.repositories
        key = (self.target, self.server.behaviour.lists_referrers, self.image.manifest)
        if usual and key in _published:
            self.server.repositories["team/app"] = _copy_of(_published[key])
            return
        signed = report or self.publisher.signed(self.publisher.report(self.image))
        done = self.publisher.publish(self.target, "--report", signed, "--dated", "20261122", *more)
        assert done.exit_code == 0, done.exception
        if usual:
            _published[key] = _copy_of(self.there)

    def verify(self, *more: str, keys: tuple[str, ...] | None = None) -> Any:
        trusted = self.publisher.keys if keys is None else keys
        return self.publisher.run(
            "verify", f"{self.target}:{TAG}", *trusted, "--suite", str(self.publisher.suite), *more
        )

    def counted(self) -> str:
        """The text in `verify --json` that counts the signatures."""
        done = self.verify("--json")
        assert done.exit_code == 0, done.exception
        [text] = [
            point["text"] for point in json.loads(done.stdout)["points"] if point["what"] == "signatures"
        ]
        return str(text)

    def refused(self, *more: str) -> str:
        """The error of `verify`, which must fail."""
        done = self.verify(*more)
        assert isinstance(done.exception, VerificationFailed), done.exception or done.stdout
        assert (done.exception.exit_code, done.stdout) == (12, "")
        return done.exception.message

    def attached(self, kind: str) -> tuple[str, dict[str, Any]]:
        """Digest and manifest of the attachment of *kind*."""
        for name, data in self.there.manifests.items():
            document = json.loads(data)
            if ":" in name and document.get("annotations", {}).get(KIND) == kind:
                return name, document
        raise AssertionError(kind)

    def bundle(self, kind: str) -> dict[str, Any]:
        """The bundle in the attachment of *kind*."""
        return dict(json.loads(self.there.blobs[self.attached(kind)[1]["layers"][0]["digest"]]))

    def replace(self, kind: str, bundle: bytes) -> None:
        """Replace the attachment of *kind* by *bundle*, with matching digests, as an attacker could."""
        _, document = self.attached(kind)
        document["layers"][0] |= {"digest": sha256(bundle), "size": len(bundle)}
        self.lose(kind)
        self.there.blobs[sha256(bundle)] = bundle
        self._store(json.dumps(document).encode())


# The content that `publish` stored, by the registry's host, its support of the referrers API, and the image.
_published: dict[tuple[str, bool, str], Repository] = {}


def _copy_of(repository: Repository) -> Repository:
    return Repository(blobs=dict(repository.blobs), manifests=dict(repository.manifests))


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


_built: list[Publisher] = []


@pytest.fixture(name="built", scope="module")
def a_built_publisher(tmp_path_factory: pytest.TempPathFactory) -> Publisher:
    """The publisher and image that all tests of this process share; each test has its own registry."""
    if not _built:
        _built.append(new_publisher(tmp_path_factory.mktemp("built")))
        _built[0].build()
    return _built[0]


@pytest.fixture(name="publisher")
def a_copied_publisher(built: Publisher, tmp_path: Path) -> Publisher:
    """A copy of the shared publisher, which a test may change."""
    return Publisher(folder=shutil.copytree(built.folder, tmp_path / "publisher"))


@pytest.fixture(name="registry_server", scope="module")
def a_server() -> Iterator[RegistryServer]:
    """A registry, which is empty for each scene."""
    with RegistryServer() as server:
        yield server
    _published.clear()


@pytest.fixture(name="scene", params=[True, False], ids=["referrers", "by a tag"])
def a_scene(
    request: pytest.FixtureRequest, built: Publisher, registry_server: RegistryServer, tmp_path: Path
) -> Scene:
    """A scene in a registry with the referrers API, and in one without."""
    return _scene(built, registry_server, tmp_path, lists_referrers=request.param)


@pytest.fixture(name="each_scene", params=[True, False], ids=["referrers", "by a tag"])
def each_scene(
    request: pytest.FixtureRequest, built: Publisher, registry_server: RegistryServer, tmp_path: Path
) -> Scene:
    """Like `a_scene`, for files whose other tests use `a_scene_with_referrers`."""
    return _scene(built, registry_server, tmp_path, lists_referrers=request.param)


@pytest.fixture(name="scene")
def a_scene_with_referrers(built: Publisher, registry_server: RegistryServer, tmp_path: Path) -> Scene:
    """A scene for tests that do not depend on the referrers API."""
    return _scene(built, registry_server, tmp_path, lists_referrers=True)


def _scene(built: Publisher, server: RegistryServer, folder: Path, *, lists_referrers: bool) -> Scene:
    server.behaviour = Behaviour(lists_referrers=lists_referrers)
    server.repositories.clear()
    server.uploads.clear()
    server.logins.clear()
    return Scene(Publisher(folder=shutil.copytree(built.folder, folder / "publisher")), server)
