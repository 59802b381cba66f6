"""Pages and pictures of runs on GPUs: made of reports alone, whole, and fresh."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.lines import Series, decades, linear, lines, size, sizes
from bench.results import addresses_in
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
    """A folder like docs/, with this one report and one of a machine without GPUs."""
    (tmp_path / "proofs").mkdir()
    (tmp_path / "gpu-proof.md").write_text((ROOT / "docs" / "gpu-proof.md").read_text())
    (tmp_path / "proofs" / "two.json").write_bytes(report.to_json(WHOLE.report))
    (tmp_path / "proofs" / "other.json").write_text('{"schema": 1, "host": {"cores": 2}, "checks": []}')
    (tmp_path / "proofs" / "two.dsse.json").write_text('{"payload": "", "signatures": []}')
    return tmp_path


def written(docs: Path) -> str:
    """The page after all that was stale has been written."""
    for name, made in gpu_pages.stale(docs).items():
        if made is None:
            (docs / name).unlink()
        else:
            (docs / name).write_text(made)
    return (docs / "gpu-proof.md").read_text()


def test_the_pages_of_this_repository_are_fresh() -> None:
    check = [sys.executable, str(ROOT / "tools" / "gpu_pages.py"), "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_report_becomes_a_page_and_pictures(docs: Path) -> None:
    """Once written it is fresh; a part that is touched is not."""
    assert set(gpu_pages.stale(docs)) == {
        "gpu-proof.md",
        "gpu-busbw.svg",
        *(f"gpu-{what}-two.svg" for what in ("speed", "memory", "losses")),
    }
    page = written(docs)
    assert gpu_pages.stale(docs) == {}

    (docs / "gpu-proof.md").write_text(page.replace("333", "999").replace("| 4.40 |", "| 9.40 |"))
    assert list(gpu_pages.stale(docs)) == ["gpu-proof.md"]


def test_what_no_report_gives_any_more_goes(docs: Path) -> None:
    fresh = written(docs)
    (docs / "proofs" / "two.json").unlink()

    assert [made for name, made in gpu_pages.stale(docs).items() if name.endswith(".svg")] == [None] * 4
    assert "No report of such a run" in written(docs)
    assert not list(docs.glob("*.svg"))
    assert fresh != written(docs)


def test_the_page_tells_device_driver_torch_and_every_figure(docs: Path) -> None:
    page = written(docs)

    told = "2 × NVIDIA H200; driver 580.10, CUDA 13.0; torch 2.11.0+cu130 for CUDA 13.0"
    assert told in page
    row = "| [two](proofs/two.json) | " + told.replace("; ", " | ")
    assert f"{row} | none | environment | 2026-11-21T18:00:00Z | fail |" in page
    assert "| 1 | `cuda` | passed, 12 s |" in page
    assert "| 1 | `fp8` | not-applicable: fp8-needs-8.9 |" in page
    assert "| 2 | `hang` | failed, 12 s |" in page
    assert "| AMP FP16 | 2,200 | 550 | 4.00 | 4.00 | 300 | 300 |" in page
    assert "| samples a second / FP32's, 128 words | 4.40 | ≥ 1.5 |" in page
    assert "| samples a second / TF32's, 512 words | 1.70 | none |" in page
    assert "| widest distance of the smoothed loss curve from FP32's | 0.00011 | ≤ 0.1 |" in page
    assert "| 1 GiB | 330 |" in page
    assert "| 1 MiB | 50 |" in page


def test_a_run_of_an_earlier_image_is_marked_wherever_a_figure_of_it_stands() -> None:
    """In every table and over the benchmark, with a line that says what the mark means; no other run is."""
    image, tag = Digest("sha256:" + "ab" * 32), "2.7.1-cuda12.1-cudnn9-runtime"
    told = replace(WHOLE.report, image=image, tag=tag)
    before, now = (replace(WHOLE, report=told, name=name, earlier=name == "one") for name in ("one", "two"))
    mark = "† a run of an earlier image: its lock gives another digest today"
    parts = (gpu_pages.runs_part, gpu_pages.checks_part, gpu_pages.benchmark_part, gpu_pages.busbw_part)

    assert [part([before, now]).count(mark) for part in parts] == [1, 1, 1, 1]
    assert ["†" in part([now, WHOLE]) for part in parts] == [False] * 4
    assert f"| {tag}, an earlier image, `abababababab` † |" in gpu_pages.runs_part([before, now])
    assert "| one † | two |" in gpu_pages.checks_part([before, now])
    assert f"### one †\n\n{WHOLE.summary()}" in gpu_pages.benchmark_part([before, now])
    assert "| one †: 2 × H200, NVLink, GB/s | two: 2 ×" in gpu_pages.busbw_part([before, now])


def test_a_report_is_of_an_earlier_image_by_what_its_lock_gives(docs: Path) -> None:
    """One of no image is not; one whose cell has lost its lock is."""
    tag = "2.7.1-cuda12.1-cudnn9-runtime"
    of = {
        "now": (present(tag), tag),
        "before": (Digest("sha256:" + "ab" * 32), tag),
        "gone": (present(tag), "0.0.0-cuda12.1-cudnn9-runtime"),
    }
    for name, (image, its) in of.items():
        told = replace(WHOLE.report, image=image, tag=its)
        (docs / "proofs" / f"{name}.json").write_bytes(report.to_json(told))

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


def test_a_run_of_the_mutants_becomes_a_table(docs: Path) -> None:
    files = [JUNIT.format(hour=hour, came="<failure/>").encode() for hour in (3, 2)]
    (docs / "proofs" / "two.mutants.json").write_text(json.dumps(gpu_mutants.record(files)))
    page = written(docs)

    assert "[two.mutants](proofs/two.mutants.json): 2 × NVIDIA H200; torch 2.11.0 for CUDA 13.0; " in page
    assert "2026-11-21T22:00:00Z" in page
    assert "| `test_ranks.py` | 0 | 1 | 2 |" in page
    assert "| all | 1 | 1 | 2 |" in page


def test_files_that_disagree_or_tell_of_no_gpu_make_no_record() -> None:
    failed, passed = (JUNIT.format(hour=2, came=came).encode() for came in ("<error/>", ""))

    with pytest.raises(
        ValueError, match=r"test_ranks.py: test_x\[gpus\]: conflicting outcomes: failed and passed"
    ):
        gpu_mutants.record([failed, passed])
    with pytest.raises(ValueError, match="no file names the GPUs"):
        gpu_mutants.record([failed.replace(b'gpus" value', b'cpus" value')])


def test_links_of_the_page_lead_to_what_is_written(docs: Path) -> None:
    page = written(docs)
    targets = re.findall(r"\]\(([^)]+)\)", page)

    assert {target for target in targets if target.endswith(".svg")} == {
        path.name for path in docs.glob("*.svg")
    }
    assert "proofs/two.json" in targets


def test_a_check_that_failed_gives_no_picture_and_no_figure() -> None:
    failed = run_of(CUDA, finding("benchmark", 3, BENCHMARK, BOUNDS, "failed", "speed_128: too slow"))

    assert pictures([failed]) == {}
    assert gpu_pages.benchmark_part([failed]) == gpu_pages.busbw_part([failed]) == ""
    assert "| 3 | `benchmark` | failed, 12 s |" in gpu_pages.checks_part([failed])


def test_a_gate_that_is_missed_is_drawn_so() -> None:
    """Whatever a finding says of itself, colours follow the values."""
    slow = run_of(finding("benchmark", 3, BENCHMARK | {"speed_128": 1.4}, BOUNDS))
    kinds = re.findall(r'<rect class="(\w+)"', pictures([slow])["gpu-speed-two.svg"])

    assert kinds == ["ground", "plain", "plain", "missed", "plain", "plain", "plain", "met", "plain"]


def test_the_slowest_rank_counts() -> None:
    assert slowest_rank(BUSBW) == {1024: 0.05, 1048576: 50.0, 1073741824: 330.0}
    assert [line.label for _, line in all_reduces([WHOLE, run_of(CUDA)])] == ["2 × H200, NVLink"]


def test_only_reports_of_machines_with_gpus_are_read(docs: Path) -> None:
    assert [run.name for run in runs(docs / "proofs")] == ["two"]
    assert runs(docs / "proofs")[0].report.findings == WHOLE.report.findings


@pytest.mark.parametrize("name", sorted(pictures([WHOLE])))
def test_a_picture_is_sound_readable_on_either_ground_and_says_what_ran(name: str) -> None:
    """It has a ground of its own, colours for the light and the dark, and asks nobody for anything."""
    picture = pictures([WHOLE])[name]
    root = ET.fromstring(picture)
    told = " ".join(text for text in root.itertext())

    assert root.find("{*}rect").attrib["class"] == "ground"  # type: ignore[union-attr]
    assert picture.count("prefers-color-scheme: dark") >= 1
    assert "torch 2.11.0+cu130" in told
    assert "580.10" in told
    assert addresses_in(picture, [str(ROOT)]) == []


def test_long_names_stay_within_the_pictures() -> None:
    """By what renderers were seen to take for a character; the legends are set smaller."""
    gpus = [{"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 80 * GIB}] * 8
    long = run_of(*WHOLE.report.findings, driver=DRIVER | {"driver": "580.105.08", "gpus": gpus})
    for picture in pictures([long]).values():
        for text in ET.fromstring(picture).findall(".//{*}text[@x]"):
            if text.attrib.get("text-anchor", "start") == "start":
                each = {"soft": 6.2, "title": 9}.get(text.attrib.get("class", ""), 6.6)
                assert float(text.attrib["x"]) + each * len(text.text or "") < 900, text.text


def test_every_series_has_its_own_line_colours_and_dashes() -> None:
    series = [Series(label=f"line {at}", points=((1.0, 1.0 + at), (10.0, 2.0 + at))) for at in range(5)]
    picture = lines("title", "legend", linear("x", [10]), linear("y", [6]), series)

    assert len(set(re.findall(r"\.s\d \{ stroke: #\w+; stroke-dasharray: ([^}]+?) }", picture))) == 5
    assert len(set(re.findall(r"\.s\d \{ stroke: (#\w+)", picture))) == 10  # five by day, five by night
    assert picture.index("line 4:") < picture.index("line 0:")  # named in the order of the last values


def test_points_lie_where_their_axes_say() -> None:
    """Ends at the corners of the plot, a middle by its logarithm."""
    series = [Series(label="a", points=((1, 1.0), (1024, 10.0), (1048576, 100.0)))]
    x, y = sizes("bytes", [1, 1048576]), decades("GB/s", [1.0, 100.0])
    root = ET.fromstring(lines("t", "l", x, y, series))
    circles = [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in root.findall(".//{*}circle")]

    assert circles[1][0] == pytest.approx((circles[0][0] + circles[2][0]) / 2, abs=0.2)
    assert circles[1][1] == pytest.approx((circles[0][1] + circles[2][1]) / 2, abs=0.2)
    assert circles[0][1] > circles[2][1]  # up is more


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (linear("", [200]), ["0", "50", "100", "150", "200"]),
        (linear("", [2.2]), ["0", "0.5", "1", "1.5", "2"]),
        (decades("", [0.05, 333]), ["0.01", "0.1", "1", "10", "100", "1,000"]),
        (decades("", [1.0, 1.0]), ["1", "10"]),
        (sizes("", [1024, 1 << 30]), ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB"]),
    ],
)
def test_ticks_are_round_and_within_the_axis(axis: Any, ticks: list[str]) -> None:
    assert [name for _, name in axis.ticks] == ticks
    assert all(axis.low <= value <= axis.high * (1 + 1e-9) for value, _ in axis.ticks)


def test_sizes_are_told_in_their_unit() -> None:
    assert [size(count) for count in (1, 1000, 1024, 1536, 1 << 30, 1 << 50)] == [
        "1 B",
        "1000 B",
        "1 KiB",
        "1.5 KiB",
        "1 GiB",
        "1024 TiB",
    ]
