"""Write docs/bench.md, its plot, and rows for docs/numbers.json from benchmark results."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.markdown import table
from bench.plot import Bar, bars, number
from bench.results import Figure, Outcome, Side, outcome_from_json

_MIB = 1 << 20
_HEAD = """# Benchmarks

`make bench` writes this page; [bench.json](bench.json) has the values of every round. "Ours" is torchkiln.
The commands of a table ran in turn: each turn is a round. The tables show the median, with minimum and
maximum; the picture has all ratios. Seconds are elapsed time, with Python's start; core-seconds are user and
system time of all processes; peak memory is the largest sum of their PSS. "MB out" is the size of the layers
of the wheels, or of the downloaded files. Sizes are decimal; a MiB is 2^20 bytes.

![The ratios and targets as bars](bench-ratios.svg)
"""
_TAIL = """
## Reproduce

    make bench                           all benchmarks; run `make image` first, which fills the cache
    .venv/bin/python -m bench cold warm  only these benchmarks; the results of the others are kept
    .venv/bin/python -m bench --quick    small generated wheels, a local index: tests the benchmarks

Use an idle machine. Nothing is written to the user's cache. Temporary folders beside it take up to 10 GB.
"""


def page(document: Mapping[str, Any]) -> str:
    """docs/bench.md from the content of bench.json."""
    outcomes = [
        (outcome_from_json(benchmark["outcome"]), benchmark["run"])
        for benchmark in document["benchmarks"].values()
    ]
    counted = Counter(note for one, _ in outcomes for note in one.notes)
    common = [note for note, count in counted.items() if count > 1]
    states = {one.state: one.title for one, _ in reversed(outcomes)}  # the title of the first section
    left_out = [*_unmeasured(document), *(line for one, _ in outcomes for line in one.left_out)]
    parts = [
        _HEAD,
        "## Targets\n",
        table(
            ("what", "target", "median (minimum to maximum)", "met"),
            (_target_row(figure) for one, _ in outcomes for figure in one.figures if figure.target),
        ),
        "## Common notes\n",
        *(f"{number}. {note}" for number, note in enumerate(common, 1)),
        "",
        *(part for one, run in outcomes for part in _section(one, run, common, states[one.state])),
        "## Machines and versions\n",
        *dict.fromkeys(machine_line(run) for _, run in outcomes),
        "\n## Not measured\n",
        *(f"- {line}" for line in left_out),
        _TAIL,
    ]
    return "\n".join(parts)


def picture(document: Mapping[str, Any]) -> str:
    """docs/bench-ratios.svg: all figures, grouped by unit."""
    figures = [
        figure
        for benchmark in document["benchmarks"].values()
        for figure in outcome_from_json(benchmark["outcome"]).figures
    ]
    units = list(dict.fromkeys(figure.unit for figure in figures))
    ordered = sorted(figures, key=lambda figure: (figure.target is None, units.index(figure.unit)))
    return bars(
        "torchkiln against its targets and its rivals",
        "Bars: medians. Whiskers: minimum to maximum. Dashed: the target; green met, red missed,"
        " grey without. A scale for each unit.",
        [
            Bar(
                label=_short(figure.what),
                value=figure.median,
                low=min(figure.values),
                high=max(figure.values),
                unit=figure.unit,
                target=figure.target,
                met=figure.met,
            )
            for figure in ordered
        ],
    )


def number_rows(document: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each figure, in the form of docs/numbers.json."""
    return [
        {"what": figure.what, "value": spread(figure), "how": f"`python -m bench {name}`"}
        for name, one in document["benchmarks"].items()
        for figure in outcome_from_json(one["outcome"]).figures
    ]


def spread(figure: Figure) -> str:
    """`1.21 × (1.18 to 1.30)`, or the value of a single round."""
    median = f"{number(figure.median)} {figure.unit}"
    if len(figure.values) == 1:
        return f"{median} (one round)"
    return f"{median} ({number(min(figure.values))} to {number(max(figure.values))})"


def run_line(run: Mapping[str, Any]) -> str:
    """Date, commit and load in one line."""
    return f"{run['when']}, commit {run['commit']}; load before {run['load']}."


def machine_line(run: Mapping[str, Any]) -> str:
    """Machine and versions in one line."""
    machine, versions = run["machine"], run["versions"]
    programs = ", ".join(f"{name} {text}" for name, text in versions.items())
    cores = f"{machine['cores']} core" + ("" if machine["cores"] == 1 else "s")
    return f"- {cores} ({machine['cpu']}), {machine['memory_gib']} GiB, {machine['kernel']}; {programs}."


def _section(outcome: Outcome, run: Mapping[str, Any], common: Sequence[str], first: str) -> list[str]:
    state = outcome.state if outcome.title == first else f'as in "{first}"'
    parts = [f"## {outcome.title}\n", f"State: {state}.\n"]
    if outcome.series:
        parts.append(table(outcome.series[0], outcome.series[1:]))
    elif outcome.sides:
        titles = ("side", "what", "rounds", "seconds", "core-seconds", "MB out", "peak, MiB")
        before = (None, *(side.what for side in outcome.sides))
        parts.append(table(titles, map(_side_row, outcome.sides, before)))
    parts += [f"{note}\n" for note in outcome.notes if note not in common]
    if numbers := [str(common.index(note) + 1) for note in outcome.notes if note in common]:
        parts.append(f"See [notes](#common-notes): {', '.join(numbers)}.\n")
    parts.append(f"<sub>{run_line(run)}</sub>\n")
    return parts


def _side_row(side: Side, what_before: str | None) -> tuple[str, ...]:
    def summary(values: Sequence[float]) -> str:
        middle = number(statistics.median(values))
        return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"

    samples = side.samples
    megabytes = side.median("bytes") / 1e6
    return (
        side.name,
        "the same" if side.what == what_before else side.what,
        str(len(samples)),
        summary([sample.wall for sample in samples]),
        summary([sample.core for sample in samples]),
        f"{megabytes:,.1f}" if megabytes else "",
        f"{side.median('peak') / _MIB:.0f}",
    )


def _target_row(figure: Figure) -> tuple[str, ...]:
    sign = "≤" if figure.at_most else "≥"
    return (
        figure.what,
        f"{sign} {number(figure.target or 0.0)} {figure.unit}",
        spread(figure),
        "yes" if figure.met else "**no**",
    )


def _unmeasured(document: Mapping[str, Any]) -> Iterable[str]:
    yield from document["not_measured"]


def _short(what: str) -> str:
    """*what*, shortened for the label of a bar."""
    return what if len(what) <= 60 else what[:59] + "…"
