"""A CI job that publishes without a key, and the verification of its image; fake registry and Sigstore."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.publisher import Publisher, digest_of, new_publisher
from tests.reports import TAG
from tests.servers.registry_server import RegistryServer, Repository
from tests.servers.sigstore_server import IDENTITY, REQUEST_TOKEN, SigstoreServer

TRUST = "TORCHKILN_SIGSTORE_TRUST"
KIND = "dev.sigstore.bundle.predicateType"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A publisher with an image and a report of it; tests do not change it."""

    publisher: Publisher
    report: str


def prepare(folder: Path) -> Prepared:
    made = new_publisher(folder)
    return Prepared(publisher=made, report=made.signed(made.report(made.build())))


class Job:
    """A job that runs in the environment of this process."""

    def __init__(
        self,
        prepared: Prepared,
        registry: RegistryServer,
        sigstore: SigstoreServer,
        patch: pytest.MonkeyPatch,
    ) -> None:
        self.publisher, self.report = prepared.publisher, prepared.report
        self.registry, self.sigstore, self.patch = registry, sigstore, patch
        self.trust(sigstore)

    def trust(self, sigstore: SigstoreServer, **instead: Any) -> None:
        """Let this process trust *sigstore* in its current state."""
        file = sigstore.trust(self.publisher.folder / "trust.json", **instead)
        self.patch.setenv(TRUST, str(file))

    def become(self, **environ: str | None) -> None:
        """Set variables, or unset them if None."""
        for name, value in environ.items():
            self.patch.delenv(name, raising=False) if value is None else self.patch.setenv(name, value)

    @property
    def target(self) -> str:
        return f"{self.registry.host}/team/app"

    @property
    def there(self) -> Repository:
        return self.registry.repository("team/app")

    def publish(self) -> Result:
        """Run `publish --keyless`; its output must contain no secret."""
        lab = f"laboratory={self.publisher.folder / 'lab.pub.pem'}"
        done = self.publisher.run(
            "publish", TAG, "--to", self.target, *self.publisher.here, "--keyless", "--trust", lab,
            "--report", self.report, "--dated", "20261122",
        )  # fmt: skip
        output = f"{done.output}{done.exception}{getattr(done.exception, 'hint', '')}"
        for secret in (REQUEST_TOKEN, *self.sigstore.tokens):
            assert secret not in output
        return done

    def verify(self, *more: str, identity: str = IDENTITY) -> Result:
        """Verify with the laboratory's key, for the report, and the job's identity."""
        lab = f"laboratory={self.publisher.folder / 'lab.pub.pem'}"
        who = ("--key", lab, "--identity", f"publisher={identity}", "--suite", str(self.publisher.suite))
        return self.publisher.run("verify", f"{self.target}:{TAG}", *who, *more)

    def bundles(self) -> dict[str, dict[str, Any]]:
        """The bundles with a certificate, by manifest digest."""
        found = {}
        for name, data in self.there.manifests.items():
            document = json.loads(data)
            if ":" in name and KIND in document.get("annotations", {}):
                bundle = json.loads(self.there.blobs[document["layers"][0]["digest"]])
                if "certificate" in bundle["verificationMaterial"]:
                    found[name] = bundle
        return found

    def change(self, kind: str, how: Callable[[dict[str, Any]], object]) -> None:
        """Change the bundle of *kind* with *how*, as an attacker with write access to the registry can."""
        for name, bundle in self.bundles().items():
            manifest = json.loads(self.there.manifests[name])
            if manifest["annotations"][KIND] != kind:
                continue
            how(bundle)
            data = json.dumps(bundle).encode()
            manifest["layers"][0] |= {"digest": digest_of(data), "size": len(data)}
            del self.there.manifests[name]
            self.there.blobs[digest_of(data)] = data
            changed = json.dumps(manifest).encode()
            self.there.manifests[digest_of(changed)] = changed
            return
        raise AssertionError(kind)

    def statements(self) -> list[dict[str, Any]]:
        """The statements that the job signed."""
        payloads = (bundle["dsseEnvelope"]["payload"] for bundle in self.bundles().values())
        return [json.loads(base64.b64decode(payload)) for payload in payloads]


@contextmanager
def job(
    prepared: Prepared, patch: pytest.MonkeyPatch, *, rekor: int = 1, lists_referrers: bool = True
) -> Iterator[Job]:
    """A job in GitHub Actions, with `id-token: write`."""
    with RegistryServer() as registry, SigstoreServer(rekor) as sigstore:
        registry.behaviour.lists_referrers = lists_referrers
        for name, value in sigstore.job.items():
            patch.setenv(name, value)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield Job(prepared, registry, sigstore, patch)


@pytest.fixture(scope="module", name="prepared")
def a_prepared_publisher(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(tmp_path_factory.mktemp("keyless") / "prepared")


@pytest.fixture(name="scene")
def a_job(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with job(prepared, monkeypatch) as found:
        yield found
