"""Benchmark how builds scale with cells, cores, and the number and size of wheels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import sides
from bench.generated import WheelShape, named, write_wheel
from bench.plot import number
from bench.results import Outcome, Sample, Side
from bench.sides import Say
from bench.subject import TAG, Subject, of_wheels, shrunk
from torchkiln.locks.lock import load_locked
from torchkiln.model.lock import LockedWheel
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

_LONG = 15.0  # seconds; a point that takes longer is measured only once
_MIB = 1 << 20
_STATE = "base and wheels in our cache, wheels in the page cache, layers not; locks without recorded layers"
_PYTHON = f"{_STATE}; the base's Python extracted before"
_TITLES = ("rounds", "seconds (median)", "MB/s of wheels", "core-seconds", "peak memory, MiB")
_SMALL = WheelShape(size=100_000, words=0.5, modules=5)


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthPoint:
    """A point of a curve, with *bytes* of wheels."""

    labels: tuple[str, ...]
    bytes: int
    run: Callable[[], Sample]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """Makes subjects of generated wheels. *base* is the user's cache, only read; *scratch* is beside it."""

    base: Store
    scratch: Path
    quick: bool

    def subject(self, wheels: Iterable[LockedWheel], store: Store, name: str) -> Subject:
        """The cell of TAG with *wheels* in place of its own."""
        locked = load_locked(ROOT / "images", TAG)
        return of_wheels(wheels, locked, self.base, store, self.scratch, name=name)


def cells(workshop: Workshop, rounds: int, say: Say) -> Outcome:
    """Measure 1, 3 and 9 cells, built one after the other with one cache into one layout."""
    divisor = 200 if workshop.quick else 10
    store = Store(workshop.scratch / "cells")
    tags = sorted((path.parent.name for path in (ROOT / "images").glob("*/lock.json")), reverse=True)
    subjects = [shrunk(tag, workshop.base, store, workshop.scratch, divisor=divisor) for tag in tags]
    points = []
    for count in sorted({1, 3, len(subjects)}):
        wheels = {wheel for subject in subjects[:count] for wheel in subject.locked.wheels}
        every = sum(subject.wheel_bytes for subject in subjects[:count])
        size = sum(wheel.size for wheel in wheels)
        labels = (str(count), f"{size / 1e6:,.0f}", f"{every / 1e6:,.0f}")
        points.append(GrowthPoint(labels=labels, bytes=size, run=partial(_build_all, subjects[:count])))
    return _outcome(
        "cells",
        "Growth: cells of the matrix",
        ("cells", "MB of different wheels", "MB, cells counted singly"),
        points,
        measured(points, rounds, say),
        state=f"{_STATE}; .pyc made; one command per cell, in sequence, newest torch first",
        notes=(
            f"Generated wheels with the real names and 1/{divisor} of the real sizes: nine real sets are"
            " 28 GB of downloads. So fewer wheels have a layer of their own than in reality, and the"
            " fixed cost of a build weighs more.",
        ),
    )


def cores(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure with 1, 2, 4 ... cores, up to all."""
    there = sorted(os.sched_getaffinity(0))
    counts = [count for count in (1, 2, 4, 8, 16) if count <= len(there)]
    points = [
        GrowthPoint(
            labels=(str(count),),
            bytes=subject.wheel_bytes,
            run=partial(sides.build, subject, wheels=True, bytecode=True, cores=frozenset(there[:count])),
        )
        for count in counts
    ]
    return _outcome(
        "cores",
        "Growth: cores",
        ("cores",),
        points,
        measured(points, rounds, say),
        state="base, wheels and .pyc files cached, wheels in the page cache, layers not;"
        " CPU affinity limits the cores",
        notes=(f"{subject.name}, with its committed lock.",),
    )


def count(workshop: Workshop, rounds: int, say: Say) -> Outcome:
    """Measure builds of 1 to 1000 small wheels, with cached .pyc files and with compilation."""
    counts = (1, 10, 100) if workshop.quick else (1, 10, 100, 1000)
    store = Store(workshop.scratch / "count")
    wheels = [write_wheel(named(f"w{number:04}"), _SMALL, store) for number in range(max(counts))]
    subjects = {n: workshop.subject(wheels[:n], store, f"{n} small wheels") for n in counts}
    sides.keep_bytecode(subjects[max(counts)])
    points = [
        GrowthPoint(
            labels=(str(n), "cached" if cached else "made"),
            bytes=subjects[n].wheel_bytes,
            run=partial(sides.build, subjects[n], wheels=True, bytecode=cached, python=True),
        )
        for n in counts
        for cached in (True, False)
    ]
    return _outcome(
        "count",
        "Growth: number of wheels",
        ("wheels", ".pyc"),
        points,
        measured(points, rounds, say),
        state=_PYTHON,
        notes=(f"Generated wheels of 100 kB, {_SMALL.modules} Python sources each; all share a layer.",),
    )


def size(workshop: Workshop, rounds: int, say: Say) -> Outcome:
    """Measure one wheel of 1 to 1000 MB, with compressible and with incompressible data."""
    megabytes = (1, 10, 40) if workshop.quick else (1, 10, 100, 1000)
    points: list[GrowthPoint] = []
    for words, kind in ((1.0, "deflates to 2/5"), (0.0, "does not deflate")):
        for many in megabytes:
            store = Store(workshop.scratch / "size")
            wheel = write_wheel(
                named(f"big{many}{'w' if words else 'n'}"),
                WheelShape(size=many * 1_000_000, words=words),
                store,
            )
            subject = workshop.subject([wheel], store, wheel.name)
            if not points:
                sides.keep_bytecode(subject)  # to extract the base's Python
            points.append(
                GrowthPoint(
                    labels=(str(many), kind),
                    bytes=wheel.size,
                    run=partial(sides.build, subject, wheels=True, bytecode=False, python=True),
                )
            )
    return _outcome(
        "size",
        "Growth: size of a wheel",
        ("MB", "content"),
        points,
        measured(points, rounds, say),
        state=f"{_PYTHON}; no Python sources in the wheel",
        notes=("One generated wheel is one layer, which one worker makes: the other cores are idle.",),
    )


def measured(points: Sequence[GrowthPoint], rounds: int, say: Say) -> dict[tuple[str, ...], Side]:
    """Measure all points in each round; points that take long only once."""
    samples: dict[tuple[str, ...], list[Sample]] = {point.labels: [] for point in points}
    for turn in range(rounds):
        for point in points:
            known = samples[point.labels]
            if known and known[0].wall > _LONG:
                continue
            os.sync()
            known.append(point.run())
            say(f"  {', '.join(point.labels)}, round {turn + 1}: {known[-1].wall:.2f} s")
    return {
        labels: Side(name=", ".join(labels), what="", samples=tuple(found))
        for labels, found in samples.items()
    }


def table(
    titles: tuple[str, ...], points: Sequence[GrowthPoint], found: dict[tuple[str, ...], Side]
) -> tuple[tuple[str, ...], ...]:
    """Titles, then a row for each point."""
    rows = [(*titles, *_TITLES)]
    for point in points:
        side = found[point.labels]
        wall = side.median("wall")
        rate, core, peak = point.bytes / 1e6 / wall, side.median("core"), side.median("peak") / _MIB
        rounds = str(len(side.samples))
        rows.append((*point.labels, rounds, number(wall), number(rate), number(core), f"{peak:.0f}"))
    return tuple(rows)


def _outcome(
    name: str,
    title: str,
    titles: tuple[str, ...],
    points: Sequence[GrowthPoint],
    found: dict[tuple[str, ...], Side],
    *,
    state: str,
    notes: tuple[str, ...],
) -> Outcome:
    return Outcome(
        name=name,
        title=title,
        state=state,
        sides=tuple(found[point.labels] for point in points),
        series=table(titles, points, found),
        notes=(*notes, f"If a build took more than {_LONG:.0f} s, it was measured only once."),
    )


def _build_all(subjects: Sequence[Subject]) -> Sample:
    """Build the subjects one after the other, with one cache that has their wheels."""
    wheels = {wheel.name + wheel.sha256: wheel for item in subjects for wheel in item.locked.wheels}
    union = replace(subjects[0], locked=replace(subjects[0].locked, wheels=tuple(wheels.values())))
    cache, layout = union.cache("ours", wheels=True), union.scratch / "layout"
    union.read_wheels()
    try:
        total, *others = [sides.built(subject, cache, layout) for subject in subjects]
        for other in others:
            total += other
        return total
    finally:
        sides.remove(cache, layout)
