"""docs/recipes.md is made from records only; both pages of AMP mistakes have the same code."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.waterfall import waterfall
from tools import recipes_page
from tools.recipes_record import Environment, Record, Row, from_json, records
from torchkiln.util import codec
from torchkiln.util.places import ROOT

GIB = 1 << 30
ENGLISH, CHINESE = ROOT / "examples/recipes/amp-mistakes.md", ROOT / "examples/recipes/amp-mistakes.zh-CN.md"
_TEST = re.compile(r"`(tests/\S+?\.py)::(\w+)`")


def row(
    name: str, group: Any = "alone", *, gib: float | None = 8.0, speed: float = 100.0, gpus: int = 1
) -> Row:
    return Row(
        name=name,
        group=group,
        gpus=gpus,
        command="python -m recipes.train",
        outcome="measured",
        message="",
        seconds=5.0,
        samples_per_s=speed,
        timed_steps=8,
        peak_bytes=int(gib * GIB) if gib else None,
        reserved_bytes=None,
        scale=None,
        losses=(9.0, 7.5),
    )


FAILED = replace(
    row("TF32"), outcome="out of memory", message="a | b", samples_per_s=None, peak_bytes=None, losses=()
)
RECORD = Record(
    schema=1,
    when="2026-11-25T23:00:00Z",
    image="2.7.1-cuda12.1-cudnn9-runtime",
    size="base",
    steps=2,
    driver="580.10",
    environment=Environment(torch="2.7.1+cu126", python="3.11.2", device="NVIDIA X1", cores=16, cuda="12.6"),
    first={"alone": "FP32", "together": "FP32", "images": "FP32", "gpus": "1 GPU"},
    waterfall=("FP32", "BF16", "+ SGD", "+ offload"),
    seconds=100.0,
    rows=(
        row("FP32"),
        row("BF16", gib=4.0, speed=250.0),
        FAILED,
        row("+ SGD", "together", gib=1.0, speed=50.0),
        row("1 GPU", "gpus", speed=100.0),
        row("DDP", "gpus", speed=190.0, gpus=2),
    ),
)


def written(record: Record) -> bytes:
    return json.dumps(codec.plain(record)).encode()


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder like docs/ with one record."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "x1.json").write_bytes(written(RECORD))
    (tmp_path / "recipes.md").write_text((ROOT / "docs/recipes.md").read_text())
    return tmp_path


def test_a_record_is_read_as_it_was_written() -> None:
    assert from_json(written(RECORD), "x1.json") == RECORD


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"when": "yesterday"}, "x1.json: when: "),
        ({"schema": 2}, "x1.json: schema: "),
        ({"more": 1}, "x1.json: "),
        ({"rows": [{**codec.plain(row("FP32")), "peak_bytes": -1}]}, "x1.json: rows[0].peak_bytes: "),
        ({"rows": [{**codec.plain(row("FP32")), "outcome": "fine"}]}, "x1.json: rows[0].outcome: "),
    ],
)
def test_another_record_is_refused(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        from_json(json.dumps(codec.plain(RECORD) | change).encode(), "x1.json")


def test_the_page_has_device_software_and_all_figures(docs: Path) -> None:
    made = recipes_page.stale(docs)
    page = made["recipes.md"]

    assert page is not None
    assert (
        "2 × NVIDIA X1; driver 580.10; torch 2.7.1+cu126 for CUDA 12.6; image 2.7.1-cuda12.1-cudnn9-runtime; "
        in page
    )
    assert "| FP32 | 8.00 | 100 % | 100 | 1.00 | 7.500 |" in page
    assert "| BF16 | 4.00 | 50 % | 250 | 2.50 | 7.500 |" in page
    assert "| TF32 | out of memory: a \\| b |  |  |  |  |" in page
    assert "| + SGD | 1.00 | 12 % | 50.0 | 0.50 | 7.500 |" in page
    assert "| DDP | 8.00 | 100 % | 190 | 1.90 | 7.500 | 95 % |" in page


def test_the_picture_leaves_out_what_was_not_measured(docs: Path) -> None:
    picture = recipes_page.stale(docs)["recipes-x1.svg"]

    assert picture is not None
    assert re.findall(r">([^<]+ GiB, [^<]+)<", picture) == [
        "8.00 GiB, 100 %",
        "4.00 GiB, 50.0 %",
        "1.00 GiB, 12.5 %",
    ]
    assert "+ offload" not in picture


def test_the_speed_on_several_gpus_has_its_own_picture(docs: Path) -> None:
    """If there are three or more numbers of GPUs; the target is perfect scaling."""
    content = replace(RECORD, rows=(*RECORD.rows, row("DDP", "gpus", speed=300.0, gpus=4)))
    assert "recipes-x1-scaling.svg" not in recipes_page.stale(docs)
    (docs / "recipes" / "x1.json").write_bytes(written(content))

    text = recipes_page.stale(docs)["recipes-x1-scaling.svg"]

    assert text is not None
    assert re.findall(r">(DDP[^<]*)<", text) == ["DDP, 2 GPUs, 95 %", "DDP, 4 GPUs, 75 %"]
    assert re.findall(r">([^<]*), target ([^<]*)<", text) == [("100", "100"), ("190", "200"), ("300", "400")]


def test_bars_are_as_long_as_their_values() -> None:
    drawn = waterfall("t", "l", "GiB", [("a", 10.0), ("b", 5.0)])
    widths = [float(found) for found in re.findall(r'<rect class="(?:plain|met)".*? width="([\d.]+)"', drawn)]
    assert widths == [540.0, 270.0, 270.0]


def test_a_record_without_memory_has_no_picture(docs: Path) -> None:
    cpu = replace(RECORD, rows=(row("FP32", gib=None),), driver=None, image=None)
    (docs / "recipes" / "x1.json").write_bytes(written(cpu))
    (docs / "recipes-old.svg").write_text("")
    made = recipes_page.stale(docs)

    assert made.keys() == {"recipes.md", "recipes-old.svg"}
    assert made["recipes-old.svg"] is None
    assert "| FP32 |  |  | 100 | 1.00 | 7.500 |" in (made["recipes.md"] or "")


def test_without_a_record_the_page_has_no_figure(docs: Path) -> None:
    (docs / "recipes" / "x1.json").unlink()
    made = recipes_page.stale(docs).get("recipes.md") or (docs / "recipes.md").read_text()
    assert made.endswith("<!-- generated: measured -->\nNo record of a GPU is kept here yet.\n<!-- end -->\n")


def test_the_committed_page_and_pictures_are_fresh() -> None:
    assert recipes_page.stale(ROOT / "docs") == {}
    assert all(known.environment.device != "cpu" for known in records(ROOT / "docs/recipes").values())


# --- ten mistakes ----------------------------------------------------------------------------------


def sections(page: Path) -> list[str]:
    return page.read_text().split("\n## ")[1:]


def test_there_are_ten_and_a_line_that_does_not_run() -> None:
    assert len(sections(ENGLISH)) == 11


def test_the_translation_has_the_same_sections_code_and_tests() -> None:
    for pattern in (r"^```python\n.*?^```$", r"<!-- .*? -->", _TEST.pattern):
        english, chinese = (
            [re.findall(pattern, part, re.M | re.S) for part in sections(page)] for page in (ENGLISH, CHINESE)
        )
        assert english == chinese, pattern


def test_the_translation_has_the_same_numbers() -> None:
    def numbers(page: Path) -> list[list[str]]:
        bare = [re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]+\)", "", part, flags=re.S) for part in sections(page)]
        return [sorted(re.findall(r"\d+(?:\.\d+)?", part)) for part in bare]

    assert numbers(ENGLISH) == numbers(CHINESE)


@pytest.mark.parametrize("page", [ENGLISH, CHINESE, ROOT / "docs/recipes.md"], ids=lambda page: page.name)
def test_each_test_that_a_page_names_exists(page: Path) -> None:
    named = _TEST.findall(page.read_text())
    missing = [
        (file, name)
        for file, name in named
        if name not in {getattr(node, "name", "") for node in ast.parse((ROOT / file).read_text()).body}
    ]
    assert missing == []
    assert page.name == "recipes.md" or all(_TEST.search(part) for part in sections(page))
