"""`gate`, `publish`, `verify` and `ls` of a refreshed image, whose GPU runs were in the image before it."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.keys import P256
from tests.listeners import SilentSmokeListener
from tests.published import Scene, a_server
from tests.publisher import Publisher, new_publisher
from tests.reports import TAG, TIERS, found, host
from tests.servers.registry_server import RegistryServer
from tests.smoke_suites import suite_to_read
from torchkiln.attest.dsse import fingerprint, sign
from torchkiln.attest.signers import bundled
from torchkiln.attest.statement import PAYLOAD_TYPE
from torchkiln.engine.image_lock import remember_lock
from torchkiln.gate.clearance import CLEARANCE
from torchkiln.gate.inputs import GateInputs
from torchkiln.locks.file import from_json, lock_digest, to_json
from torchkiln.locks.lock import load_locked, save
from torchkiln.matrix.policy import Policy
from torchkiln.model.recipe import RECIPE
from torchkiln.model.report import SmokeReport
from torchkiln.oci.layout import ImageOnDisk, open_layout
from torchkiln.smoke.attestation import read as read_report
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import verdict

__all__ = ["a_server"]

SUITE = """
VALUES = {"claims": {"image_json": {"type": {"*": "any"}}, "x": {"equals": 1}}, "lock": {"x": {"equals": 1}}}

@pytest.mark.tier(0)
def test_claims(measure): pass

@pytest.mark.tier(0)
def test_lock(measure): pass
"""


@dataclass(frozen=True)
class Refreshed:
    """A publisher with an earlier image, which ran on GPUs, and the present one, which did not."""

    publisher: Publisher
    earlier: ImageOnDisk
    present: ImageOnDisk
    reports: Path  # a folder with the signed reports of both, and the lock of the earlier image

    def gate(self, *more: str) -> str:
        words = ("--report", str(self.reports), "--trust", str(self.publisher.folder / "lab.pub.pem"))
        done = self.publisher.run("gate", TAG, *self.publisher.here, *words, *more)
        code = getattr(done.exception, "exit_code", done.exit_code)
        return f"{code}\n{done.exception or ''}\n{done.stdout}\n{done.stderr}"


def run_in(publisher: Publisher, image: ImageOnDisk, tiers: tuple[int, ...]) -> SmokeReport:
    """A run of the checks of *tiers* in *image*, of the publisher's present lock."""
    digest = lock_digest(load_locked(publisher.folder / "images", TAG))
    claims = json.dumps({"image_json": {"lock": digest, "recipe": RECIPE}, "x": 1})
    findings = tuple(
        replace(found("cuda"), id=name, tier=tier, **({"measured": claims} if name == "claims" else {}))
        for name, tier in {**TIERS, "claims": 0, "lock": 0}.items()
        if tier in tiers
    )
    made = publisher.report(image)
    if 1 not in tiers:
        made = replace(made, host=json.dumps(json.loads(made.host) | {"driver": host()["driver"]}))
    return replace(made, findings=findings, verdict=verdict(findings))


@pytest.fixture(scope="module")
def refreshed(tmp_path_factory: pytest.TempPathFactory) -> Refreshed:
    publisher = new_publisher(
        tmp_path_factory.mktemp("refreshed") / "publisher",
        lambda folder, checks: suite_to_read(folder, {**checks, "test_binding.py": SUITE}),
    )
    reports = publisher.folder / "reports"
    reports.mkdir()
    earlier = publisher.build()
    publisher.signed(run_in(publisher, earlier, (0, 1, 2)), "reports/earlier.dsse.json")
    locked = load_locked(publisher.folder / "images", TAG)
    (reports / "earlier.lock.json").write_bytes(to_json(locked))
    new = replace(locked, epoch=locked.epoch + 86_400)
    wheels = sorted((publisher.folder / "wheels").iterdir())
    publisher._built(replace(new, layers=()), wheels, "gzip")
    save(publisher.folder / "images", new)
    present = open_layout(publisher.layout).image(TAG)
    assert present.manifest != earlier.manifest
    publisher.signed(replace(run_in(publisher, present, (0,)), root="mounted"), "reports/present.dsse.json")
    return Refreshed(publisher=publisher, earlier=earlier, present=present, reports=reports)


@pytest.fixture
def scene(refreshed: Refreshed, registry_server: RegistryServer) -> Scene:
    registry_server.repositories.clear()
    return Scene(refreshed.publisher, registry_server)


def same_stack(refreshed: Refreshed) -> str:
    return f"2 × NVIDIA H200 in {refreshed.earlier.manifest[7:19]} (same GPU stack)"


def test_the_gate_names_the_image_in_which_the_checks_ran(refreshed: Refreshed) -> None:
    text = refreshed.gate()

    assert text.startswith("0\n"), text
    assert f"earlier.dsse.json: {same_stack(refreshed)}, signed by " in text
    assert refreshed.present.manifest in text


def test_without_the_lock_of_the_earlier_image_nothing_counts(refreshed: Refreshed, tmp_path: Path) -> None:
    """It may be in the cache of the machine that built the image."""
    path = shutil.move(refreshed.reports / "earlier.lock.json", tmp_path)
    try:
        text = refreshed.gate()
        assert text.startswith("7\n"), text
        assert "cuda: not run: no report contains it" in text

        remember_lock(from_json(Path(path).read_bytes()), refreshed.publisher.store)
        assert refreshed.gate().startswith("0\n")
    finally:
        shutil.rmtree(refreshed.publisher.store.root / "records/locks", ignore_errors=True)
        shutil.move(path, refreshed.reports)


def test_the_committed_lock_may_be_that_of_the_earlier_image(refreshed: Refreshed, tmp_path: Path) -> None:
    """As after a build on a newer base: `refresh` has not moved the lock yet."""
    here = refreshed.publisher.folder
    publisher = Publisher(folder=shutil.copytree(here, tmp_path / "publisher", symlinks=True))
    present = load_locked(publisher.folder / "images", TAG)
    earlier = from_json((publisher.folder / "reports/earlier.lock.json").read_bytes())
    for name in ("earlier", "present"):
        publisher.keep(read_report(publisher.folder / f"reports/{name}.dsse.json", ()).report)
    inputs = GateInputs(
        policy=Policy(tiers=(0, 1, 2), checks=()),
        suite=load_suite(publisher.suite),
        runs=KeptRuns(store=publisher.store, listener=SilentSmokeListener()),
    )

    def lacking() -> list[str]:
        result = inputs.judge(refreshed.present, present, publisher.folder / "images")
        return [name for name, _ in result.missing]

    assert "cuda" in lacking()
    save(publisher.folder / "images", earlier)
    assert lacking() == []


def test_verify_computes_the_stack_again_from_what_is_attached(refreshed: Refreshed, scene: Scene) -> None:
    """If the publisher signs another decision, without the lock, the report is of another image."""
    publisher = refreshed.publisher
    done = publisher.publish(scene.target, "--report", str(refreshed.reports), "--dated", "20261129")
    assert done.exit_code == 0, done.exception
    verified = scene.verify("--json")
    assert verified.exit_code == 0, verified.exception

    (text,) = [point["text"] for point in json.loads(verified.stdout)["points"] if point["what"] == "smoke"]
    assert text == f"7 checks passed; on {same_stack(refreshed)}; files mounted"
    listed = publisher.run("ls", scene.target, *publisher.keys)
    assert "(same GPU stack)" in listed.stdout, listed.exception

    statement = json.loads(base64.b64decode(scene.bundle(CLEARANCE)["dsseEnvelope"]["payload"]))
    assert statement["predicate"].pop("locks")
    envelope = sign(PAYLOAD_TYPE, json.dumps(statement).encode(), P256)
    scene.replace(CLEARANCE, bundled(envelope, fingerprint(P256.public_key()), CLEARANCE).data)
    refused = scene.refused()
    assert f"its subject is {refreshed.earlier.manifest}, not this image" in refused
    assert "cuda: not run: no report contains it" in refused
