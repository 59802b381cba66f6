"""The sizes of thin images in docs/thin.md are those of docs/thin-sizes.json."""

from __future__ import annotations

import json

from bench.thin_sizes import CELLS, CHART, GPUS, PAGE, RECORD, chart, sizes

ROWS = json.loads(RECORD.read_bytes())["rows"]


def test_the_page_and_the_chart_are_made_from_the_record() -> None:
    assert sizes(ROWS) in PAGE.read_text()
    assert chart(ROWS) == CHART.read_text()


def test_every_release_and_capability_was_measured() -> None:
    assert {(row["torch"], row["cuda"], row["gpu"]) for row in ROWS} == {
        (*cell, gpu) for cell in CELLS for gpu in GPUS
    }
    assert all(row["own_use"] < row["thin"] < row["full"] for row in ROWS if row["thin"])


def test_a_row_without_code_is_marked() -> None:
    rows = [{**row, "thin": None, "own_use": None} if row["gpu"] == "12.0" else row for row in ROWS]
    lines = sizes(rows).splitlines()[2:]
    assert len(lines) == len(CELLS)
    assert all(line.endswith("| no code |") for line in lines)
