"""measure.py: every row gives a result, however its process ends; the rows are valid command lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tools import recipes_record
from torchkiln.util.places import ROOT

# Used in place of recipes.train: its first argument names how it ends, with or without a report.
PROGRAM = """
import json, os, signal, sys, time
kind, report = sys.argv[1], sys.argv[sys.argv.index("--report") + 1]
found = {"outcome": "measured", "message": "", "samples_per_s": 10.0, "timed_steps": 8, "peak_bytes": 1 << 30,
         "reserved_bytes": 2 << 30, "scale": None, "losses": [2.0, 1.0],
         "environment": {"torch": "2.7.1", "python": "3.11.2", "device": "a GPU", "cores": 2}}
if kind == "memory":
    found = {"outcome": "out of memory", "message": "CUDA out of memory."}
if kind == "refused":
    sys.stderr.write("unavailable: no kernel\\n")
    sys.exit(3)
if kind == "raises":
    raise RuntimeError("cuDNN error: no algorithm")
if kind == "crashes":
    os.kill(os.getpid(), signal.SIGSEGV)
if kind == "hangs":
    time.sleep(600)
with open(report, "w") as file:
    json.dump(found, file)
sys.exit(kind == "memory")
"""


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module recipes.measure, which needs no torch."""
    monkeypatch.syspath_prepend(str(ROOT / "rootfs/opt/torchkiln/examples"))
    import recipes.measure as module

    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "recipes"]:
        del sys.modules[name]


def record(measure: ModuleType, folder: Path, kinds: Sequence[str], *words: str) -> dict[str, Any]:
    """Measure one row for each of *kinds*; returns the record that measure.py writes."""
    from recipes.rows import Row

    measure.ROWS = [Row(kind, "alone", "") for kind in kinds]
    measure.launcher = lambda row, *, shown=False: [sys.executable, "-c", PROGRAM, row.name]
    measure.main(["--output", str(folder), *words])
    found: dict[str, Any] = json.loads((folder / "recipes.json").read_text())
    return found


def test_each_row_is_a_result(measure: ModuleType, tmp_path: Path) -> None:
    kinds = ("memory", "FP32", "refused", "raises", "crashes")
    found = record(measure, tmp_path, kinds)

    assert [(row["name"], row["outcome"], row["message"]) for row in found["rows"]] == [
        ("memory", "out of memory", "CUDA out of memory."),
        ("FP32", "measured", ""),
        ("refused", "unavailable", "no kernel"),
        ("raises", "failed", "RuntimeError: cuDNN error: no algorithm"),
        ("crashes", "failed", "exit status -11"),
    ]
    assert found["environment"]["device"] == "a GPU"
    read = recipes_record.from_json(json.dumps(found).encode(), "recipes.json")
    assert read.rows[1].losses == (2.0, 1.0)
    assert read.rows[1].peak_bytes == 1 << 30


def test_a_row_that_hangs_is_ended(measure: ModuleType, tmp_path: Path) -> None:
    rows = record(measure, tmp_path, ["hangs", "FP32"], "--limit", "2")["rows"]
    assert [(row["outcome"], row["message"]) for row in rows] == [
        ("failed", "stopped after 2 s"),
        ("measured", ""),
    ]


def test_rows_after_the_budget_are_left_out(measure: ModuleType, tmp_path: Path) -> None:
    rows = record(measure, tmp_path, ["FP32", "memory"], "--budget", "0")["rows"]
    assert {row["outcome"] for row in rows} == {"no time"}


def test_the_record_is_there_after_each_row(
    measure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "sentence", lambda result: 1 / 0 if result["name"] == "memory" else "")
    with pytest.raises(ZeroDivisionError):
        record(measure, tmp_path, ["FP32", "memory", "raises"])
    written = json.loads((tmp_path / "recipes.json").read_text())
    assert [row["name"] for row in written["rows"]] == ["FP32", "memory"]


@pytest.mark.parametrize("tiny", [True, False])
def test_every_row_is_a_valid_command_line(measure: ModuleType, tiny: bool) -> None:
    from recipes.rows import ROWS, SCALING, words_of
    from recipes.settings import parse

    for row in (*ROWS, *SCALING):
        found = parse(words_of(row, tiny=tiny, steps=10, device="cpu"))
        assert (found.size, found.steps) == ("tiny" if tiny else "base", 10)
        assert found.parallel == "none" or row.gpus == 2


def test_the_picture_and_the_comparisons_name_rows(measure: ModuleType) -> None:
    from recipes.rows import FIRST, ROWS, SCALING, WATERFALL

    names = {group: {row.name for row in (*ROWS, *SCALING) if row.group == group} for group in FIRST}
    assert set(WATERFALL) <= names["alone"] | names["together"]
    assert all(FIRST[group] in names[group] for group in ("alone", "images", "gpus"))
    assert len({(row.group, row.name) for row in (*ROWS, *SCALING)}) == len((*ROWS, *SCALING))


def test_several_gpus_are_started_by_torchrun(measure: ModuleType) -> None:
    from recipes.rows import Row

    words = measure.launcher(Row("DDP", "gpus", "", 4))
    assert words[1:5] == ["-m", "torch.distributed.run", "--nproc-per-node", "4"]
    assert words[-2:] == ["-m", "recipes.train"]
