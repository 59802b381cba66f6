"""Whose word counts: keys and policy that the command line names, each key in its role alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.keys import ED, P256, STRANGER, pem, public_pem
from tests.published import Scene, a_built_press, a_scene_with_referrers
from tests.reports import TAG, found
from torchkiln.attest.provenance import PROVENANCE
from torchkiln.attest.signers import ByKey
from torchkiln.attest.statement import Statement, statement
from torchkiln.errors import GateRefused, VerificationFailed
from torchkiln.smoke.attestation import attest
from torchkiln.util.places import ROOT

__all__ = ["a_built_press", "a_scene_with_referrers"]

OURS = (ROOT / "matrix.yaml").read_text()
WEAK = OURS.replace("tiers: [0, 1] ", "tiers: [0]").replace("checks: [nccl-all-reduce]", "checks: []")
TRUSTING = OURS.replace("keys: [] ", "keys: [evil.pem]")
assert OURS not in (WEAK, TRUSTING)


@pytest.fixture
def hostile(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which a stranger filled."""
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / "evil.pem").write_bytes(public_pem(STRANGER))
    (folder / "matrix.yaml").write_text(TRUSTING)
    monkeypatch.chdir(folder)
    return folder


def by_a_stranger(scene: Scene) -> None:
    """Published with the stranger's key alone, reports too."""
    key = scene.desk.folder / "publisher.pem"
    key.write_bytes(pem(STRANGER))
    report = scene.desk.signed(scene.desk.report(scene.image), key=STRANGER)
    public = scene.desk.write(public_pem(STRANGER), "stranger.pem")
    words = ("--report", report, "--key", str(key), "--trust", public, "--dated", "20261122")
    done = scene.desk.run("publish", TAG, "--to", scene.target, *scene.desk.here, *words)
    assert done.exit_code == 0, done.exception


def test_verify_trusts_no_key_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    by_a_stranger(scene)
    looked = scene.verify("--json", keys=())

    assert looked.exit_code == 0, looked.exception
    told = json.loads(looked.stdout)
    assert (told["verified"], told["trusted"]) == (False, False)
    assert "matrix.yaml: its keys not used; to use this file, add --policy matrix.yaml" in looked.stderr
    assert "not signed by a trusted key" in scene.refused()


@pytest.mark.parametrize("option", ["--policy"])
def test_a_policy_file_that_is_named_counts(scene: Scene, hostile: Path, option: str) -> None:
    by_a_stranger(scene)
    done = scene.verify("--json", option, "matrix.yaml", keys=())

    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["verified"] is True
    assert "not used" not in done.stderr


@pytest.mark.parametrize(
    "text", [WEAK, TRUSTING.replace("signed: false", "signed: true")], ids=["weak", "signed"]
)
def test_verify_takes_no_policy_of_the_current_folder(scene: Scene, hostile: Path, text: str) -> None:
    """The image was published by a policy that demands less than ours."""
    (hostile / "matrix.yaml").write_text(text)
    weak = scene.desk.write(WEAK.encode(), "weak.yaml")
    failed = scene.desk.report(scene.image, found("nccl-all-reduce", "failed", "hangs"), verdict="fail")
    scene.publish("--policy", weak, report=scene.desk.signed(failed))
    done = scene.verify()

    assert isinstance(done.exception, VerificationFailed)
    assert "nccl-all-reduce: failed: hangs" in done.exception.message
    assert "its policy" in done.stderr
    assert scene.verify("--policy", weak).exit_code == 0


def test_gate_and_publish_take_no_policy_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    (hostile / "matrix.yaml").write_text(WEAK)
    failed = scene.desk.report(scene.image, found("nccl-all-reduce", "failed", "hangs"), verdict="fail")
    report = scene.desk.signed(failed)
    lab = str(scene.desk.folder / "lab.pub.pem")
    for named in ((), ("--matrix", "matrix.yaml"), ("--policy", "matrix.yaml")):
        gate = scene.desk.run("gate", TAG, *scene.desk.here, "--report", report, "--trust", lab, *named)
        sent = scene.desk.publish(scene.target, "--report", report, *named)
        if named:
            assert (gate.exit_code, sent.exit_code) == (0, 0), sent.exception
        else:
            assert isinstance(gate.exception, GateRefused)
            assert isinstance(sent.exception, GateRefused)
            assert gate.stderr.count("matrix.yaml: its policy not used") == 1
            assert scene.there.manifests == {}


def test_gate_trusts_no_key_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    report = scene.desk.signed(scene.desk.report(scene.image), key=STRANGER)
    words = ("gate", TAG, *scene.desk.here, "--report", report)
    refused = scene.desk.run(*words)

    assert isinstance(refused.exception, GateRefused)
    assert refused.exception.missing == (
        ("report.dsse.json", "is not signed by a trusted key, and is not of a run in this machine's cache"),
    )
    assert scene.desk.run(*words, "--policy", "matrix.yaml").exit_code == 0
    assert scene.desk.run(*words, "--matrix", str(hostile / "matrix.yaml")).exit_code == 0


def test_catalog_and_retract_trust_no_key_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    by_a_stranger(scene)
    told = json.loads(scene.desk.run("catalog", scene.target, "--json").stdout)
    assert (told["trusted"], told["signatures"]) == (False, "not looked at")
    told = json.loads(scene.desk.run("catalog", scene.target, "--json", "--policy", "matrix.yaml").stdout)
    assert told["trusted"] is True

    report = scene.desk.signed(scene.desk.report(scene.image))
    assert report
    (scene.desk.folder / "ours.pem").write_bytes(pem(P256))
    (scene.desk.folder / "ours.pem").chmod(0o600)
    key = ("--key", str(scene.desk.folder / "ours.pem"), "--reason", "no")
    done = scene.desk.run("retract", f"{scene.target}:{TAG}", *key, "--json")
    assert "its keys not used" in done.stderr
    assert json.loads(done.stdout)["statement"]  # the stranger's word, whatever it were, silences nobody


def test_a_cell_s_own_policy_cannot_take_the_demand_back(scene: Scene) -> None:
    """`--trust` wants signatures; an exception that says `signed: false` came after it."""
    text = OURS + '  cells:\n    - {torch: "2.7.1", signed: false}\n'
    policy = scene.desk.write(text.encode(), "policy.yaml")
    scene.desk.keep(scene.desk.report(scene.image))
    words = ("gate", TAG, *scene.desk.here, "--policy", policy)
    assert scene.desk.run(*words).exit_code == 0
    refused = scene.desk.run(*words, "--trust", str(scene.desk.folder / "lab.pub.pem"))
    assert isinstance(refused.exception, GateRefused)

    scene.publish()
    scene.replace("urn:torchkiln:smoke-report:2", unsigned_bundle(scene))
    done = scene.verify("--policy", policy)
    assert isinstance(done.exception, VerificationFailed), done.stdout


def unsigned_bundle(scene: Scene) -> bytes:
    told = scene.bundle("urn:torchkiln:smoke-report:2")
    told["dsseEnvelope"] = json.loads(attest(scene.desk.report(scene.image), STRANGER))
    return json.dumps(told).encode()


# --- roles ------------------------------------------------------------------------------------------


def roles(scene: Scene) -> tuple[str, ...]:
    """The publisher's and the laboratory's key, each in its role."""
    folder = scene.desk.folder
    return (
        *("--key", f"publisher={folder / 'publisher.pub.pem'}"),
        *("--key", f"laboratory={folder / 'lab.pub.pem'}"),
    )


def said(scene: Scene, kind: str) -> Statement:
    """What goes with the image, as it is."""
    import base64

    told = json.loads(base64.b64decode(scene.bundle(kind)["dsseEnvelope"]["payload"]))
    return statement(TAG, scene.image.manifest, kind, told["predicate"])


def test_each_key_in_its_role(scene: Scene) -> None:
    scene.publish()

    assert scene.verify(keys=roles(scene)).exit_code == 0
    swapped = tuple(
        word.replace("publisher=", "x=").replace("laboratory=", "publisher=").replace("x=", "laboratory=")
        for word in roles(scene)
    )
    assert getattr(scene.verify(keys=swapped).exception, "exit_code", None) == 12


KINDS = {
    "the signature": ("https://sigstore.dev/cosign/sign/v1", "not signed by a trusted key"),
    "provenance": (PROVENANCE, "provenance: no trusted provenance found"),
    "the decision": ("urn:torchkiln:clearance:1", "no trusted decision of the gate found"),
    "names": ("urn:torchkiln:publication:1", "the statement of its names is missing"),
    "SPDX": ("https://spdx.dev/Document", "no trusted SPDX document found"),
    "CycloneDX": ("https://cyclonedx.org/bom", "no trusted CycloneDX document found"),
}


@pytest.mark.parametrize("what", KINDS)
def test_a_laboratory_speaks_for_no_publisher(scene: Scene, what: str) -> None:
    kind, why = KINDS[what]
    scene.publish()
    scene.replace(kind, ByKey(ED).sign(said(scene, kind)).data)

    assert scene.verify().exit_code == 0  # bare keys count in both roles
    done = scene.verify(keys=roles(scene))
    assert isinstance(done.exception, VerificationFailed)
    assert why in done.exception.message
    assert "signed by a trusted key in another role" in done.stderr


def test_a_publisher_speaks_for_no_laboratory(scene: Scene) -> None:
    scene.publish()
    bundle = scene.bundle("urn:torchkiln:smoke-report:2")
    bundle["dsseEnvelope"] = json.loads(attest(scene.desk.report(scene.image), P256))
    scene.replace("urn:torchkiln:smoke-report:2", json.dumps(bundle).encode())

    assert scene.verify().exit_code == 0
    done = scene.verify(keys=roles(scene))
    assert isinstance(done.exception, VerificationFailed)
    assert "import: no report has it" in done.exception.message


def test_a_publisher_s_key_clears_nothing(scene: Scene) -> None:
    report = scene.desk.signed(scene.desk.report(scene.image), key=P256)
    public = scene.desk.folder / "publisher.pub.pem"
    words = ("gate", TAG, *scene.desk.here, "--report", report, "--trust")

    assert scene.desk.run(*words, str(public)).exit_code == 0
    assert scene.desk.run(*words, f"laboratory={public}").exit_code == 0
    assert getattr(scene.desk.run(*words, f"publisher={public}").exception, "exit_code", None) == 7


@pytest.mark.parametrize(
    ("lab", "publisher", "code"),
    [("laboratory", "publisher", 0), ("publisher", "publisher", 12), ("laboratory", "laboratory", 12)],
)
def test_roles_in_the_policy(scene: Scene, lab: str, publisher: str, code: int) -> None:
    keys = f"[{{file: lab.pub.pem, role: {lab}}}, {{file: publisher.pub.pem, role: {publisher}}}]"
    policy = scene.desk.write(OURS.replace("keys: [] ", f"keys: {keys}").encode(), "policy.yaml")
    scene.publish()
    done = scene.verify("--policy", policy, keys=())

    assert (getattr(done.exception, "exit_code", None) or done.exit_code) == code, done.exception


@pytest.mark.parametrize("role", ["lab", "Publisher", "[publisher]", "''"])
def test_a_role_that_is_none(scene: Scene, role: str) -> None:
    keys = f"[{{file: lab.pub.pem, role: {role}}}]"
    policy = scene.desk.write(OURS.replace("keys: [] ", f"keys: {keys}").encode(), "policy.yaml")

    assert getattr(scene.verify("--policy", policy).exception, "exit_code", None) == 2
    assert scene.verify("--key", f"{role}={scene.desk.folder / 'lab.pub.pem'}").exit_code == 2


@pytest.mark.parametrize("until", ["2020-01-31", "2026-11-01"])
def test_a_key_whose_time_is_over(scene: Scene, until: str) -> None:
    keys = f'[lab.pub.pem, {{file: publisher.pub.pem, until: "{until}"}}]'
    policy = scene.desk.write(OURS.replace("keys: [] ", f"keys: {keys}").encode(), "policy.yaml")
    scene.publish()
    done = scene.verify("--policy", policy, keys=())

    assert isinstance(done.exception, VerificationFailed)
    assert "not signed by a trusted key" in done.exception.message
    assert f"the key expired on {until}" in done.stderr


def test_without_a_key_nothing_is_verified(scene: Scene) -> None:
    scene.publish()
    done: Any = scene.verify(keys=())
    assert done.exit_code == 0
    assert "signatures not verified" in done.stderr
    told = json.loads(scene.verify("--json", keys=()).stdout)
    assert (told["verified"], told["trusted"]) == (False, False)
    told = json.loads(scene.verify("--json").stdout)
    assert (told["verified"], told["trusted"]) == (True, True)
