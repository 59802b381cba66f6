"""docs/smoke.md tells of every check and every host's fault, and of none that is not.

Its code is executed by tests/smoke_mutants/test_usual_snippets.py.
"""

from __future__ import annotations

import re

import pytest

from smoke_tests.catalogue import catalogue
from smoke_tests.gpus import lacking
from tests.smoke_suites import SUITE
from torchkiln.matrix.facts import load
from torchkiln.smoke.verdict import HOST_FAULTS

PAGE = (SUITE.parent / "docs" / "smoke.md").read_text("utf-8")


def rows(title: str) -> list[list[str]]:
    """The cells of the table under the heading *title*."""
    part = re.split(r"^#+ ", PAGE.split(f"# {title}", 1)[1], maxsplit=1, flags=re.M)[0]
    found = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1:]]


TITLES = (
    "Tier 0: no GPU",
    "Tier 1: one GPU",
    "Tier 2: two GPUs or more, all that are there",
    "Tier 3: the benchmark",
)


@pytest.mark.parametrize(("tier", "title"), [*enumerate(TITLES)])
def test_each_check_has_a_row_with_its_mutants(tier: int, title: str) -> None:
    table = rows(title)
    assert sorted(row[0] for row in table) == [one.id for one in catalogue(SUITE) if one.tier == tier]
    assert all(len(row) == 3 and row[2] for row in table)


def test_each_fault_of_a_host_that_is_known_by_its_text_has_a_row() -> None:
    assert [row[0] for row in rows("Failures of the host")] == [fault for _, fault in HOST_FAULTS]


def test_the_sentence_for_torch_2_0_is_the_one_that_is_told() -> None:
    gpu = {"capability": [9, 0], "memory": 80 << 30, "free": None}
    driver = {"libcuda": None, "init": 0, "visible": None, "gpus": [gpu], "driver": None, "cuda": "13.0"}
    archs = load().releases["2.0.1"].variant("cu117").archs
    told = lacking(1, {"driver": driver}, {"archs": archs, "wheel_cuda": "11.7"})
    assert f"\n    {told}\n" in PAGE
