"""Pages and pictures of GPU runs: the committed ones, which are made from real reports, are up to date."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import reports
from tools import gpu_mutants, gpu_pages
from tools.gpu_pictures import pictures
from tools.gpu_runs import Run, runs
from tools.kept import present
from torchkiln.model.digest import Digest
from torchkiln.smoke import report

BENCHMARK = replace(reports.found("busbw", "failed", "too slow"), id="benchmark", tier=3)
FAILED = Run(file="two.json", name="two", report=replace(reports.report(), findings=(BENCHMARK,)))


def test_a_report_is_of_an_earlier_image_if_its_lock_gives_another_digest(tmp_path: Path) -> None:
    """It is, too, if its cell has no lock any more; a report without an image is not."""
    tag = reports.TAG
    of = {
        "now": (present(tag), tag),
        "before": (Digest("sha256:" + "ab" * 32), tag),
        "gone": (present(tag), "0.0.0-cuda12.1-cudnn9-runtime"),
        "none": (None, None),
    }
    for name, (image, its) in of.items():
        made = reports.report(image=image, tag=its, runtime="rootfs" if image else "environment")
        (tmp_path / f"{name}.json").write_bytes(report.to_json(made))

    earlier = {"now": False, "before": True, "gone": True, "none": False}
    assert {run.name: run.earlier for run in runs(tmp_path)} == earlier


def test_a_check_that_failed_gives_no_picture_and_no_figure() -> None:
    assert pictures([FAILED]) == {}
    assert gpu_pages.benchmark_part([FAILED]) == gpu_pages.busbw_part([FAILED]) == ""
    assert "`benchmark` failed: too slow" in gpu_pages.checks_part([FAILED])


def test_a_long_value_of_the_row_above_is_a_ditto_mark() -> None:
    found = gpu_pages._dittoed(("", ""), [("a", "NVIDIA H200"), ("a", "NVIDIA H200"), ("a", "NVIDIA H100")])
    assert found.splitlines()[2:] == ["| a | NVIDIA H200 |", "| a | ″ |", "| a | NVIDIA H100 |"]


JUNIT = """<testsuites><testsuite timestamp="2026-11-21T2{hour}:00:00.5+00:00">
<testcase classname="tests.smoke_mutants.test_host_gpu" name="test_here"><properties>
<property name="gpus" value="2 × NVIDIA H200"/><property name="torch" value="2.11.0 for CUDA 13.0"/>
</properties></testcase>
<testcase classname="tests.smoke_mutants.test_ranks" name="test_x[gpus]">{came}</testcase>
<testcase classname="tests.smoke_mutants.test_ranks" name="test_{hour}"><skipped/></testcase>
</testsuite></testsuites>"""


def test_files_that_disagree_or_name_no_gpu_give_no_record() -> None:
    failed, passed = (JUNIT.format(hour=2, came=came).encode() for came in ("<error/>", ""))

    with pytest.raises(
        ValueError, match=r"test_ranks.py: test_x\[gpus\]: conflicting outcomes: failed and passed"
    ):
        gpu_mutants.record([failed, passed])
    with pytest.raises(ValueError, match="no file names the GPUs"):
        gpu_mutants.record([failed.replace(b'gpus" value', b'cpus" value')])
