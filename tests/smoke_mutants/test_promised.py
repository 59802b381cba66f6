"""Without a GPU, every check of tiers 1 to 3 fails, even if the runner's test of the host is bypassed.

Each runs with a torch that finds no GPU: a CPU build, or hidden GPUs. New checks are included automatically.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from smoke_tests.catalogue import Check, catalogue
from tests.smoke_mutants.mutant import check, environment, needs_torch
from tests.smoke_suites import FACTS, SUITE, findings, run_suite

PROMISED = [check for check in catalogue(SUITE) if check.tier > 0]
LIMIT = 120  # seconds; a check that needs a GPU fails at once
# Messages of checks that failed because of an error in the check or the harness.
_OTHERWISE = re.compile(
    r"(Name|Import|ModuleNotFound|Syntax|Indentation|Lookup|Key|Index|UnboundLocal|Recursion|Attribute)Error"
    r"|fixture '|^no result|timed out after|no value has a bound|skipped itself"
)


@needs_torch
@pytest.mark.parametrize("promised", PROMISED, ids=lambda one: one.id)
def test_a_check_fails_without_its_gpu(promised: Check, tmp_path: Path) -> None:
    facts = FACTS | {"claims": FACTS["claims"] | environment()["claims"]}
    result = check(promised.id, tmp_path, facts=facts, limit=LIMIT, CUDA_VISIBLE_DEVICES="")
    assert result["outcome"] == "failed"
    assert result["message"]
    assert not _OTHERWISE.search(result["message"]), result["message"]


def test_every_tier_has_checks() -> None:
    assert {check.tier for check in PROMISED} == {1, 2, 3}


def test_the_runner_starts_none_of_them_and_gives_the_reason(tmp_path: Path) -> None:
    """Each check is skipped because of the host, or does not apply; none passes or fails."""
    only = [word for check in PROMISED for word in ("--only", check.id)]
    found = findings(run_suite(SUITE, tmp_path, "--tier", "3", *only, env=_HIDDEN))
    assert set(found) == {check.id for check in PROMISED}
    assert {item["outcome"] for item in found.values()} == {"skipped", "not-applicable"}
    assert all(
        item["message"].startswith("host: ") for item in found.values() if item["outcome"] == "skipped"
    )


_HIDDEN = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
