#!/usr/bin/env python3
"""Write docs/recipes-*.svg and the generated part of docs/recipes.md from the records in docs/recipes.

All figures, and the names of device, driver, torch and image, come from the records, which
`python -m recipes.measure` writes. `--check` writes nothing and exits with 5 if anything is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import markdown  # noqa: E402
from bench.markdown import table  # noqa: E402
from bench.plot import Bar, bars, number  # noqa: E402
from bench.waterfall import waterfall  # noqa: E402
from tools.pages import stale_in, write_or_check  # noqa: E402
from tools.recipes_record import Record, Row, records  # noqa: E402

DOCS = ROOT / "docs"
PAGE, RECORDS = "recipes.md", "recipes"
GIB = 1 << 30
_NONE = "No record of a GPU is kept here yet.\n"
_TITLES = {
    "alone": "Transformer: each switch alone",
    "together": "Transformer: switches together",
    "images": "ResNet",
    "gpus": "Several GPUs",
}


def measured_part(known: Mapping[str, Record]) -> str:
    """A section for each record."""
    return "\n".join(line for name, record in known.items() for line in _section(name, record)) or _NONE


def _section(name: str, record: Record) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{summary(record)}. {record.steps} steps in each row; the first two are not timed."
    yield f"[The record](recipes/{name}.json) has the command and the losses of each row.\n"
    if falls(record):
        yield f"![Peak memory, one switch after the other](recipes-{name}.svg)\n"
    if scaling(record):
        yield f"![Speed on several GPUs](recipes-{name}-scaling.svg)\n"
    for group, title in _TITLES.items():
        rows = [row for row in record.rows if row.group == group]
        if rows:
            yield f"#### {title}, {name}\n"
            yield group_table(record, rows)


def summary(record: Record) -> str:
    """Device and software in one line."""
    here = record.environment
    gpus = max(row.gpus for row in record.rows)
    words = [f"{gpus} × {here.device}" if gpus > 1 else here.device]
    words += [f"driver {record.driver}"] if record.driver else []
    words += [f"torch {here.torch}" + (f" for CUDA {here.cuda}" if here.cuda else "")]
    return "; ".join([*words, f"image {record.image}" if record.image else "no image", record.when])


def group_table(record: Record, rows: list[Row]) -> str:
    """A table of memory, speed and last loss, with the change against the group's first row."""
    group, first = rows[0].group, record.first[rows[0].group]
    base = _row(record, group, first)
    relative = f"memory / {first}", "samples/s", f"speed / {first}"
    heads = ["switches", "peak memory, GiB", *relative, "last loss"]
    if group == "gpus":
        heads.append("speed per GPU")
    return table(heads, (_cells(record, row, base, efficiency=len(heads) > 6) for row in rows))


def _cells(record: Record, row: Row, base: Row | None, *, efficiency: bool) -> list[str]:
    if row.outcome != "measured" or row.samples_per_s is None:
        reason = f"{row.outcome}: {row.message}" if row.message else row.outcome
        return [_label(record, row), reason, "", "", "", ""] + [""] * efficiency
    peak, whole = row.peak_bytes, base.peak_bytes if base else None
    speed, first = row.samples_per_s, base.samples_per_s if base else None
    finite = len(row.losses) == record.steps
    cells = [
        _label(record, row),
        number(peak / GIB) if peak else "",
        f"{100 * peak / whole:.0f} %" if peak and whole else "",
        number(speed),
        f"{speed / first:.2f}" if first else "",
        f"{row.losses[-1]:.3f}" if finite else "not finite",
    ]
    return [*cells, f"{100 * speed / first / row.gpus:.0f} %" if first else ""] if efficiency else cells


def _label(record: Record, row: Row) -> str:
    """The name of the row, with the number of GPUs if the record has this row for several numbers."""
    others = {other.gpus for other in record.rows if (other.group, other.name) == (row.group, row.name)}
    return f"{row.name}, {row.gpus} GPUs" if len(others) > 1 else row.name


def _row(record: Record, group: str, name: str) -> Row | None:
    groups = ("alone", "together") if group == "together" else (group,)
    return next((row for row in record.rows if row.group in groups and row.name == name), None)


def falls(record: Record) -> list[tuple[str, float]]:
    """The measured steps of the picture, each with its peak memory."""
    found = [(name, _row(record, "together", name)) for name in record.waterfall]
    return [(name, row.peak_bytes / GIB) for name, row in found if row and row.peak_bytes]


def picture(record: Record) -> str:
    """Peak memory from the first row to all switches together."""
    return waterfall(
        "Peak memory of a training step, one switch after the other", summary(record), "GiB", falls(record)
    )


def scaling(record: Record) -> list[Row]:
    """The rows for one GPU and for DDP on more GPUs; empty if the record has fewer than three numbers of
    GPUs."""
    found = [row for row in record.rows if row.group == "gpus" and row.name in (record.first["gpus"], "DDP")]
    measured = sorted((row for row in found if row.samples_per_s), key=lambda row: row.gpus)
    return measured if len({row.gpus for row in measured}) > 2 else []


def scaling_picture(record: Record) -> str:
    """Samples per second by number of GPUs, with perfect scaling as the target."""
    rows = [(row, row.samples_per_s or 0.0) for row in scaling(record)]
    first = rows[0][1]
    return bars(
        "Training speed in samples/s; target: that of one GPU, times the number of GPUs",
        summary(record),
        [
            Bar(
                label=f"{_label(record, row)}, {100 * speed / first / row.gpus:.0f} %",
                value=speed,
                low=speed,
                high=speed,
                unit="",
                target=first * row.gpus,
                scale="speed",
            )
            for row, speed in rows
        ],
    )


def stale(docs: Path) -> dict[str, str | None]:
    """The stale files in *docs*: the new content by name; None: to be deleted."""
    known = records(docs / RECORDS)
    made = {f"recipes-{name}.svg": picture(record) for name, record in known.items() if falls(record)}
    made |= {
        f"recipes-{name}-scaling.svg": scaling_picture(record)
        for name, record in known.items()
        if scaling(record)
    }
    made[PAGE] = markdown.filled((docs / PAGE).read_text(), lambda _: measured_part(known))
    return stale_in(docs, made, "recipes-*.svg")


def main() -> int:
    """Write the stale files, or with --check list them."""
    return write_or_check(DOCS, stale(DOCS), "tools/recipes_page.py")


if __name__ == "__main__":
    sys.exit(main())
