"""Reuse of recorded runs: an inconclusive run replaces no passed run, and a failure is never hidden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.listeners import SilentSmokeListener
from tests.publisher import new_publisher
from tests.reports import TAG, found, report
from torchkiln.gate.gate import clear
from torchkiln.gate.inputs import GateInputs
from torchkiln.locks.lock import load_locked
from torchkiln.matrix.policy import Policy
from torchkiln.model.report import Finding, SmokeReport
from torchkiln.smoke.history import KeptRuns
from torchkiln.smoke.reuse import TIME, Question, key_of, reusable_report
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import verdict

START = datetime(2026, 11, 22, tzinfo=timezone.utc)
AT = START + timedelta(days=1)
CHECKS = ("import", "cuda", "nccl-all-reduce")
TIER_2 = "nccl-all-reduce"


def finding(name: str, outcome: str) -> Finding:
    """A finding; the outcome `inconclusive` is a failure that the host caused."""
    if outcome == "inconclusive":
        return found(name, "failed", "GPU is lost")
    return found(name, outcome, "" if outcome == "passed" else "because")


def run(hour: int, outcomes: Mapping[str, str]) -> SmokeReport:
    """The report of a run that started at *hour* o'clock."""
    findings = tuple(finding(name, outcome) for name, outcome in outcomes.items())
    when = f"{START + timedelta(hours=hour):{TIME}}"
    return replace(report(), findings=findings, verdict=verdict(findings), when=when)


def kept(runs: Iterable[SmokeReport]) -> list[SmokeReport]:
    """The runs that a cache contains after *runs* were recorded in it, one after the other."""
    return list({key_of(run): run for run in runs}.values())


def question_of(asked: SmokeReport, *checks: str) -> Question:
    """The question whether *checks* passed in a run like *asked*."""
    assert asked.image
    gpus = ("NVIDIA H200", "NVIDIA H200")
    return Question(
        image=asked.image, suite=asked.suite, runtime=asked.runtime, gpus=gpus, checks=frozenset(checks)
    )


def answer(runs: Iterable[SmokeReport], *checks: str) -> SmokeReport | None:
    return reusable_report(kept(runs), question_of(report(), *checks), at=AT, days=30)


def passed(*checks: str) -> dict[str, str]:
    return dict.fromkeys(checks, "passed")


@pytest.mark.parametrize("outcome", ["skipped", "inconclusive"])
@pytest.mark.parametrize("also", [(), ("import", "cuda")], ids=["alone", "with others that passed"])
def test_an_inconclusive_tier_2_does_not_affect_passed_checks(outcome: str, also: tuple[str, ...]) -> None:
    first = run(1, passed("import", "cuda"))
    later = run(2, {**passed(*also), TIER_2: outcome})

    assert later.verdict == "inconclusive"
    assert answer([first, later], "import", "cuda") == first
    assert answer([first, later], "import", TIER_2) is None


@pytest.mark.parametrize("outcome", ["skipped", "inconclusive"])
def test_a_check_that_became_inconclusive_runs_again(outcome: str) -> None:
    """The host has changed, so the passed run is not reused; it stays in the cache."""
    runs = [run(1, passed(*CHECKS)), run(2, {**passed("import", "cuda"), TIER_2: outcome})]

    assert answer(runs, TIER_2) is None
    assert answer(runs, "import") == runs[0]
    assert kept(runs) == runs


def test_a_later_failure_of_any_check_counts() -> None:
    first = run(1, passed("import", "cuda"))

    assert answer([first, run(2, {TIER_2: "failed"})], "import", "cuda") is None
    assert answer([run(2, {TIER_2: "failed"}), run(3, passed("import", "cuda"))], "import", "cuda")


def test_an_inconclusive_run_does_not_replace_a_failure() -> None:
    """If it did, the failure would be lost, and the gate would count an earlier passed run again."""
    runs = [
        run(1, passed(*CHECKS)),
        run(2, {"import": "failed", "cuda": "passed"}),
        run(3, {"import": "skipped", "cuda": "passed"}),
    ]

    assert answer(runs, "cuda") is None


def test_a_report_with_a_wrong_verdict_counts_as_a_failure() -> None:
    first, later = run(1, passed("import")), run(2, passed("cuda"))

    assert answer([first, later], "import") == first
    for stated in ("fail", "inconclusive"):
        assert answer([first, replace(later, verdict=stated)], "import") is None


_OUTCOMES = st.sampled_from(("passed", "failed", "skipped", "inconclusive", "not-applicable"))
_RUN = st.dictionaries(st.sampled_from(CHECKS), _OUTCOMES, min_size=1)


@given(drawn=st.lists(_RUN, max_size=6), requested=st.sets(st.sampled_from(CHECKS), min_size=1))
def test_a_failure_is_never_hidden(drawn: list[dict[str, str]], requested: set[str]) -> None:
    """A run is reused only if the later runs did not fail, or the failed checks passed again afterwards."""
    runs = [run(hour, outcomes) for hour, outcomes in enumerate(drawn)]
    answered = answer(runs, *requested)
    if answered is None:
        return

    assert answered.verdict == "pass"
    assert requested <= {finding.id for finding in answered.findings}
    after = list(takewhile(lambda earlier: earlier != answered, reversed(runs)))
    for at, later in enumerate(after):
        ids = {finding.id for finding in later.findings}
        if later.verdict == "fail":
            assert any(
                newer.verdict == "pass" and {finding.id for finding in newer.findings} == ids
                for newer in after[:at]
            )


@given(drawn=st.lists(_RUN, max_size=6))
def test_the_last_conclusive_run_of_the_same_checks_stays(drawn: list[dict[str, str]]) -> None:
    runs = [run(hour, outcomes) for hour, outcomes in enumerate(drawn)]
    left = kept(runs)

    for names in {frozenset(outcomes) for outcomes in drawn}:
        same = [run for run, outcomes in zip(runs, drawn, strict=True) if set(outcomes) == names]
        conclusive = [run for run in same if run.verdict != "inconclusive"]
        assert [run for run in left if run in conclusive] == conclusive[-1:]


def test_the_gate_counts_the_passes_of_before_and_not_a_stale_inconclusive_run(tmp_path: Path) -> None:
    """Tiers 0 and 1 passed; a later tier 2 on a broken host changes nothing. An earlier inconclusive run that
    is too old, and whose checks passed since, does not count; a failure always does."""
    publisher = new_publisher(tmp_path / "publisher")
    image = publisher.build()
    locked = load_locked(publisher.folder / "images", TAG)
    policy = Policy(tiers=(0, 1), checks=(), report_age=30)
    runs = KeptRuns(store=publisher.store, listener=SilentSmokeListener())
    inputs = GateInputs(policy=policy, suite=load_suite(publisher.suite), runs=runs)
    now = datetime.now(timezone.utc)

    def keep(days: int, *names: str, **more: str) -> None:
        """Record a run *days* ago, in which *names* passed and *more* had the given outcomes."""
        complete = publisher.report(image)
        findings = [item for item in complete.findings if item.id in names]
        findings += [finding(name.replace("_", "-"), outcome) for name, outcome in more.items()]
        findings = [replace(item, tier=2) if item.id == TIER_2 else item for item in findings]
        when = f"{now - timedelta(days=days):{TIME}}"
        publisher.keep(replace(complete, findings=tuple(findings), verdict=verdict(findings), when=when))

    keep(40, "import", "compile-cpu", nccl_all_reduce="skipped")
    keep(2, "import", "compile-cpu", "cuda", "bf16")
    keep(1, "import", nccl_all_reduce="inconclusive")
    assert clear(inputs.judge(image, locked, publisher.folder / "images")).result.missing == ()

    keep(0, nccl_all_reduce="failed")
    assert (
        clear(inputs.judge(image, locked, publisher.folder / "images")).result.missing == ()
    )  # the policy does not require it
    keep(0, bf16="failed")
    assert [name for name, _ in inputs.judge(image, locked, publisher.folder / "images").missing] == ["bf16"]
