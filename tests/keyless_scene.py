"""A CI job that publishes without a key, and who verifies it elsewhere: a press, a registry, a Sigstore."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.press import Press, press
from tests.reports import TAG
from tests.standin.registry_server import RegistryServer, Repository
from tests.standin.sigstore_server import IDENTITY, REQUEST_TOKEN, SigstoreServer
from torchkiln.oci.layout import ImageOnDisk

TRUST = "TORCHKILN_SIGSTORE_TRUST"
KIND = "dev.sigstore.bundle.predicateType"


class Job:
    """Its environment is that of this process."""

    def __init__(
        self, desk: Press, registry: RegistryServer, sigstore: SigstoreServer, patch: pytest.MonkeyPatch
    ) -> None:
        self.desk, self.registry, self.sigstore, self.patch = desk, registry, sigstore, patch
        self.image: ImageOnDisk = desk.build()
        self.report = desk.signed(desk.report(self.image))
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

    def statements(self) -> list[dict[str, Any]]:
        """What the job signed."""
        payloads = (one["dsseEnvelope"]["payload"] for one in self.bundles().values())
        return [json.loads(base64.b64decode(one)) for one in payloads]


@contextmanager
def job(
    folder: Path, patch: pytest.MonkeyPatch, *, rekor: int = 1, lists_referrers: bool = True
) -> Iterator[Job]:
    """In GitHub Actions, with `id-token: write`."""
    with RegistryServer() as registry, SigstoreServer(rekor) as sigstore:
        registry.manners.lists_referrers = lists_referrers
        for name, value in sigstore.job.items():
            patch.setenv(name, value)
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield Job(press(folder), registry, sigstore, patch)
