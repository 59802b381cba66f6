"""Pages and pictures of GPU runs are generated from reports only, are complete, and are up to date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools import gpu_mutants, gpu_pages
from tools.gpu_pictures import all_reduces, pictures
from tools.gpu_runs import Run, runs, slowest_rank
from tools.kept import present
from torchkiln.model.digest import Digest
from torchkiln.model.report import Finding, Outcome, SmokeReport
from torchkiln.smoke import report
from torchkiln.smoke.verdict import verdict
from torchkiln.util.places import ROOT

GIB = 1 << 30
DRIVER = {
    "driver": "580.10",
    "cuda": "13.0",
    "peers": [[0, 1], [1, 0]],
    "gpus": [{"name": "NVIDIA H200", "capability": [9, 0], "memory": 140 * GIB}] * 2,
}
RATES = {"fp32": 500.0, "tf32": 1300.0, "fp16": 2200.0, "bf16": 2300.0}
TORCH = {"torch": "2.11.0+cu130", "build_cuda": "13.0"}


def of(scale: float) -> dict[str, float]:
    return {precision: rate * scale for precision, rate in RATES.items()}


BENCHMARK: dict[str, Any] = {
    **TORCH,
    "device": "NVIDIA H200",
    "batch": 64,
    "budget": 16 * GIB,
    **{
        name: value
        for length, slower in ((128, 1.0), (512, 0.25))
        for name, value in {
            f"samples_per_s_{length}": of(slower),
            f"step_ms_{length}": {key: [64000 / rate, 68000 / rate] for key, rate in of(slower).items()},
            f"peak_bytes_{length}": dict.fromkeys(RATES, 4 * GIB) | {"fp32": 6 * GIB},
            f"largest_batch_{length}": dict.fromkeys(RATES, 300) | {"fp32": 180},
            f"speed_{length}": 4.4,
            f"speed_over_tf32_{length}": 1.7,
            f"memory_{length}": 0.667,
            f"batch_{length}": 1.67,
        }.items()
    },
    "loss_fp32": [2.0 * 0.98**step for step in range(200)],
    "loss_fp16": [2.0 * 0.981**step for step in range(200)],
    "loss_fall_fp32": 0.02,
    "loss_fall_fp16": 0.02,
    "loss_gap": 0.000107,
}
BOUNDS = {
    **{f"speed_{length}": {"at_least": 1.5} for length in (128, 512)},
    **{f"memory_{length}": {"at_most": most} for length, most in ((128, 0.85), (512, 0.7))},
    **{f"batch_{length}": {"at_least": 1.4} for length in (128, 512)},
    "loss_gap": {"at_most": 0.1},
}
BUSBW = {
    "link": "NVLink",
    "busbw_gb_s": [{"1024": 0.05, "1048576": 60.0, "1073741824": 333.0}] * 1
    + [{"1024": 0.06, "1048576": 50.0, "1073741824": 330.0}],
}


def finding(
    check: str,
    tier: int,
    measured: Mapping[str, Any],
    bounds: Mapping[str, Any],
    outcome: Outcome = "passed",
    message: str = "",
) -> Finding:
    return Finding(
        id=check,
        tier=tier,
        outcome=outcome,
        seconds=12.3,
        message=message,
        measured=json.dumps(measured),
        threshold=json.dumps(bounds),
    )


def run_of(*findings: Finding, name: str = "two", driver: Mapping[str, Any] = DRIVER) -> Run:
    return Run(
        file="two.json",
        name=name,
        report=SmokeReport(
            image=None,
            tag=None,
            suite=Digest("sha256:" + "1" * 64),
            runtime="environment",
            tool="0.1.0",
            when="2026-11-21T18:00:00Z",
            nonce=None,
            findings=findings,
            verdict=verdict(findings),
            host=json.dumps({"kernel": "6.1", "driver": driver}),
        ),
    )


CUDA = finding("cuda", 1, TORCH | {"is_available": True}, {"is_available": {"equals": True}})
WHOLE = run_of(
    CUDA,
    finding("busbw", 2, BUSBW, {"link": {"equals": "NVLink"}}),
    finding("fp8", 1, {}, {}, "not-applicable", "fp8-needs-8.9"),
    finding("hang", 2, {}, {"x": {"equals": 1}}, "failed", "a | sentence\nand more"),
    finding("benchmark", 3, BENCHMARK, BOUNDS),
)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder like docs/, with the report WHOLE and a report of a machine without GPUs."""
    (tmp_path / "proofs").mkdir()
    (tmp_path / "gpu-proof.md").write_text((ROOT / "docs" / "gpu-proof.md").read_text())
    (tmp_path / "proofs" / "two.json").write_bytes(report.to_json(WHOLE.report))
    (tmp_path / "proofs" / "other.json").write_text('{"schema": 1, "host": {"cores": 2}, "checks": []}')
    (tmp_path / "proofs" / "two.dsse.json").write_text('{"payload": "", "signatures": []}')
    return tmp_path


def written(docs: Path) -> str:
    """The text of the page, after all stale files have been written again."""
    for name, made in gpu_pages.stale(docs).items():
        if made is None:
            (docs / name).unlink()
        else:
            (docs / name).write_text(made)
    return (docs / "gpu-proof.md").read_text()


def test_the_page_has_device_driver_torch_and_all_figures(docs: Path) -> None:
    page = written(docs)

    line = "2 × NVIDIA H200; driver 580.10, CUDA 13.0; torch 2.11.0+cu130 for CUDA 13.0"
    row = "| [two](proofs/two.json) | " + line.replace("; ", " | ")
    assert f"{row} | none | 2026-11-21 | fail |" in page
    assert (
        "| two | 1 passed, 12 s | 1 passed, 12 s | 1 passed, 12 s | `fp8` not-applicable: fp8-needs-8.9; "
        in page
    )
    assert "; `hang` failed: a \\| sentence |" in page
    assert "| FP32 / TF32 / AMP FP16 / AMP BF16 | samples/s, 128 words |" in page
    assert "| two | 500 / 1,300 / 2,200 / 2,300 | 125 / 325 / 550 / 575 | 6.00 / 4.00 / 4.00 / 4.00 |" in page
    columns, _, bounds, row = (
        line.split(" | ") for line in page[page.index("| AMP FP16 | samples") :].splitlines()[:4]
    )
    gates = {name: (value, bound) for name, value, bound in zip(columns, row, bounds, strict=True)}
    assert gates["samples a second / FP32's, 128 words"] == ("4.40", "≥ 1.5")
    assert gates["samples a second / TF32's, 512 words"] == ("1.70", "none")
    assert gates["widest distance of the smoothed loss curve from FP32's |"] == ("0.00011 |", "≤ 0.1 |")
    assert "| 1 GiB | 330 |" in page
    assert "| 1 MiB | 50 |" in page


def test_a_run_of_an_earlier_image_is_marked_in_all_tables() -> None:
    """The mark is also above the benchmark, and a line explains it. Runs of present images have no mark."""
    image, tag = Digest("sha256:" + "ab" * 32), "2.7.1-cuda12.1-cudnn9-runtime"
    smoke_report = replace(WHOLE.report, image=image, tag=tag)
    before, now = (
        replace(WHOLE, report=smoke_report, name=name, earlier=name == "one") for name in ("one", "two")
    )
    mark = "† a run of an earlier image: its lock gives a different digest today"
    parts = (gpu_pages.runs_part, gpu_pages.checks_part, gpu_pages.benchmark_part, gpu_pages.busbw_part)

    assert [part([before, now]).count(mark) for part in parts] == [1, 1, 1, 1]
    assert ["†" in part([now, WHOLE]) for part in parts] == [False] * 4
    assert "| an earlier image, `abababababab` † |" in gpu_pages.runs_part([before, now])
    assert "\n| one † | 1 passed" in gpu_pages.checks_part([before, now])
    assert "\n| one † | 500 / " in gpu_pages.benchmark_part([before, now])
    assert "| one †: 2 × H200, NVLink, GB/s | two: 2 ×" in gpu_pages.busbw_part([before, now])


def test_a_report_is_of_an_earlier_image_if_its_lock_gives_another_digest(docs: Path) -> None:
    """It is, too, if its cell has no lock any more; a report without an image is not."""
    tag = "2.7.1-cuda12.1-cudnn9-runtime"
    of = {
        "now": (present(tag), tag),
        "before": (Digest("sha256:" + "ab" * 32), tag),
        "gone": (present(tag), "0.0.0-cuda12.1-cudnn9-runtime"),
    }
    for name, (image, its) in of.items():
        smoke_report = replace(WHOLE.report, image=image, tag=its)
        (docs / "proofs" / f"{name}.json").write_bytes(report.to_json(smoke_report))

    assert {run.name: run.earlier for run in runs(docs / "proofs")} == {
        "now": False,
        "before": True,
        "gone": True,
        "two": False,
    }


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


def test_a_check_that_failed_gives_no_picture_and_no_figure() -> None:
    failed = run_of(CUDA, finding("benchmark", 3, BENCHMARK, BOUNDS, "failed", "speed_128: too slow"))

    assert pictures([failed]) == {}
    assert gpu_pages.benchmark_part([failed]) == gpu_pages.busbw_part([failed]) == ""
    assert "| `benchmark` failed: speed_128: too slow |" in gpu_pages.checks_part([failed])


def test_plots_are_of_the_newest_torch_on_each_model_of_gpu() -> None:
    names = [
        run_of(finding("benchmark", 3, {**BENCHMARK, "torch": torch, "device": device}, BOUNDS), name=name)
        for name, torch, device in (
            ("newest", "2.11.0+cu130", "NVIDIA H200"),
            ("older", "2.9.1+cu128", "NVIDIA H200"),
            ("other", "2.9.1+cu128", "NVIDIA H100"),
        )
    ]

    assert sorted(pictures(names)) == sorted(
        f"gpu-{what}-{name}.svg" for what in ("speed", "memory", "losses") for name in ("newest", "other")
    )


def test_the_slowest_rank_counts() -> None:
    assert slowest_rank(BUSBW) == {1024: 0.05, 1048576: 50.0, 1073741824: 330.0}
    assert [line.label for _, line in all_reduces([WHOLE, run_of(CUDA)])] == ["2 × H200, NVLink"]
