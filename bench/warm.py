"""Benchmark building layers from cached wheels against a simple alternative, and a build without changes."""

from __future__ import annotations

import sys

from bench import sides
from bench.results import Figure, Outcome, Side, per_round
from bench.sides import Contender, Say, alternate, build
from bench.subject import Subject

STATE = (
    "base and wheels in our cache, layers not; before each run all wheels were read into the page cache, and"
    " written data was synced"
)


def warm(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure making layers from cached wheels, against bench.recompress."""
    unrecorded = subject.without_records()
    full, rival = "ours, full verification", "isal at level 1"
    contenders = [
        Contender(
            name=full,
            what="lock without recorded layers: every stream is inflated, every hash compared",
            run=lambda: build(subject, wheels=True, bytecode=True, images=unrecorded),
        ),
        Contender(
            name=rival,
            what="inflate, tar, isal level 1, one process per core; hashes wheels, tars, blobs; no install",
            run=lambda: sides.recompress(subject),
        ),
    ]
    recorded = "ours, recorded layers"
    if subject.locked.layers:
        what = "the committed lock: its layers' digests are known, and compared"
        contenders.insert(
            0, Contender(name=recorded, what=what, run=lambda: build(subject, wheels=True, bytecode=True))
        )
    found = alternate(contenders, rounds, say)
    figures = [_rate(found[name], subject, 200.0 if name != rival else None) for name in found]
    for name in found:
        if name != rival:
            figures.append(
                Figure(
                    what=f"{rival} / {name}: time",
                    unit="×",
                    values=per_round(found[rival].samples, found[name].samples),
                )
            )
    figures.append(size_figure("wheel layers: " + full, found[full], subject))
    figures.append(size_figure("wheel layers: " + rival, found[rival], subject))
    return Outcome(
        name="warm",
        title="Wheels and .pyc files cached, layers not",
        state=STATE,
        sides=tuple(found.values()),
        figures=tuple(figures),
        notes=(
            "Sizes: torchkiln's layers also have .pyc files, launchers and RECORDs; the layers of isal have"
            " only the files of the wheels.",
        ),
    )


def unchanged(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure a second build, against a start of Python; three times as many rounds, because they are
    short."""
    cache, layout = subject.cache("ours", wheels=True, bytecode=True), subject.scratch / "layout"
    try:
        sides.built(subject, cache, layout)
        found = alternate(
            (
                Contender(
                    name="second build",
                    what="the same command again",
                    run=lambda: sides.built(subject, cache, layout),
                ),
                Contender(
                    name="python -c pass",
                    what="a start of the same interpreter",
                    run=lambda: sides.run(subject, [sys.executable, "-c", "pass"])[0],
                ),
            ),
            3 * rounds,
            say,
        )
    finally:
        sides.remove(cache, layout)
    return Outcome(
        name="unchanged",
        title="Nothing changed",
        state="all layers in our cache, the image in its layout; Python's own files in the page cache",
        sides=tuple(found.values()),
        figures=(
            Figure(
                what="a build that changes nothing, with Python's start",
                unit="s",
                target=0.5,
                values=tuple(sample.wall for sample in found["second build"].samples),
            ),
        ),
    )


def _rate(side: Side, subject: Subject, target: float | None) -> Figure:
    values = tuple(subject.wheel_bytes / 1e6 / sample.wall for sample in side.samples)
    return Figure(what=f"{side.name}: wheel bytes", unit="MB/s", values=values, target=target, at_most=False)


def size_figure(what: str, side: Side, subject: Subject) -> Figure:
    """The size of the output divided by that of the wheels."""
    values = tuple(sample.bytes / subject.wheel_bytes for sample in side.samples)
    return Figure(what=f"{what} / wheels: size", unit="×", values=values)
