"""A GPU was promised and there is none: every check of tiers 1 to 3 fails, whatever the gate before it does.

Each runs past the runner's look at the host, with a torch that has no GPU: its CPU build, or all are hidden.
A check that somebody adds is in here by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smoke_tests.catalogue import Check, catalogue
from tests.smoke_mutants.mutant import check, environment, needs_torch
from tests.smoke_suites import FACTS, SUITE, findings, run_suite

PROMISED = [check for check in catalogue(SUITE) if check.tier > 0]
LIMIT = 120  # seconds: what needs a GPU misses it at once
# Ends of a check that never came to miss a GPU: a fault of its own, or of the harness.
_OTHERWISE = re.compile(
    r"(Name|Import|ModuleNotFound|Syntax|Indentation|Lookup|Key|Index|UnboundLocal|Recursion|Attribute)Error"
    r"|fixture '|^no result|no end within|the check bounded nothing|skipped itself"
)


@needs_torch
@pytest.mark.parametrize("promised", PROMISED, ids=lambda one: one.id)
def test_a_check_fails_without_its_gpu(promised: Check, tmp_path: Path) -> None:
    facts = FACTS | {"claims": FACTS["claims"] | environment()["claims"]}
    told = check(promised.id, tmp_path, facts=facts, limit=LIMIT, CUDA_VISIBLE_DEVICES="")
    assert told["outcome"] == "failed"
    assert told["message"]
    assert not _OTHERWISE.search(told["message"]), told["message"]


def test_every_tier_has_checks_that_are_asked() -> None:
    assert {check.tier for check in PROMISED} == {1, 2, 3}


def test_the_runner_starts_none_of_them_and_says_why(tmp_path: Path) -> None:
    """Skipped with the host's sentence, or left out for a fact: never passed, and no failure of the image."""
    only = [word for check in PROMISED for word in ("--only", check.id)]
    found = findings(run_suite(SUITE, tmp_path, "--tier", "3", *only, env=_HIDDEN))
    assert set(found) == {check.id for check in PROMISED}
    assert {one["outcome"] for one in found.values()} == {"skipped", "not-applicable"}
    assert all(one["message"].startswith("host: ") for one in found.values() if one["outcome"] == "skipped")


_HIDDEN = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
