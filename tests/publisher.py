"""All that `publish` needs: a small built image of a real cell, its lock, a suite, reports and keys.

The laboratory's key (Ed25519) signs reports, the publisher's (ECDSA) an image's attestations.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from tests.cells import HostPython, planned_cell, put_base, small_wheels
from tests.keys import ED, P256, pem, public_pem
from tests.listeners import SilentSmokeListener
from tests.pool_worker import in_this_process
from tests.reports import TAG, TIERS, report
from tests.smoke_suites import suite_to_read
from tests.unpublished import FakeIndex
from torchkiln.cli import torchkiln
from torchkiln.engine import image as image_build
from torchkiln.engine import wheel_layers
from torchkiln.engine.environment import Environment
from torchkiln.locks.lock import save
from torchkiln.matrix import facts, matrix
from torchkiln.model.digest import Digest
from torchkiln.model.layer import BuiltImage, LayerFormat
from torchkiln.model.lock import LockedCell
from torchkiln.model.progress import Silent
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.plan.load import plan_locked
from torchkiln.plan.plan import IMAGE_JSON
from torchkiln.smoke.attestation import attest
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.report import to_json
from torchkiln.smoke.suite import suite_digest
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

#: `publish` signs with the first key, the laboratory with the second.
PUBLISHER, LABORATORY = P256, ED


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """A folder with images/, dist/, a cache, a suite and keys; made by `new_publisher`."""

    folder: Path

    @property
    def suite(self) -> Path:
        return self.folder / "suite"

    @property
    def layout(self) -> Path:
        return self.folder / "dist"

    @property
    def store(self) -> Store:
        return Store(self.folder / "cache")

    def build(self, version: str = "", *, layer_format: LayerFormat = "gzip") -> ImageOnDisk:
        """Build the lock's image with wheels of *version*; its name in the layout is the tag.

        It shares no blob with images that other publishers build.
        """
        wheels = small_wheels(self.folder / f"wheels{version}", version, str(self.folder))
        locked = planned_cell(wheels, salt=str(self.folder)).locked
        recorded = self._built(locked, wheels, "gzip").layers[1:-1]
        if layer_format != "gzip":
            self._built(locked, wheels, layer_format)
        save(self.folder / "images", replace(locked, layers=recorded))
        return open_layout(self.layout).image(TAG)

    def _built(self, locked: LockedCell, wheels: list[Path], form: LayerFormat) -> BuiltImage:
        known = facts.load()
        plan = plan_locked(locked, matrix.read(ROOT / "matrix.yaml", known), known)
        put_base(locked.base, self.store, str(self.folder))
        with interpreter(), in_this_process():
            return image_build.build(
                plan,
                self.layout,
                Environment(store=self.store, fetcher=FakeIndex(wheels), observer=Silent()),
                layer_format=form,
            ).image

    def report(self, image: ImageOnDisk, *findings: Finding, **changes: Any) -> SmokeReport:
        """A report of *image* by this suite: all checks passed on two GPUs, except for *findings*."""
        smoke_report = report(*findings)
        host = json.loads(smoke_report.host) | {"image_json_sha256": account_of(image)}
        here = {"image": image.manifest, "suite": suite_digest(self.suite), "host": json.dumps(host)}
        return replace(smoke_report, **here | changes)

    def keep(self, smoke_report: SmokeReport) -> None:
        """Store the report in the cache, as a smoke run of this machine."""
        KeptRuns(store=self.store, listener=SilentSmokeListener()).keep(smoke_report)

    def write(self, smoke_report: SmokeReport | bytes, name: str) -> str:
        """Write the report; returns the path of the file."""
        (self.folder / name).write_bytes(
            smoke_report if isinstance(smoke_report, bytes) else to_json(smoke_report)
        )
        return str(self.folder / name)

    def signed(self, smoke_report: SmokeReport, name: str = "report.dsse.json", key: Any = LABORATORY) -> str:
        """Write the report, signed; returns the path of the file."""
        return self.write(attest(smoke_report, key), name)

    def run(self, *arguments: str) -> Result:
        """Run a command in this process."""
        with patch.dict(os.environ, self.environ):
            return CliRunner().invoke(torchkiln, list(arguments))

    def publish(self, to: str, *more: str) -> Result:
        """Run `publish TAG`, signed, with the laboratory trusted."""
        return self.run(*self.publishing(to, *more))

    def publishing(self, to: str, *more: str) -> list[str]:
        """The arguments of `publish`."""
        lab = ("--trust", f"laboratory={self.folder / 'lab.pub.pem'}")
        return [*("publish", TAG, "--to", to, *self.here), *self.signing, *lab, *more]

    def command(self, *arguments: str) -> list[str]:
        """The command line for a separate process, whose environment is `settings`."""
        return [str(ROOT / ".venv/bin/python"), str(ROOT / "build.py"), *arguments]

    @property
    def settings(self) -> dict[str, str]:
        """The environment for a separate process."""
        return {**os.environ, **self.environ}

    @property
    def here(self) -> tuple[str, ...]:
        """Options with the paths of layout, images and suite in this folder."""
        folders = ("--output", str(self.layout), "--images", str(self.folder / "images"))
        return (*folders, "--suite", str(self.suite))

    @property
    def signing(self) -> tuple[str, str]:
        """The option for the key that signs what is published."""
        return ("--key", str(self.folder / "publisher.pem"))

    @property
    def keys(self) -> tuple[str, ...]:
        """The options for the keys that `verify` trusts, each in its role."""
        return self.trusting(publisher="publisher.pub.pem", laboratory="lab.pub.pem")

    def trusting(self, **files: str) -> tuple[str, ...]:
        """The options of `verify` that trust the key in each of *files*, by its role."""
        pairs = (("--key", f"{role}={self.folder / name}") for role, name in files.items())
        return tuple(word for pair in pairs for word in pair)

    @property
    def environ(self) -> Mapping[str, str]:
        return {"TORCHKILN_CACHE": str(self.folder / "cache"), "DOCKER_CONFIG": str(self.folder / "docker")}


def new_publisher(folder: Path, make_suite: Callable[..., Path] = suite_to_read) -> Publisher:
    """A publisher with a suite and keys, without an image.

    :param make_suite: `suite_with` if tests run the suite.
    """
    body = "".join(
        f"@pytest.mark.tier({tier})\ndef test_{name.replace('-', '_')}(measure): pass\n\n"
        for name, tier in TIERS.items()
    )
    folder.mkdir(exist_ok=True)
    make_suite(folder / "suite", {"test_all.py": body})
    (folder / "publisher.pem").write_bytes(pem(PUBLISHER))
    (folder / "publisher.pem").chmod(0o600)
    (folder / "publisher.pub.pem").write_bytes(public_pem(PUBLISHER))
    (folder / "lab.pub.pem").write_bytes(public_pem(LABORATORY))
    return Publisher(folder=folder)


def interpreter() -> AbstractContextManager[object]:
    """Within this context, builds compile with this Python, because the base of generated cells has none."""
    return patch.object(wheel_layers, "interpreter", lambda _base, _store: HostPython())


def account_of(image: ImageOnDisk) -> str:
    """The SHA-256, in hex, of the image.json in the image's last layer, read without torchkiln's code."""
    import io
    import tarfile

    import isal.igzip as gzip
    from backports import zstd

    blob = image.layers[-1].path.read_bytes()
    tar = gzip.decompress(blob) if blob[:2] == b"\x1f\x8b" else zstd.decompress(blob)
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        found = opened.extractfile(IMAGE_JSON)
        assert found is not None
        return hashlib.sha256(found.read()).hexdigest()


def digest_of(data: bytes) -> Digest:
    """The SHA-256 of *data*."""
    return Digest(f"sha256:{hashlib.sha256(data).hexdigest()}")


@pytest.fixture(name="publisher")
def a_publisher(tmp_path: Path) -> Publisher:
    return new_publisher(tmp_path)


@pytest.fixture(name="name")
def a_repository(tmp_path: Path) -> str:
    """The name of a repository that no other test uses."""
    return f"team/{tmp_path.name.lower().replace('_', '-').strip('-')}"
