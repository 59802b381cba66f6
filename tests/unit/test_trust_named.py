"""Only keys and policies that the command line names are trusted, each key only in its role."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.keys import ED, P256, UNKNOWN_KEY, pem, public_pem
from tests.published import Scene, a_built_publisher, a_scene_with_referrers, a_server
from tests.reports import TAG, found
from torchkiln.attest.provenance import PROVENANCE
from torchkiln.attest.signers import ByKey
from torchkiln.attest.statement import Statement, statement
from torchkiln.errors import GateRefused, VerificationFailed
from torchkiln.smoke.attestation import attest
from torchkiln.util.places import ROOT

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server"]

OURS = (ROOT / "matrix.yaml").read_text()
WEAK = OURS.replace("tiers: [0, 1] ", "tiers: [0]").replace("checks: [nccl-all-reduce]", "checks: []")
TRUSTING = OURS.replace("keys: [] ", "keys: [any=evil.pem]")
assert OURS not in (WEAK, TRUSTING)


@pytest.fixture
def hostile(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder. Another user has put a key and a matrix.yaml into it."""
    folder = tmp_path / "cloned"
    folder.mkdir()
    (folder / "evil.pem").write_bytes(public_pem(UNKNOWN_KEY))
    (folder / "matrix.yaml").write_text(TRUSTING)
    monkeypatch.chdir(folder)
    return folder


def by_an_unknown_key(scene: Scene) -> None:
    """Publish an image that is signed, with its report, only by the unknown key."""
    key = scene.publisher.folder / "publisher.pem"
    key.write_bytes(pem(UNKNOWN_KEY))
    report = scene.publisher.signed(scene.publisher.report(scene.image), key=UNKNOWN_KEY)
    public = scene.publisher.write(public_pem(UNKNOWN_KEY), "stranger.pem")
    words = ("--report", report, "--key", str(key), "--trust", f"any={public}", "--dated", "20261122")
    done = scene.publisher.run("publish", TAG, "--to", scene.target, *scene.publisher.here, *words)
    assert done.exit_code == 0, done.exception


def test_verify_trusts_no_key_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    by_an_unknown_key(scene)
    looked = scene.verify("--json", keys=())

    assert looked.exit_code == 0, looked.exception
    result = json.loads(looked.stdout)
    assert (result["verified"], result["trusted"]) == (False, False)
    assert "matrix.yaml: its keys not used; to use this file, add --policy matrix.yaml" in looked.stderr
    assert "not signed by a trusted key" in scene.refused()


@pytest.mark.parametrize(("suites", "noted"), [("[]", False), (f'["sha256:{"5" * 64}"]', True)])
def test_a_matrix_without_torchkilns_earlier_suites_has_no_other_policy(
    suites: str, noted: bool, scene: Scene, hostile: Path
) -> None:
    """Its policy counts as another one only if it names suites that torchkiln's does not."""
    text, count = re.subn(r"(?m)^  suites:\n(    .*\n)+", f"  suites: {suites}\n", OURS)
    (hostile / "matrix.yaml").write_text(text)

    assert count == 1
    assert ("matrix.yaml: its policy not used" in scene.verify("--json").stderr) is noted


def test_a_policy_file_named_by_an_option_is_used(scene: Scene, hostile: Path) -> None:
    by_an_unknown_key(scene)
    done = scene.verify("--json", "--policy", "matrix.yaml", keys=())

    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["verified"] is True
    assert "not used" not in done.stderr


@pytest.mark.parametrize(
    "text", [WEAK, TRUSTING.replace("signed: false", "signed: true")], ids=["weak", "signed"]
)
def test_verify_uses_no_policy_of_the_current_folder(scene: Scene, hostile: Path, text: str) -> None:
    """The image was published with a weaker policy than torchkiln's own."""
    (hostile / "matrix.yaml").write_text(text)
    weak = scene.publisher.write(WEAK.encode(), "weak.yaml")
    failed = scene.publisher.report(scene.image, found("nccl-all-reduce", "failed", "hangs"), verdict="fail")
    scene.publish("--policy", weak, report=scene.publisher.signed(failed))
    done = scene.verify()

    assert isinstance(done.exception, VerificationFailed)
    assert "nccl-all-reduce: failed: hangs" in done.exception.message
    assert "its policy" in done.stderr
    assert scene.verify("--policy", weak).exit_code == 0


def test_gate_and_publish_use_no_policy_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    (hostile / "matrix.yaml").write_text(WEAK)
    failed = scene.publisher.report(scene.image, found("nccl-all-reduce", "failed", "hangs"), verdict="fail")
    report = scene.publisher.signed(failed)
    lab = str(scene.publisher.folder / "lab.pub.pem")
    for named in ((), ("--matrix", "matrix.yaml"), ("--policy", "matrix.yaml")):
        gate = scene.publisher.run(
            "gate", TAG, *scene.publisher.here, "--report", report, "--trust", lab, *named
        )
        sent = scene.publisher.publish(scene.target, "--report", report, *named)
        if named:
            assert (gate.exit_code, sent.exit_code) == (0, 0), sent.exception
        else:
            assert isinstance(gate.exception, GateRefused)
            assert isinstance(sent.exception, GateRefused)
            assert gate.stderr.count("matrix.yaml: its policy not used") == 1
            assert scene.there.manifests == {}


def test_gate_trusts_no_key_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    report = scene.publisher.signed(scene.publisher.report(scene.image), key=UNKNOWN_KEY)
    words = ("gate", TAG, *scene.publisher.here, "--report", report)
    refused = scene.publisher.run(*words)

    assert isinstance(refused.exception, GateRefused)
    assert refused.exception.missing == (
        ("report.dsse.json", "is not signed by a trusted key, and is not of a run in this machine's cache"),
    )
    assert scene.publisher.run(*words, "--policy", "matrix.yaml").exit_code == 0
    assert scene.publisher.run(*words, "--matrix", str(hostile / "matrix.yaml")).exit_code == 0


def test_ls_and_withdraw_trust_no_key_of_the_current_folder(scene: Scene, hostile: Path) -> None:
    by_an_unknown_key(scene)
    result = json.loads(scene.publisher.run("ls", scene.target, "--json").stdout)
    assert (result["trusted"], result["signatures"]) == (False, "not verified")
    result = json.loads(scene.publisher.run("ls", scene.target, "--json", "--policy", "matrix.yaml").stdout)
    assert result["trusted"] is True

    report = scene.publisher.signed(scene.publisher.report(scene.image))
    assert report
    (scene.publisher.folder / "ours.pem").write_bytes(pem(P256))
    (scene.publisher.folder / "ours.pem").chmod(0o600)
    key = ("--key", str(scene.publisher.folder / "ours.pem"), "--reason", "no")
    done = scene.publisher.run("withdraw", f"{scene.target}:{TAG}", *key, "--json")
    assert "its keys not used" in done.stderr
    assert json.loads(done.stdout)["statement"]  # it is signed, but the key is unknown: no effect


def test_a_cells_policy_cannot_disable_required_signatures(scene: Scene) -> None:
    """`--trust` requires signatures even if the policy has `signed: false` for the cell."""
    text = OURS + '  cells:\n    - {torch: "2.7.1", signed: false}\n'
    policy = scene.publisher.write(text.encode(), "policy.yaml")
    scene.publisher.keep(scene.publisher.report(scene.image))
    words = ("gate", TAG, *scene.publisher.here, "--policy", policy)
    assert scene.publisher.run(*words).exit_code == 0
    refused = scene.publisher.run(*words, "--trust", str(scene.publisher.folder / "lab.pub.pem"))
    assert isinstance(refused.exception, GateRefused)

    scene.publish()
    scene.replace("urn:torchkiln:smoke-report:2", unsigned_bundle(scene))
    done = scene.verify("--policy", policy)
    assert isinstance(done.exception, VerificationFailed), done.stdout


def unsigned_bundle(scene: Scene) -> bytes:
    result = scene.bundle("urn:torchkiln:smoke-report:2")
    result["dsseEnvelope"] = json.loads(attest(scene.publisher.report(scene.image), UNKNOWN_KEY))
    return json.dumps(result).encode()


# --- roles ------------------------------------------------------------------------------------------


def attached_statement(scene: Scene, kind: str) -> Statement:
    import base64

    result = json.loads(base64.b64decode(scene.bundle(kind)["dsseEnvelope"]["payload"]))
    return statement(TAG, scene.image.manifest, kind, result["predicate"])


def test_each_key_in_its_role(scene: Scene) -> None:
    scene.publish()

    assert scene.verify().exit_code == 0
    swapped = scene.publisher.trusting(publisher="lab.pub.pem", laboratory="publisher.pub.pem")
    assert getattr(scene.verify(keys=swapped).exception, "exit_code", None) == 12


KINDS = {
    "the signature": ("https://sigstore.dev/cosign/sign/v1", "not signed by a trusted key"),
    "provenance": (PROVENANCE, "provenance: no trusted provenance found"),
    "the decision": ("urn:torchkiln:clearance:1", "no trusted decision of the gate found"),
    "names": ("urn:torchkiln:publication:1", "the statement of its names is missing"),
    "CycloneDX": ("https://cyclonedx.org/bom", "no trusted CycloneDX document found"),
}


@pytest.mark.parametrize("what", KINDS)
def test_a_laboratory_cannot_sign_for_a_publisher(scene: Scene, what: str) -> None:
    kind, why = KINDS[what]
    scene.publish()
    scene.replace(kind, ByKey(ED).sign(attached_statement(scene, kind)).data)

    if what == "the decision":
        both = scene.publisher.trusting(publisher="publisher.pub.pem", any="lab.pub.pem")
        assert scene.verify(keys=both).exit_code == 0
    done = scene.verify()
    assert isinstance(done.exception, VerificationFailed)
    assert why in done.exception.message
    assert "signed by a trusted key in another role" in done.stderr


def test_a_publisher_cannot_sign_for_a_laboratory(scene: Scene) -> None:
    scene.publish()
    bundle = scene.bundle("urn:torchkiln:smoke-report:2")
    bundle["dsseEnvelope"] = json.loads(attest(scene.publisher.report(scene.image), P256))
    scene.replace("urn:torchkiln:smoke-report:2", json.dumps(bundle).encode())

    assert scene.verify(keys=scene.publisher.trusting(any="publisher.pub.pem")).exit_code == 0
    done = scene.verify()
    assert isinstance(done.exception, VerificationFailed)
    assert "import: not run: no report contains it" in done.exception.message


def test_reports_signed_by_a_publisher_clear_nothing(scene: Scene) -> None:
    report = scene.publisher.signed(scene.publisher.report(scene.image), key=P256)
    public = scene.publisher.folder / "publisher.pub.pem"
    words = ("gate", TAG, *scene.publisher.here, "--report", report, "--trust")

    assert scene.publisher.run(*words, str(public)).exit_code == 0
    assert scene.publisher.run(*words, f"laboratory={public}").exit_code == 0
    assert getattr(scene.publisher.run(*words, f"publisher={public}").exception, "exit_code", None) == 7


@pytest.mark.parametrize(
    ("lab", "publisher", "code"),
    [("laboratory", "publisher", 0), ("publisher", "publisher", 12), ("laboratory", "laboratory", 12)],
)
def test_roles_in_the_policy(scene: Scene, lab: str, publisher: str, code: int) -> None:
    keys = f"[{{file: lab.pub.pem, role: {lab}}}, {{file: publisher.pub.pem, role: {publisher}}}]"
    policy = scene.publisher.write(OURS.replace("keys: [] ", f"keys: {keys}").encode(), "policy.yaml")
    scene.publish()
    done = scene.verify("--policy", policy, keys=())

    assert (getattr(done.exception, "exit_code", None) or done.exit_code) == code, done.exception


@pytest.mark.parametrize("key", ["{file: lab.pub.pem, role: Publisher}", "{file: lab.pub.pem}", "lab.pem"])
def test_each_key_of_a_policy_needs_a_role(scene: Scene, key: str) -> None:
    policy = scene.publisher.write(OURS.replace("keys: [] ", f"keys: [{key}]").encode(), "policy.yaml")
    done = scene.verify("--policy", policy)

    assert getattr(done.exception, "exit_code", None) == 2
    assert "role" in str(done.exception)


@pytest.mark.parametrize(
    "value", ["{}", "Publisher={}", "publisher=", "any", "any=", "", " any={}", "both={}"]
)
@pytest.mark.parametrize("option", ["verify --key", "verify --trust", "verify --identity", "publish --trust"])
def test_a_key_or_an_identity_needs_a_role(scene: Scene, option: str, value: str) -> None:
    """Without one, a laboratory's key would be accepted for provenance and SBOM."""
    publisher, (command, name) = scene.publisher, option.split()
    to = ("a", "--to") if command == "publish" else ()
    for file in ("publisher.pub.pem", "lab.pub.pem"):
        done = publisher.run(command, *to, f"{scene.target}:x", name, value.format(publisher.folder / file))
        assert (done.exit_code, "write publisher=" in done.output) == (2, True), done.output


def test_an_expired_key(scene: Scene) -> None:
    until = "2026-11-01"
    keys = f'[laboratory=lab.pub.pem, {{file: publisher.pub.pem, role: publisher, until: "{until}"}}]'
    policy = scene.publisher.write(OURS.replace("keys: [] ", f"keys: {keys}").encode(), "policy.yaml")
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
    result = json.loads(scene.verify("--json", keys=()).stdout)
    assert (result["verified"], result["trusted"]) == (False, False)
    result = json.loads(scene.verify("--json").stdout)
    assert (result["verified"], result["trusted"]) == (True, True)
