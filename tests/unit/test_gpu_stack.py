"""GPU runs in an earlier image count for an image with the same GPU stack, and for no other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.reports import TAG
from tools import earlier_locks
from tools.kept import IMAGES, PROOFS, kept_in
from torchkiln.errors import ConfigError
from torchkiln.gate.clearance import clearance, decision_of
from torchkiln.gate.gate import GateResult, clear, judge
from torchkiln.gate.gpu_stack import built_from, earlier_images, gpu_stack
from torchkiln.gate.inputs import locks_in
from torchkiln.locks.file import lock_digest, to_json
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts, matrix
from torchkiln.matrix.policy import policy_of
from torchkiln.model import recipe
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell
from torchkiln.model.platform import LINUX_ARM64
from torchkiln.model.report import Finding, SignedReport
from torchkiln.plan.plan import IMAGE_JSON, plan
from torchkiln.smoke.expected import expected_env, facts_of
from torchkiln.smoke.report import document, from_document
from torchkiln.smoke.run import Checks, SmokeSubject, not_run
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verification import LockedFiles, faults
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT

POLICY = replace(matrix.read(ROOT / "matrix.yaml", facts.load()).policy, signed=True)
PROOF = "2.7.1-cuda12.1-debian12-h200x2"
# Tiers 0 to 3 of the image of LOCKED, on two H200.
RUN = next(kept.signed for kept in kept_in(PROOFS) if kept.signed.name == f"{PROOF}-tier3.dsse.json")
IDS = {finding.id for finding in RUN.report.findings}
WHOLE = load_suite(ROOT / "smoke_tests")
SUITE = replace(WHOLE, checks=tuple(check for check in WHOLE.checks if check.id in IDS))
((BUILT_FROM, _),) = set(built_from(RUN.report.findings))
LOCKED = locks_in(PROOFS)[BUILT_FROM]
WHEN = datetime(2026, 11, 29, tzinfo=timezone.utc)
NEW = Digest("sha256:" + "5b" * 32)  # the image of the refreshed lock


def with_packages(locked: LockedCell, versions: dict[str, str]) -> LockedCell:
    """*locked* on a new base with other *versions* of packages."""
    there = locked.base.packages
    packages = tuple(replace(one, version=versions.get(one.name, one.version)) for one in there)
    assert packages != there
    return replace(locked, base=replace(locked.base, digest=Digest("sha256:" + "77" * 32), packages=packages))


REFRESHED = with_packages(LOCKED, {"openssl": "3.0.99-1"})


def claiming(findings: Iterable[Finding], **claims: Any) -> Iterator[Finding]:
    """*findings* with other values in the check `claims`, and bounds to match."""
    labels = {f"torchkiln.{name}": str(value) for name, value in claims.items()}
    for finding in findings:
        if finding.id == "claims":
            measured, threshold = json.loads(finding.measured), json.loads(finding.threshold)
            for values in (measured, {name: rule["equals"] for name, rule in threshold.items()}):
                values["image_json"].update(claims)
                values["labels"].update(labels)
            finding = replace(finding, measured=json.dumps(measured), threshold=json.dumps(threshold))
        yield finding


def changed(signed: SignedReport = RUN, **changes: Any) -> SignedReport:
    return replace(signed, report=replace(signed.report, **changes))


def tier0(locked: LockedCell, **changes: Any) -> SignedReport:
    """A run of tier 0 in the image of *locked*: as RUN, with the claims of *locked*, and without a GPU."""
    digest = lock_digest(locked)
    claims = facts_of(locked, {}, tag=TAG, lock_digest=digest, manifest=NEW)["claims"]
    host = {key: value for key, value in json.loads(RUN.report.host).items() if key != "driver"}
    overlay = {file.path: file for file in plan(locked, (), aliases=(), lock_digest=digest).overlay.files}
    host["image_json_sha256"] = hashlib.sha256(overlay[IMAGE_JSON].data).hexdigest()
    findings = claiming(RUN.report.findings, **{name: claims[name] for name in ("lock", "base", "recipe")})
    of_tier_0 = tuple(finding for finding in findings if finding.tier == 0)
    made = changed(image=NEW, findings=of_tier_0, host=json.dumps(host), **changes)
    return replace(made, name="tier0.json")


def decide(
    *earlier: SignedReport,
    locked: LockedCell = REFRESHED,
    known: Mapping[Digest, LockedCell] | None = None,
    policy: Any = POLICY,
    own: SignedReport | None = None,
    **options: Any,
) -> GateResult:
    """The gate's result for the image of *locked*, with its run of tier 0 and reports of *earlier* images."""
    locks = {lock_digest(LOCKED): LOCKED} if known is None else known
    found = tuple(earlier_images(earlier, locked, locks.get))
    return judge([own or tier0(locked)], policy, locked, SUITE, image=NEW, earlier=found, at=WHEN, **options)


def test_the_gpu_runs_of_an_earlier_image_count_after_a_refresh() -> None:
    result = decide(RUN)

    assert result.missing == ()
    assert result.gpus == (f"2 × NVIDIA H200 in {(RUN.report.image or '')[7:19]} (same GPU stack)",)
    assert decide(RUN, known={}).gpus_of(RUN.report).endswith(" (another image)")
    assert clear(result).result.image == NEW
    decided = clearance(clear(result))
    assert decided.content["reports"][1]["gpus"] == result.gpus[0]
    assert [lock_digest(kept) for kept in decision_of(decided, where="x").locks] == [lock_digest(LOCKED)]


def test_checks_that_are_newer_than_the_runs_must_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SUITE", WHOLE)
    newer = {check.id for check in WHOLE.checks if check.tier in POLICY.tiers} - IDS
    assert newer
    assert dict(decide(RUN).missing) == dict.fromkeys(newer, NOT_RUN)


def test_without_tier_0_in_the_image_itself_nothing_counts() -> None:
    missing = decide(RUN, own=replace(RUN, name="x")).missing

    assert ("x", f"is a report of another image: {RUN.report.image}, not {NEW}") in missing
    partial = _without("lock", tier0(REFRESHED))
    assert decide(RUN, own=partial).missing == (("lock", NOT_RUN),)


def _wheel(name: str, locked: LockedCell = REFRESHED) -> LockedCell:
    """*locked* with another wheel *name*."""
    wheels = (replace(one, sha256="0" * 64) if one.name == name else one for one in locked.wheels)
    return replace(locked, wheels=tuple(wheels))


def on_arm64(locked: LockedCell) -> LockedCell:
    """*locked* for linux/arm64."""
    cell = replace(locked.resolution.cell, platform=LINUX_ARM64.name)
    base = replace(locked.base, platform=LINUX_ARM64.name)
    return replace(locked, base=base, resolution=replace(locked.resolution, cell=cell))


STACKS = {
    "torch": _wheel("torch"),
    "cuDNN": _wheel("nvidia-cudnn-cu12"),
    "triton": _wheel("triton"),
    "torchvision": _wheel("torchvision"),
    "a requirement of torch": _wheel("sympy"),
    "libc": with_packages(REFRESHED, {"libc6": "2.36-9+deb12u99"}),
    "libstdc++": with_packages(REFRESHED, {"libstdc++6": "12.2.0-99"}),
    "libgcc": with_packages(REFRESHED, {"libgcc-s1": "12.2.0-99"}),
    "Python": replace(REFRESHED, base=replace(REFRESHED.base, python="3.11.9")),
    "platform": on_arm64(REFRESHED),  # with the same wheels, which no index has
}
NOT_RUN = "not run: no report contains it"


@pytest.mark.parametrize("other", STACKS.values(), ids=STACKS)
def test_another_gpu_stack_needs_runs_of_its_own(other: LockedCell) -> None:
    assert gpu_stack(other) != gpu_stack(LOCKED)

    missing = dict(decide(RUN, locked=other).missing)
    assert missing["cuda"] == missing["nccl-all-reduce"] == NOT_RUN


def test_other_packages_and_layers_are_not_part_of_the_stack() -> None:
    base = replace(LOCKED.base, digest=NEW, size=1)
    for same in (_wheel("jupyterlab"), replace(LOCKED, layers=LOCKED.layers[:1]), replace(LOCKED, base=base)):
        assert gpu_stack(same) == gpu_stack(LOCKED)


# --- attacks: each changes one thing of an accepted decision ---------------------------------------


def forged(**claims: Any) -> SignedReport:
    return changed(findings=tuple(claiming(RUN.report.findings, **claims)))


def _without(check: str, signed: SignedReport = RUN) -> SignedReport:
    return changed(signed, findings=tuple(one for one in signed.report.findings if one.id != check))


def _failed(check: str) -> SignedReport:
    failed = (
        replace(finding, outcome="failed", message="x") if finding.id == check else finding
        for finding in RUN.report.findings
    )
    return changed(findings=tuple(failed), verdict="fail")


def of(locked: LockedCell) -> tuple[SignedReport, dict[str, Any]]:
    """RUN as a run in the image of *locked*, which is known."""
    digest = lock_digest(locked)
    return forged(lock=digest), {"known": {digest: locked}}


ATTACKS: dict[str, tuple[SignedReport, dict[str, Any]]] = {
    "its lock is not known": (RUN, {"known": {}}),
    "another lock stands under its digest": (RUN, {"known": {lock_digest(LOCKED): REFRESHED}}),
    "the digest of the new lock is written into the report": (forged(lock=lock_digest(REFRESHED)), {}),
    # A lock's digest does not cover its layers.
    "its lock has another torch with the recorded layers": of(_wheel("torch", LOCKED)),
    "it was made by an older recipe": (forged(recipe=recipe.STACK_RECIPE - 1), {}),
    "it was made by a recipe of the future": (forged(recipe=recipe.RECIPE + 1), {}),
    "its files were not compared": (_without("lock"), {}),
    "it differs from its lock": (_failed("lock"), {}),
    "its lock was not read": (_without("claims"), {}),
    "its signature is not trusted": (replace(RUN, signers=()), {}),
    "its verdict is another": (changed(verdict="fail"), {}),
    "its suite is another": (changed(suite=NEW), {}),
    "its tag is another": (changed(tag=TAG.replace("2.7.1", "2.6.0")), {}),
    "it is too old": (changed(when="2026-05-01T00:00:00Z"), {}),
    "it is of the future": (changed(when="2027-01-01T00:00:00Z"), {}),
    "it lacks the nonce": (RUN, {"nonce": "12345678", "own": tier0(REFRESHED, nonce="12345678")}),
    "the policy forbids it": (RUN, {"policy": replace(POLICY, carry=0)}),
    "the policy allows one day": (RUN, {"policy": replace(POLICY, carry=1)}),
    "the policy allows reports of one day": (
        RUN,
        {"policy": replace(POLICY, report_age=1), "own": tier0(REFRESHED, when="2026-11-29T00:00:00Z")},
    ),
    "its lock uses an untrusted index": of(replace(LOCKED, untrusted=True)),
}


@pytest.mark.parametrize(("report", "options"), ATTACKS.values(), ids=ATTACKS)
def test_a_report_that_proves_nothing_about_the_stack_does_not_count(
    report: SignedReport, options: dict[str, Any]
) -> None:
    missing = dict(decide(report, **options).missing)

    assert missing["cuda"] == missing["nccl-all-reduce"] == NOT_RUN
    assert not {"claims", "lock", "tier0.json"} & missing.keys()


def test_only_the_lock_that_the_report_names_is_used() -> None:
    """A decision of another suite has no bounds for `claims`, so the digests are compared before."""
    locks = {lock_digest(LOCKED): LOCKED, lock_digest(REFRESHED): REFRESHED}
    assert [other.locked for other in earlier_images([RUN], REFRESHED, locks.get)] == [LOCKED]
    for wrong in (None, REFRESHED, _wheel("torch", LOCKED)):
        assert list(earlier_images([RUN], REFRESHED, {lock_digest(LOCKED): wrong}.get)) == []
    two = [RUN, forged(lock=lock_digest(REFRESHED))]  # of one image
    assert list(earlier_images(two, REFRESHED, locks.get)) == []


@pytest.mark.parametrize("tag", ["2.7.1-cuda12.1-cudnn9-runtime-sm90-ownuse", "2.7.1-cuda12.1-cudnn9-devel"])
def test_device_code_and_toolkit_are_part_of_the_stack(tag: str) -> None:
    locked = load_locked(IMAGES, tag)
    assert locked.device_code or locked.archives
    assert gpu_stack(replace(locked, device_code=None, archives=())) != gpu_stack(locked)


def test_a_check_that_failed_in_the_same_stack_is_refused() -> None:
    assert dict(decide(_failed("bf16")).missing) == {"bf16": f"failed: x ({RUN.name})"}


def test_a_report_cannot_state_its_stack() -> None:
    with pytest.raises(ConfigError, match="gpu_stack"):
        from_document({**document(RUN.report), "gpu_stack": gpu_stack(REFRESHED)}, where="a.json")


@pytest.mark.parametrize(
    ("diff_ids", "more", "named"),
    [
        ("a b top", {"CUDA_LAUNCH_BLOCKING": "1"}, "CUDA_LAUNCH_BLOCKING=1"),
        ("a b top", {"LD_PRELOAD": "/workspace/x.so"}, "LD_PRELOAD=/workspace/x.so"),
        ("a other top", {}, "layer 2 is other"),
        ("a b more top", {}, "4 layers"),
    ],
)
def test_tier_0_sees_other_variables_and_layers(diff_ids: str, more: dict[str, str], named: str) -> None:
    """The image to be cleared has the right lock, but another config or another layer: no check runs."""
    env = expected_env(REFRESHED, lock_digest(REFRESHED))
    expected = replace(LockedFiles.of(REFRESHED, [Digest("a"), Digest("b")], env), wheels={})
    assert faults({}, [Digest(text) for text in ("a", "b", "top")], env, expected) == ()
    found = faults({}, [Digest(text) for text in diff_ids.split()], env | more, expected)
    assert any(named in text for text in found)
    subject = SmokeSubject(image=NEW, tag=TAG, facts={}, verified=None)
    report = not_run(subject, Checks(suite=SUITE), found, runtime="rootfs", when="2026-11-28T00:00:00Z")
    own = tier0(REFRESHED)
    missing = dict(decide(RUN, own=replace(own, report=replace(report, host=own.report.host))).missing)

    assert missing["lock"].startswith("failed: the image differs from its lock")
    assert named in next(finding.message for finding in report.findings if finding.id == "lock")


# --- where the lock comes from ---------------------------------------------------------------------


def test_locks_are_found_beside_the_reports_and_damaged_ones_left_out(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a.lock.json", to_json(LOCKED))
    (tmp_path / "b.lock.json").write_bytes(to_json(REFRESHED)[:-9])
    (tmp_path / "c.lock.json").write_text("[]")

    assert list(locks_in(tmp_path)) == [lock_digest(LOCKED)]


@pytest.mark.parametrize(("value", "days"), [(True, 180), (False, 0), (30, 30), (None, 180)])
def test_the_policy_has_days_or_yes_or_no(value: object, days: int) -> None:
    assert policy_of({} if value is None else {"carry": value}).carry == days


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the locks are taken from the repository")
def test_make_golden_keeps_the_lock_of_an_earlier_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of 2.7.1 has changed: its version of HEAD is kept until no report needs it."""
    of_head = load_locked(IMAGES, TAG)
    now = {TAG: with_packages(of_head, {"openssl": "3.0.99-1"})}
    monkeypatch.setattr(earlier_locks, "PROOFS", tmp_path)
    monkeypatch.setattr(earlier_locks, "proofs", lambda folder: [forged(lock=lock_digest(of_head))])
    monkeypatch.setattr(earlier_locks, "load_locked", lambda at, tag: now.get(tag) or load_locked(at, tag))
    earlier_locks.main()
    assert list(locks_in(tmp_path)) == [lock_digest(of_head)]

    now.clear()
    earlier_locks.main()
    assert list(locks_in(tmp_path)) == []
