"""A published image in a registry in memory, by referrers or by a tag, where anything can be changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.press import Press, press
from tests.reports import TAG
from tests.standin.registry_server import RegistryServer, Repository
from torchkiln.errors import VerificationFailed
from torchkiln.oci.layout import open_layout

KIND = "dev.sigstore.bundle.predicateType"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Scene:
    """A published image in a registry in memory, where anything can be changed."""

    def __init__(self, desk: Press, server: RegistryServer) -> None:
        self.desk, self.server, self.target = desk, server, f"{server.host}/team/app"
        self.image = open_layout(desk.layout).image(TAG)

    def beside(
        self,
        kind: str,
        *documents: bytes,
        subject: str | None = None,
        annotations: dict[str, str] | None = None,
    ) -> str:
        """Let *documents* of that media type go with the image, as some other tool would put them there.

        :param subject: what the manifest says that it goes with, if not with the image.
        :param annotations: of the manifest, and where the registry lists it.
        """
        told = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": kind,
            "layers": [{"mediaType": kind, "digest": sha256(one), "size": len(one)} for one in documents],
            "subject": {"mediaType": MANIFEST, "digest": subject or self.image.manifest, "size": 1},
            **({"annotations": annotations} if annotations else {}),
        }
        self.there.blobs |= {sha256(one): one for one in documents}
        return self._entered(json.dumps(told).encode())

    def lose(self, kind: str) -> None:
        """What goes with the image and is of that *kind* is gone from the registry, and from its list."""
        name, _ = self.attached(kind)
        del self.there.manifests[name]
        self._relisted([one for one in self.listed() if one["digest"] != name])

    def listed(self) -> list[dict[str, Any]]:
        """The list under the tag."""
        data = self.there.manifests.get(self.image.manifest.replace(":", "-"))
        return list(json.loads(data)["manifests"]) if data else []

    def _entered(self, manifest: bytes) -> str:
        """Its digest; where the registry keeps no list it stands on the one under the tag."""
        name, kind = sha256(manifest), json.loads(manifest)["artifactType"]
        self.there.manifests[name] = manifest
        entry = {"mediaType": MANIFEST, "artifactType": kind, "digest": name, "size": len(manifest)}
        entry["annotations"] = json.loads(manifest).get("annotations", {})
        self._relisted([*self.listed(), entry])
        return name

    def _relisted(self, entries: list[dict[str, Any]]) -> None:
        if not self.server.manners.lists_referrers:
            told = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
            self.there.manifests[self.image.manifest.replace(":", "-")] = json.dumps(told).encode()

    @property
    def there(self) -> Repository:
        return self.server.repository("team/app")

    def publish(self, *more: str, report: str = "") -> None:
        signed = report or self.desk.signed(self.desk.report(self.image))
        done = self.desk.publish(self.target, "--report", signed, "--dated", "20261122", *more)
        assert done.exit_code == 0, done.exception

    def verify(self, *more: str, keys: tuple[str, ...] | None = None) -> Any:
        trusted = self.desk.keys if keys is None else keys
        return self.desk.run(
            "verify", f"{self.target}:{TAG}", *trusted, "--suite", str(self.desk.suite), *more
        )

    def counted(self) -> str:
        """What `verify` tells of the statements."""
        done = self.verify("--json")
        assert done.exit_code == 0, done.exception
        [text] = [one["text"] for one in json.loads(done.stdout)["points"] if one["what"] == "signatures"]
        return str(text)

    def refused(self, *more: str) -> str:
        """What is wrong."""
        done = self.verify(*more)
        assert isinstance(done.exception, VerificationFailed), done.exception or done.stdout
        assert (done.exception.exit_code, done.stdout) == (12, "")
        return done.exception.message

    def attached(self, kind: str) -> tuple[str, dict[str, Any]]:
        """The manifest, by digest, of what goes with the image and is of that *kind*."""
        for name, data in self.there.manifests.items():
            told = json.loads(data)
            if ":" in name and told.get("annotations", {}).get(KIND) == kind:
                return name, told
        raise AssertionError(kind)

    def bundle(self, kind: str) -> dict[str, Any]:
        """What it holds."""
        return dict(json.loads(self.there.blobs[self.attached(kind)[1]["layers"][0]["digest"]]))

    def replace(self, kind: str, bundle: bytes) -> None:
        """Put *bundle* in its place, with digests that fit, as whoever can write to the registry could."""
        _, told = self.attached(kind)
        told["layers"][0] |= {"digest": sha256(bundle), "size": len(bundle)}
        self.lose(kind)
        self.there.blobs[sha256(bundle)] = bundle
        self._entered(json.dumps(told).encode())


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture(name="built", scope="module")
def a_built_press(tmp_path_factory: pytest.TempPathFactory) -> Press:
    """A registry of one's own has no need of an image of one's own."""
    desk = press(tmp_path_factory.mktemp("built"))
    desk.build()
    return desk


@pytest.fixture(name="scene", params=[True, False], ids=["referrers", "by a tag"])
def a_scene(request: pytest.FixtureRequest, built: Press, tmp_path: Path) -> Iterator[Scene]:
    """In a registry that lists referrers, and in one that does not."""
    yield from _scenes(built, tmp_path, lists_referrers=request.param)


@pytest.fixture(name="scene")
def a_scene_with_referrers(built: Press, tmp_path: Path) -> Iterator[Scene]:
    """Where it makes no difference to what is tested how the registry lists referrers."""
    yield from _scenes(built, tmp_path, lists_referrers=True)


def _scenes(built: Press, folder: Path, *, lists_referrers: bool) -> Iterator[Scene]:
    with RegistryServer() as server:
        server.manners.lists_referrers = lists_referrers
        yield Scene(Press(folder=shutil.copytree(built.folder, folder / "desk")), server)
