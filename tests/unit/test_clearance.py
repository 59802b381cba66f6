"""The gate's decision as a statement: what was written is read back, and which of several counts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.reports import IMAGE, LOCKED, SUITE, report, signed_report
from torchkiln.errors import VerificationFailed
from torchkiln.gate.clearance import clearance, decision_of, prevailing
from torchkiln.gate.gate import clear, judge, override
from torchkiln.matrix.policy import Policy

CLEARED = clear(judge([signed_report(report())], Policy(), LOCKED, SUITE, image=IMAGE))
OVERRIDDEN = override(judge([], Policy(), LOCKED, SUITE, image=IMAGE), "for CPUs only")


def test_it_is_read_as_it_was_written() -> None:
    found = decision_of(clearance(CLEARED), where="x")
    assert (found.suite, found.override, found.missing) == (SUITE.digest, None, ())
    assert [(one.id, one.tier) for one in found.checks] == [(one.id, one.tier) for one in SUITE.checks]
    assert found.gpus == ("2 × NVIDIA H200",)

    found = decision_of(clearance(OVERRIDDEN), where="x")
    assert (found.override, found.missing) == ("for CPUs only", OVERRIDDEN.result.missing)
    assert found.missing


def test_what_overrode_nothing_prevails() -> None:
    """An image that was proved stays proved though it is published again in spite of another policy."""
    proved = decision_of(clearance(CLEARED), where="x")
    first, second = (replace(proved, override=reason) for reason in ("first", "second"))

    assert prevailing([first, proved, second]) == proved
    assert prevailing([first, second]) == second
    assert prevailing([]) is None


@pytest.mark.parametrize("key", ["suite", "checks", "override", "missing", "reports"])
def test_what_is_none(key: str) -> None:
    told = clearance(CLEARED)
    said = {name: value for name, value in told.content.items() if name != key}
    for wrong in (replace(told, predicate=json.dumps(said)), replace(told, kind="urn:x")):
        with pytest.raises(VerificationFailed, match="x: "):
            decision_of(wrong, where="x")
