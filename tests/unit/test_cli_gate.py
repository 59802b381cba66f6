"""`torchkiln gate` prints the digest, or every missing requirement; a bad signature is another error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.keys import ED, P256, public_pem
from tests.listeners import SilentSmokeListener
from tests.oci_samples import BASE, BlobFolder, plan, tar_of
from tests.reports import TAG, TIERS, found, report
from tests.smoke_suites import suite_with
from torchkiln.attest.dsse import fingerprint
from torchkiln.cli.gate import gate
from torchkiln.errors import ConfigError, GateRefused, Stale, VerificationFailed
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.oci.layout import open_layout, write_image
from torchkiln.smoke.attestation import attest
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.report import to_json
from torchkiln.smoke.suite import suite_digest
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

LABELS = (("org.opencontainers.image.version", TAG),)


class Scene:
    """A layout with an image of the committed lock's name, a suite of six checks, and reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = BlobFolder(folder / "store")
        layers = [store.layer("base", tar_of(BASE))]
        write_image(folder / "dist", plan(TAG, labels=LABELS), layers, store.path)
        self.image = open_layout(folder / "dist").image(TAG).manifest
        body = "".join(
            f"@pytest.mark.tier({tier})\ndef test_{name.replace('-', '_')}(measure): pass\n\n"
            for name, tier in TIERS.items()
        )
        self.suite = suite_with(folder / "suite", {"test_all.py": body})

    def report(self, *findings: Finding, **other: Any) -> SmokeReport:
        """A report of this image by this suite."""
        return replace(report(*findings), **{"image": self.image, "suite": suite_digest(self.suite)} | other)

    def file(self, content: SmokeReport | bytes, name: str = "report.json", *, own: bool = True) -> str:
        """Write *content*; returns its path. If *own*, a report is also kept as a run of this machine."""
        if isinstance(content, SmokeReport) and own:
            KeptRuns(store=Store(self.folder / "cache"), listener=SilentSmokeListener()).keep(content)
        (self.folder / name).write_bytes(content if isinstance(content, bytes) else to_json(content))
        return str(self.folder / name)

    def gate(self, reports: Sequence[str], *more: str) -> Any:
        argv = [TAG, "--output", str(self.folder / "dist"), "--suite", str(self.suite)]
        argv += [word for path in reports for word in ("--report", path)]
        return CliRunner().invoke(gate, [*argv, "--images", str(ROOT / "images"), *more])


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    return Scene(tmp_path)


def test_the_digest_is_stdout(scene: Scene) -> None:
    done = scene.gate([scene.file(scene.report())])

    assert (done.exit_code, done.stdout) == (0, f"{scene.image}\n")
    assert "report 1: report.json: 2 × NVIDIA H200, unsigned, a run of this machine" in done.stderr
    assert f"gate: {TAG}: 5 checks passed" in done.stderr
    mounted = scene.gate([scene.file(scene.report(root="mounted"))]).stderr
    assert "report 1: report.json: 2 × NVIDIA H200, mounted, unsigned, a run of this machine" in mounted


def test_a_refusal_names_all_faults_on_stderr_only(scene: Scene) -> None:
    done = scene.gate([scene.file(scene.report(found("cuda", "skipped", "host: x"), verdict="inconclusive"))])

    assert isinstance(done.exception, GateRefused)
    assert done.exception.exit_code == 7
    assert (
        "is not cleared: 1 requirement is not met\n  cuda: skipped: host: x (report.json)"
        in done.exception.message
    )
    assert done.exception.hint
    assert done.stdout == ""


def test_for_machines(scene: Scene) -> None:
    good = json.loads(scene.gate([scene.file(scene.report())], "--json").stdout)
    refused = scene.gate(
        [scene.file(scene.report(nonce="request-0000"))], "--json", "--nonce", "request-0001"
    )
    bad = json.loads(refused.stdout)

    assert (good["image"], good["cleared"]["digest"], good["missing"]) == (scene.image, scene.image, [])
    assert good["cleared"]["passed"] == ["compile-cpu", "import", "bf16", "cuda", "nccl-all-reduce"]
    assert good["cleared"]["signers"] == []
    assert {row["check"]: row["tier"] for row in good["checks"]} == TIERS
    assert (bad["image"], bad["cleared"]) == (scene.image, None)
    why = "nonce mismatch: it has the nonce request-0000"
    assert bad["missing"] == [{"what": "report.json", "why": why}]
    assert isinstance(refused.exception, GateRefused)


@pytest.mark.parametrize(("again", "superseded"), [("failed", True), ("passed", True), ("skipped", False)])
def test_an_inconclusive_run_counts_until_a_later_one_has_all_its_checks(
    scene: Scene, again: str, superseded: bool
) -> None:
    """A skipped check and a failure that the host caused are no results: the earlier run still counts."""
    scene.file(scene.report(found("cuda", "skipped", "host: x"), when="2026-11-21T10:00:00Z"))
    scene.file(scene.report(found("import", again, "host: x"), when="2026-11-21T11:00:00Z"))

    done = scene.gate([])

    assert ("report 2: " not in done.stderr) is superseded, done.stderr


def test_trust_demands_a_signature(scene: Scene) -> None:
    plain = scene.file(scene.report())
    key = scene.file(public_pem(ED), "public.pem")
    unsigned = scene.gate([plain], "--trust", key).exception
    assert isinstance(unsigned, GateRefused)
    assert unsigned.missing == (("report.json", "is not signed"),)

    scene.file(attest(scene.report(), ED), "report.dsse.json")
    done = scene.gate([plain], "--trust", key, "--json")
    assert json.loads(done.stdout)["cleared"]["signers"] == [fingerprint(ED.public_key())]
    assert scene.gate([str(scene.folder / "report.dsse.json")], "--trust", key).exit_code == 0

    scene.file(attest(scene.report(), P256), "report.dsse.json")
    assert isinstance(scene.gate([plain], "--trust", key).exception, VerificationFailed)


def test_wrong_arguments(scene: Scene) -> None:
    """The folder does not exist, the image has no lock, or the file is not a report."""
    plain = scene.file(scene.report())

    assert isinstance(scene.gate([plain], "--output", str(scene.folder / "none")).exception, ConfigError)
    assert isinstance(scene.gate([plain], "--images", str(scene.folder)).exception, Stale)
    assert isinstance(scene.gate([scene.file(b"{}", "x.json")]).exception, ConfigError)


def test_reports_of_other_machines_need_a_signature(scene: Scene) -> None:
    """Runs of this machine count without --report; reports of other machines need a trusted signature."""
    unsigned = scene.file(scene.report(), own=False)
    refused = scene.gate([unsigned]).exception
    assert isinstance(refused, GateRefused)
    assert refused.missing == (("report.json", "is not signed, and is not of a run in this machine's cache"),)
    assert "--trust laboratory=PUBLIC.pem" in refused.hint
    none = scene.gate([]).exception
    assert isinstance(none, GateRefused)
    assert ("import", "not run: no report contains it") in none.missing

    scene.file(scene.report())
    assert scene.gate([]).exit_code == 0
    assert scene.gate([unsigned]).exit_code == 0
    changed = scene.file(scene.report(tool="9.9"), "changed.json", own=False)
    assert isinstance(scene.gate([changed]).exception, GateRefused)


def test_of_a_folder_only_reports_of_the_image_are_read(scene: Scene) -> None:
    folder = scene.folder / "reports"
    folder.mkdir()
    key = scene.file(public_pem(ED), "public.pem")
    scene.file(attest(scene.report(), ED), "reports/ours.dsse.json")
    scene.file(attest(report(), P256), "reports/of-another-image.dsse.json")
    scene.file(b"{}", "reports/no-report.json")
    assert scene.gate([str(folder)], "--trust", key).exit_code == 0

    scene.file(attest(scene.report(), P256), "reports/unknown-key.dsse.json")
    assert isinstance(scene.gate([str(folder)], "--trust", key).exception, VerificationFailed)


def test_the_table_has_each_check(scene: Scene) -> None:
    failed = found("cuda", "failed", "devices: is 0, wanted 1")
    lines = scene.gate([scene.file(scene.report(failed, verdict="fail"))]).stderr.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if not line.startswith(("gate", "report"))}

    assert rows["CHECK"] == ["TIER", "REQUIRED", "OUTCOME", "REPORT", "MEASURED"]
    assert " ".join(rows["import"]) == "0 yes passed 1 x 1"
    assert rows["busbw"][:3] == ["2", "no", "passed"]
    assert rows["cuda"][:3] == ["1", "yes", "refused"]
    assert "failed: devices: is 0, wanted 1 (report.json)" in " ".join(rows["cuda"])


def test_the_policy_can_contain_keys(scene: Scene) -> None:
    """Relative paths of key files are relative to the folder of matrix.yaml, not to the current folder."""
    text = (ROOT / "matrix.yaml").read_text()
    matrix = scene.file(text.replace("keys: []", "keys: [laboratory=lab.pub.pem]").encode(), "matrix.yaml")
    signed = scene.file(attest(scene.report(), ED), "report.dsse.json")
    missing = scene.gate([signed], "--matrix", matrix).exception
    assert isinstance(missing, ConfigError)
    assert "lab.pub.pem" in missing.message

    scene.file(public_pem(ED), "lab.pub.pem")
    assert scene.gate([signed], "--matrix", matrix).exit_code == 0
    assert isinstance(scene.gate([signed]).exception, GateRefused)

    for until, counts in (("2020-01-31", False), ("2999-12-31", True)):
        dated = text.replace("keys: []", f'keys: [{{file: lab.pub.pem, role: any, until: "{until}"}}]')
        done = scene.gate([signed], "--matrix", scene.file(dated.encode(), "matrix.yaml"))
        assert (done.exit_code == 0) is counts
        assert ("lab.pub.pem: the key expired on 2020-01-31" in done.stderr) is not counts
