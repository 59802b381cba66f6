"""Write the table of AMP's speed and memory across torch releases and GPUs, from the reports' benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from bench.lines import figure
from bench.markdown import table
from tools.gpu_runs import Run, footnote, joined, lengths, timed_batches

_RATIOS = {"samples_per_s": "samples/s", "peak_bytes": "peak memory"}  # by the value of the benchmark
_AMP = {"fp16": "FP16", "bf16": "BF16"}


def trend_part(known: Sequence[Run]) -> str:
    """A table with two rows, FP16 and BF16, for each torch and GPU; empty without a benchmark."""
    newest = _newest(known)
    columns = [
        (f"{key}_{length}", f"{what} / FP32's, {length} words")
        for key, what in _RATIOS.items()
        for length in sorted({length for _, values in newest for length in lengths(values)})
    ]
    head = ("torch", "GPU", "AMP", *(title for _, title in columns), "batch", "report")
    rows = [row for run, values in newest for row in _rows(run, values, [key for key, _ in columns])]
    return table(head, rows) + footnote(run for run, _ in newest) if rows else ""


def _newest(known: Sequence[Run]) -> list[tuple[Run, Mapping[str, Any]]]:
    """For each torch and GPU, the newest report with a benchmark, and its values; by torch, then by GPU."""
    found = {}
    for run in sorted(known, key=lambda run: run.report.when or ""):
        if values := run.measured("benchmark"):
            found[Version(values["torch"]), values["device"]] = (run, values)
    return [found[key] for key in sorted(found)]


def _rows(run: Run, values: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, ...]]:
    link = f"[{run.name}](proofs/{run.file})" + " †" * run.earlier
    batch = joined(timed_batches(values).values())
    for precision, name in _AMP.items():
        ratios = (
            figure(values[key][precision] / values[key]["fp32"]) if key in values else "" for key in keys
        )
        yield (values["torch"], values["device"], name, *ratios, batch, link)
