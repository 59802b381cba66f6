"""A CI job that publishes without a key, and who verifies it elsewhere: a press, a registry, a Sigstore."""

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

from tests.press import Press, digest_of, press
from tests.reports import TAG
from tests.standin.registry_server import RegistryServer, Repository
from tests.standin.sigstore_server import IDENTITY, REQUEST_TOKEN, SigstoreServer

TRUST = "TORCHKILN_SIGSTORE_TRUST"
KIND = "dev.sigstore.bundle.predicateType"


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A press with an image, and its report; nothing that is done with it changes it."""

    press: Press
    report: str


def new_desk(folder: Path) -> Desk:
    made = press(folder)
    return Desk(press=made, report=made.signed(made.report(made.build())))


class Job:
    """Its environment is that of this process."""

    def __init__(
        self, desk: Desk, registry: RegistryServer, sigstore: SigstoreServer, patch: pytest.MonkeyPatch
    ) -> None:
        self.desk, self.report = desk.press, desk.report
        self.registry, self.sigstore, self.patch = registry, sigstore, patch
        self.trust(sigstore)

    def trust(self, sigstore: SigstoreServer, **instead: Any) -> None:
        """From now on this process trusts *sigstore*, as it is now."""
        file = sigstore.trust(self.desk.folder / "trust.json", **instead)
        self.patch.setenv(TRUST, str(file))

    def become(self, **environ: str | None) -> None:
        """Variables set, and unset where None."""
        for name, value in environ.items():
            self.patch.delenv(name, raising=False) if value is None else self.patch.setenv(name, value)

    @property
    def target(self) -> str:
        return f"{self.registry.host}/team/app"

    @property
    def there(self) -> Repository:
        return self.registry.repository("team/app")

    def publish(self) -> Result:
        """`publish --keyless`; whatever it says, it says no secret."""
        lab = str(self.desk.folder / "lab.pub.pem")
        done = self.desk.run(
            "publish", TAG, "--to", self.target, *self.desk.here, "--keyless", "--trust", lab,
            "--report", self.report, "--dated", "20261122",
        )  # fmt: skip
        said = f"{done.output}{done.exception}{getattr(done.exception, 'hint', '')}"
        for secret in (REQUEST_TOKEN, *self.sigstore.tokens):
            assert secret not in said
        return done

    def verify(self, *more: str, identity: str = IDENTITY) -> Result:
        """By the laboratory's key, for the report, and the job's identity."""
        lab = str(self.desk.folder / "lab.pub.pem")
        who = ("--key", lab, "--identity", identity, "--suite", str(self.desk.suite))
        return self.desk.run("verify", f"{self.target}:{TAG}", *who, *more)

    def bundles(self) -> dict[str, dict[str, Any]]:
        """By the digest of the manifest: those that hold a certificate."""
        found = {}
        for name, data in self.there.manifests.items():
            told = json.loads(data)
            if ":" in name and KIND in told.get("annotations", {}):
                bundle = json.loads(self.there.blobs[told["layers"][0]["digest"]])
                if "certificate" in bundle["verificationMaterial"]:
                    found[name] = bundle
        return found

    def change(self, kind: str, how: Callable[[dict[str, Any]], object]) -> None:
        """*how* changes the bundle of that *kind* as whoever can write to the registry could."""
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
        """What the job signed."""
        payloads = (one["dsseEnvelope"]["payload"] for one in self.bundles().values())
        return [json.loads(base64.b64decode(one)) for one in payloads]


@contextmanager
def job(
    desk: Desk, patch: pytest.MonkeyPatch, *, rekor: int = 1, lists_referrers: bool = True
) -> Iterator[Job]:
    """In GitHub Actions, with `id-token: write`."""
    with RegistryServer() as registry, SigstoreServer(rekor) as sigstore:
        registry.manners.lists_referrers = lists_referrers
        for name, value in sigstore.job.items():
            patch.setenv(name, value)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield Job(desk, registry, sigstore, patch)


@pytest.fixture(scope="module", name="desk")
def a_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return new_desk(tmp_path_factory.mktemp("keyless") / "desk")


@pytest.fixture(name="scene")
def a_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with job(desk, monkeypatch) as found:
        yield found
