"""Draw the plots of GPU runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from bench.lines import Series, decades, linear, lines, sizes
from bench.plot import Bar, bars
from tools.gpu_runs import (
    PRECISIONS,
    Benchmark,
    Run,
    benchmarks,
    joined,
    lengths,
    slowest_rank,
    timed_batches,
)

BUSBW = "gpu-busbw.svg"
GIB = 1 << 30


def pictures(known: Sequence[Run]) -> dict[str, str]:
    """The plots by file name: three for each model of GPU, and one for all runs of `busbw`."""
    found = {}
    for run, values in pictured(benchmarks(known)):
        found[f"gpu-speed-{run.name}.svg"] = speed(run, values)
        found[f"gpu-memory-{run.name}.svg"] = memory(run, values)
        found[f"gpu-losses-{run.name}.svg"] = losses(run, values)
    if series := all_reduces(known):
        found[BUSBW] = busbw(series)
    return found


def pictured(measured: Sequence[Benchmark]) -> list[Benchmark]:
    """For each model of GPU, the newest report with the benchmark of its newest torch."""
    found = {}
    for run, values in sorted(measured, key=lambda one: (Version(one[1]["torch"]), one[0].report.when or "")):
        found[values["device"]] = (run, values)
    return [found[device] for device in sorted(found)]


def speed(run: Run, values: Mapping[str, Any]) -> str:
    """Samples per second by length and precision; whiskers from the slowest to the fastest step."""
    rows: list[Bar] = []
    for length in lengths(values):
        rate, times = values[f"samples_per_s_{length}"], values[f"step_ms_{length}"]
        batch = timed_batches(values)[length]
        spread = {
            name: (
                rate[name],
                *(1000 * batch / end for end in (max(times[name]), min(times[name]))),
            )
            for name in PRECISIONS
        }
        gate = run.bounds("benchmark")[f"speed_{length}"]["at_least"]
        rows += _bars(length, "/s", spread, gate * rate["fp32"], met=values[f"speed_{length}"] >= gate)
    batches = timed_batches(values).values()
    return bars("A fine-tuning step of BERT-base: samples a second", _legend(run, batches), rows)


def memory(run: Run, values: Mapping[str, Any]) -> str:
    """Peak memory by length and precision."""
    rows: list[Bar] = []
    for length in lengths(values):
        peak = {name: count / GIB for name, count in values[f"peak_bytes_{length}"].items()}
        spread = {name: (value, value, value) for name, value in peak.items()}
        gate = run.bounds("benchmark")[f"memory_{length}"]["at_most"]
        rows += _bars(length, "GiB", spread, gate * peak["fp32"], met=values[f"memory_{length}"] <= gate)
    return bars("A fine-tuning step of BERT-base: peak memory", _legend(run, [values["batch"]]), rows)


def losses(run: Run, values: Mapping[str, Any]) -> str:
    """Both loss curves, not smoothed."""
    curves = {name: values[f"loss_{name}"] for name in ("fp32", "fp16")}
    steps = range(1, len(curves["fp32"]) + 1)
    return lines(
        "Loss of BERT-base from the same weights over the same sentences",
        run.summary(),
        linear("step", steps),
        linear("loss", (value for curve in curves.values() for value in curve)),
        [
            Series(label=PRECISIONS[name], points=tuple(zip(steps, curve, strict=True)))
            for name, curve in curves.items()
        ],
    )


def all_reduces(known: Sequence[Run]) -> list[tuple[Run, Series]]:
    """The runs with `busbw`, each with its line: GB/s over bytes."""
    return [
        (run, Series(label=f"{names}, {values['link']}", points=tuple(sorted(slowest_rank(values).items()))))
        for run in known
        if (values := run.measured("busbw")) and (names := run.gpus.replace("NVIDIA ", ""))
    ]


def busbw(series: Sequence[tuple[Run, Series]]) -> str:
    """Bus bandwidth against message size, a line for each run, both axes logarithmic."""
    points = [point for _, line in series for point in line.points]
    software = "; ".join(dict.fromkeys(f"{run.driver}, {run.torch}" for run, _ in series))
    return lines(
        "All-reduce: bus bandwidth of the slowest rank against message size",
        f"bytes / seconds × 2(n-1)/n, as nccl-tests counts it. {software}",
        sizes("bytes", (count for count, _ in points)),
        decades("GB/s", (rate for _, rate in points)),
        [line for _, line in series],
    )


def _legend(run: Run, batches: Iterable[int]) -> str:
    return f"{run.summary()}. Batch {joined(batches)}; dashed: the gate of AMP FP16."


def _bars(
    length: int, unit: str, spread: Mapping[str, Sequence[float]], target: float, *, met: bool
) -> Iterator[Bar]:
    """A bar for each precision, with the lowest and highest value; for AMP FP16 also the target."""
    for precision, name in PRECISIONS.items():
        value, low, high = spread[precision]
        gated = precision == "fp16"
        yield Bar(
            label=f"{length} words, {name}",
            value=value,
            low=low,
            high=high,
            unit=unit,
            target=target if gated else None,
            met=met if gated else None,
            scale=unit,
        )
