#!/usr/bin/env python3
"""Write docs/gpu-*.svg and the generated parts of docs/gpu-proof.md from the GPU reports in docs/proofs.

A generated part is between `<!-- generated: WHAT -->` and `<!-- end -->`; WHAT is `runs`, `checks`,
`mutants`, `benchmark` or `busbw`. All figures, and the names of device, driver and torch, come from reports.
`--check` writes nothing and exits with 5 if anything is stale.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import markdown  # noqa: E402
from bench.lines import figure, size  # noqa: E402
from bench.markdown import table  # noqa: E402
from bench.plot import number  # noqa: E402
from tools.gpu_mutants import OUTCOMES  # noqa: E402
from tools.gpu_pictures import BUSBW, GIB, all_reduces, pictured, pictures  # noqa: E402
from tools.gpu_runs import (  # noqa: E402
    PRECISIONS,
    Benchmark,
    Mutants,
    Run,
    benchmarks,
    joined,
    lengths,
    mutants,
    runs,
    timed_batches,
)
from tools.kept import short  # noqa: E402
from tools.pages import stale_in, write_or_check  # noqa: E402
from torchkiln.smoke.verdict import verdict  # noqa: E402

DOCS = ROOT / "docs"
PAGE = "gpu-proof.md"
_NONE = "No report of such a run is kept here yet.\n"
_SIGNS = {"at_least": "≥", "at_most": "≤", "equals": "="}
_PICTURES = {"speed": "Samples a second", "memory": "Peak memory", "losses": "Loss curves"}


def filled(text: str, known: Sequence[Run], broken: Sequence[Mutants]) -> str:
    """*text* with every generated part replaced."""
    parts = {
        "runs": runs_part(known),
        "checks": checks_part(known),
        "mutants": mutants_part(broken),
        "benchmark": benchmark_part(known),
        "busbw": busbw_part(known),
    }
    return markdown.filled(text, lambda what: parts[what] or _NONE)


def runs_part(known: Sequence[Run]) -> str:
    """A table with a row for each report; the verdict is computed again from its values."""
    rows = [
        (
            f"[{run.name}](proofs/{run.file})",
            run.gpus,
            run.driver.removeprefix("driver "),
            run.torch.removeprefix("torch "),
            _image(run),
            (run.report.when or "")[:10],
            verdict(run.report.findings),
        )
        for run in known
    ]
    head = ("report", "GPUs", "driver", "torch", "image", "when", "verdict")
    return _dittoed(head, rows) if rows else ""


def _dittoed(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in which ″ stands for a long value that the row above has, too."""
    blank = ("",) * len(head)
    return table(
        head,
        (
            ["″" if cell == over and len(cell) > 9 else cell for cell, over in zip(row, above, strict=True)]
            for row, above in zip(rows, (blank, *rows), strict=False)
        ),
    )


def _image(run: Run) -> str:
    if run.report.tag is None:
        return "none"
    return f"`{short(run.report)}`{' †' if run.earlier else ''}"


def checks_part(known: Sequence[Run]) -> str:
    """A table with a row for each report above tier 0: how many checks of a tier passed, with notes."""
    shown = [run for run in known if any(found.tier for found in run.report.findings)]
    notes = list(dict.fromkeys(note for run in shown for note in _not_passed(run)))
    rows = [
        (
            run.title,
            *(_passed(run, tier) for tier in (1, 2, 3)),
            ", ".join(str(notes.index(note) + 1) for note in _not_passed(run)),
        )
        for run in shown
    ]
    if not rows:
        return ""
    listed = "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))
    return f"{table(('report', 'tier 1', 'tier 2', 'tier 3', 'notes'), rows)}\n{listed}"


def _passed(run: Run, tier: int) -> str:
    found = [found for found in run.report.findings if found.tier == tier and found.outcome == "passed"]
    return f"{len(found)} passed, {sum(one.seconds for one in found):.0f} s" if found else ""


def _not_passed(run: Run) -> list[str]:
    """The checks above tier 0 that did not pass, by outcome and the first line of the message."""
    checks: dict[str, list[str]] = {}
    for found in run.report.findings:
        if found.tier and found.outcome != "passed":
            lines = () if found.outcome == "skipped" else found.message.splitlines()[:1]
            reason = ": ".join((found.outcome, *lines))
            checks.setdefault(reason, []).append(f"`{found.id}`")
    return [f"{', '.join(ids)} {reason}" for reason, ids in checks.items()]


def mutants_part(broken: Sequence[Mutants]) -> str:
    """A line for each record of mutants: where it ran, and the number of tests by outcome."""
    return "".join(map(_mutants, broken))


def _mutants(record: Mutants) -> str:
    count = Counter(outcome for tests in record.tests.values() for outcome in tests.values())
    outcomes = ", ".join(f"{count[what]} {what}" for what in OUTCOMES)
    where = f"{record.gpus}; torch {record.torch}; {record.when}"
    return (
        f"- [{record.name}](proofs/{record.name}.json): {where}: {outcomes} in {len(record.tests)} modules\n"
    )


def benchmark_part(known: Sequence[Run]) -> str:
    """Tables of all reports that have the benchmark, and the pictures of some of them."""
    measured = benchmarks(known)
    if not measured:
        return ""
    timed = sorted({length for _, values in measured for length in lengths(values)})
    pictures = (
        f"![{title}](gpu-{what}-{run.name}.svg)\n"
        for run, _ in pictured(measured)
        for what, title in _PICTURES.items()
    )
    return "\n".join(
        (
            "".join(dict.fromkeys(f"{_conditions(values)}\n" for _, values in measured)),
            _speeds(measured, timed),
            _gates_table(measured, timed),
            *pictures,
        )
    )


def _conditions(values: Mapping[str, Any]) -> str:
    timed = lengths(values)
    batches = joined(timed_batches(values).values())
    memory = "" if batches == str(values["batch"]) else f" Peak memory: batch {values['batch']}."
    return f"Batch {batches}, medians of {_counts(values, timed)} steps.{memory}"


def _speeds(measured: Sequence[Benchmark], timed: Sequence[int]) -> str:
    """A table with a row for each report; a cell has the values of all precisions."""
    budget = joined(values["budget"] // GIB for _, values in measured)
    kinds = (
        ("samples_per_s", "samples/s", number),
        ("peak_bytes", "peak memory, GiB", lambda count: number(count / GIB)),
        ("largest_batch", f"largest batch in {budget} GiB", str),
    )
    columns = [
        (f"{key}_{length}", f"{what}, {length} words", format_value)
        for key, what, format_value in kinds
        for length in timed
    ]
    rows = [
        (
            run.title,
            *(
                " / ".join(form(values[key][precision]) for precision in PRECISIONS) if key in values else ""
                for key, _, form in columns
            ),
        )
        for run, values in measured
    ]
    return _dittoed((" / ".join(PRECISIONS.values()), *(title for _, title, _ in columns)), rows)


def _gates_table(measured: Sequence[Benchmark], timed: Sequence[int]) -> str:
    """A table with a row for each report: the values for AMP FP16 that the gate checks, and their bounds."""
    gates = dict(_gates(timed))
    bounds = {
        name: " or ".join(dict.fromkeys(_bound(run.bounds("benchmark").get(name, {})) for run, _ in measured))
        for name in gates
    }
    rows = (
        (run.title, *(figure(values[name]) if name in values else "" for name in gates))
        for run, values in measured
    )
    head = ("AMP FP16", *gates.values())
    return table(head, [("**bound**", *bounds.values()), *rows])


def _counts(values: Mapping[str, Any], timed: Iterable[int]) -> str:
    return " and ".join(str(len(values[f"step_ms_{length}"]["fp32"])) for length in timed)


def _gates(timed: Iterable[int]) -> Iterator[tuple[str, str]]:
    for length in timed:
        yield f"speed_{length}", f"samples a second / FP32's, {length} words"
        yield f"speed_over_tf32_{length}", f"samples a second / TF32's, {length} words"
        yield f"memory_{length}", f"peak memory / FP32's, {length} words"
        yield f"batch_{length}", f"largest batch / FP32's, {length} words"
    yield "loss_fall_fp32", "FP32's last losses / its first"
    yield "loss_fall_fp16", "last losses / first"
    yield "loss_gap", "widest distance of the smoothed loss curve from FP32's"


def _bound(bound: Mapping[str, float]) -> str:
    return " and ".join(f"{_SIGNS[kind]} {limit:g}" for kind, limit in bound.items()) or "none"


def busbw_part(known: Sequence[Run]) -> str:
    """A table with a row for each message size and a column for each report; and the plot of all."""
    series = [(run, line.label, dict(line.points)) for run, line in all_reduces(known)]
    counts = sorted({count for _, _, rates in series for count in rates})
    rows = [
        (size(count), *(f"{rates[count]:.3g}" if count in rates else "" for _, _, rates in series))
        for count in counts
    ]
    if not series:
        return ""
    speeds = table(("GB/s", *(f"{run.title}: {label}" for run, label, _ in series)), rows)
    return f"{speeds}\n![Bus bandwidth against message size]({BUSBW})\n"


def stale(docs: Path) -> dict[str, str | None]:
    """The stale files in *docs*: the new content by name; None: to be deleted."""
    known = runs(docs / "proofs")
    generated = pictures(known)
    generated[PAGE] = filled((docs / PAGE).read_text(), known, mutants(docs / "proofs"))
    return stale_in(docs, generated, "gpu-*.svg")


def main() -> int:
    """Write the stale files, or with --check list them."""
    return write_or_check(DOCS, stale(DOCS), "tools/gpu_pages.py")


if __name__ == "__main__":
    sys.exit(main())
