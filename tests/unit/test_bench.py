"""The pure parts of bench/: computations with samples, processes and shapes, and their reports."""

import json
from dataclasses import replace

import pytest

from bench.meters import ProcessSample, Watch, parse_pss, parse_stat, stage_seconds
from bench.report import page
from bench.results import Figure, Sample, fastest, per_round
from bench.rows_json import rows_json
from torchkiln.util.places import ROOT


def sample(wall: float, **more: object) -> Sample:
    return replace(Sample(wall=wall, user=wall, system=0.5, peak=100 << 20), **more)  # type: ignore[arg-type]


# --- samples and figures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "more", "met"),
    [
        ((1.2, 1.1, 1.6), {"target": 1.3}, True),  # the median counts
        ((1.2, 1.1, 1.6), {"target": 1.3, "judged": "worst"}, False),
        ((190.0, 210.0, 220.0), {"target": 200.0, "at_most": False}, True),
        ((190.0, 210.0, 220.0), {"target": 200.0, "at_most": False, "judged": "worst"}, False),
        ((1.0,), {}, None),
    ],
)
def test_a_target_is_met_by_the_median_or_by_the_worst(
    values: tuple[float, ...], more: dict[str, object], met: bool | None
) -> None:
    assert Figure(what="", unit="", values=values, **more).met is met  # type: ignore[arg-type]


def test_ratios_are_those_of_each_rounds_pair() -> None:
    """The reference of each round is the side that was fastest in that round."""
    curl, own = (sample(2.0), sample(1.0)), (sample(1.0), sample(4.0))

    assert per_round((sample(3.0), sample(3.0)), fastest(curl, own)) == (3.0, 3.0)
    assert per_round((sample(3.0),), (sample(2.0), sample(1.0))) == (1.5,)


# --- meters ---------------------------------------------------------------------------------------


def test_a_stat_line_is_read_with_any_process_name() -> None:
    line = "7 (a) b) S 3 7 7 0 -1 0 1 2 3 4 100 50 30 20 20 0 1 0"

    parent, own, reaped = parse_stat(line)

    assert (parent, own / reaped) == (3, 3.0)


def test_pss_is_read_and_missing_is_zero() -> None:
    assert parse_pss("ab-cd ---p [rollup]\nRss:  9 kB\nPss:  5 kB\nPss_Dirty: 3 kB\n") == 5120
    assert parse_pss("") == 0


def test_stages_are_recognised_by_process_and_thread() -> None:
    """The first thread of the root process, and helpers, are `rest`; its other threads are the download."""
    watch = Watch(1, threads={1: 2.0, 8: 1.5, 9: 0.5})
    watch.seen = {
        1: ProcessSample(parent=0, command="build.py", own=4.0, reaped=0.0),
        2: ProcessSample(
            parent=1, command="python -c from multiprocessing.spawn import x", own=10.0, reaped=3.0
        ),
        3: ProcessSample(
            parent=2, command="python compile_worker.py pack", own=2.9, reaped=0.0
        ),  # included in `reaped` of process 2
        4: ProcessSample(parent=1, command="python compile_worker.py pack", own=1.0, reaped=0.0),
        5: ProcessSample(parent=1, command="pip config list", own=0.4, reaped=0.0),
    }

    seconds_by_stage = dict(stage_seconds(watch, 18.5))

    assert seconds_by_stage == pytest.approx(
        {"download": 2.0, "convert": 10.0, "byte-code": 4.0, "rest": 2.5}
    )


# --- report and picture ---------------------------------------------------------------------------


def test_json_rows_are_lines_and_read_back_as_the_same_value() -> None:
    value = {"a": 1, "rows": [{"b": [1, 2]}, {"c": "ü\n"}], "empty": [], "deep": {"d": {"e": 1}}}
    text = rows_json(value).decode()

    assert json.loads(text) == value
    assert text.splitlines()[:5] == ["{", '"a": 1,', '"rows": [', '{"b":[1,2]},', '{"c":"\\u00fc\\n"}']
    assert rows_json(value, 0).decode().count("\n") == 1


def test_a_note_and_a_state_of_two_benchmarks_are_printed_once() -> None:
    document = json.loads((ROOT / "docs/bench.json").read_bytes())
    outcomes = [one["outcome"] for one in document["benchmarks"].values()]
    lines = {line for outcome in outcomes for line in (*outcome["notes"], f"State: {outcome['state']}.\n")}

    assert [line for line in lines if page(document).count(line) != 1] == []
    assert page(document) == (ROOT / "docs/bench.md").read_text()
