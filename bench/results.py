"""Data classes of benchmark results, and their JSON form."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

SCHEMA = 1
STAGES = ("download", "convert", "byte-code", "rest")
_ADDRESS = re.compile(r"\b\w+://(?!www\.w3\.org/)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One run: wall seconds, core-seconds, bytes of memory and of output."""

    wall: float
    user: float
    system: float
    peak: int  # largest sum of all processes' PSS, bytes
    bytes: int = 0  # compressed bytes of the output, or downloaded bytes
    stages: tuple[tuple[str, float], ...] = ()  # core-seconds by stage, if known
    legs: tuple[tuple[str, float], ...] = ()  # wall seconds of consecutive steps

    @property
    def core(self) -> float:
        """Core-seconds of the whole process tree."""
        return self.user + self.system

    def __add__(self, other: Sample) -> Sample:
        """The sum of two consecutive runs."""
        mine, others = dict(self.stages), dict(other.stages)
        return Sample(
            wall=self.wall + other.wall,
            user=self.user + other.user,
            system=self.system + other.system,
            peak=max(self.peak, other.peak),
            bytes=self.bytes + other.bytes,
            stages=tuple((key, mine.get(key, 0.0) + others.get(key, 0.0)) for key in mine | others),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """The samples of one contender, one for each round."""

    name: str
    what: str
    samples: tuple[Sample, ...]

    def median(self, field: Literal["wall", "core", "peak", "bytes"]) -> float:
        """The median over the rounds."""
        return float(statistics.median(getattr(sample, field) for sample in self.samples))


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A reported number, with a value for each round and an optional target for the median or the worst
    value."""

    what: str
    unit: str  # "×", "s", "MB/s", "MiB"
    values: tuple[float, ...]
    target: float | None = None
    at_most: bool = True
    judged: Literal["median", "worst"] = "median"

    @property
    def median(self) -> float:
        return float(statistics.median(self.values))

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is none."""
        if self.target is None:
            return None
        worst = max(self.values) if self.at_most else min(self.values)
        judged = self.median if self.judged == "median" else worst
        return judged <= self.target if self.at_most else judged >= self.target


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The result of a benchmark. `series` is a growth table: titles, then rows."""

    name: str
    title: str
    state: str  # the state of caches and page cache, the same for all sides
    sides: tuple[Side, ...] = ()
    figures: tuple[Figure, ...] = ()
    series: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # parts that were not measured, with the reason


def per_round(above: Sequence[Sample], below: Sequence[Sample]) -> tuple[float, ...]:
    """The ratio of wall seconds, by round."""
    return tuple(a.wall / b.wall for a, b in zip(above, below, strict=False))


def fastest(*sides: Sequence[Sample]) -> tuple[Sample, ...]:
    """The fastest sample of each round."""
    return tuple(min(row, key=lambda sample: sample.wall) for row in zip(*sides, strict=True))


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON values, with computed medians and verdicts for readers of the file."""
    values: dict[str, Any] = asdict(outcome)
    for side, found in zip(values["sides"], outcome.sides, strict=True):
        for sample in side["samples"]:
            sample["stages"], sample["legs"] = dict(sample["stages"]), dict(sample["legs"])
        side["median"] = {key: found.median(key) for key in ("wall", "core", "peak", "bytes")}
    for figure, known in zip(values["figures"], outcome.figures, strict=True):
        figure |= {"median": known.median, "min": min(known.values), "max": max(known.values)}
        figure["met"] = known.met
    return values


def outcome_from_json(value: Mapping[str, Any]) -> Outcome:
    """The inverse of `outcome_json`; computed values are ignored."""
    return Outcome(
        name=value["name"],
        title=value["title"],
        state=value["state"],
        sides=tuple(
            Side(
                name=side["name"],
                what=side["what"],
                samples=tuple(_sample(sample) for sample in side["samples"]),
            )
            for side in value["sides"]
        ),
        figures=tuple(
            Figure(**{**_only(Figure, figure), "values": tuple(figure["values"])})
            for figure in value["figures"]
        ),
        series=tuple(tuple(row) for row in value["series"]),
        notes=tuple(value["notes"]),
        left_out=tuple(value["left_out"]),
    )


def addresses_in(text: str, paths: Iterable[str]) -> list[str]:
    """The addresses, and the *paths* of this machine, that *text* contains and that must not be published."""
    return _ADDRESS.findall(text) + [path for path in paths if path in text]


def _sample(value: Mapping[str, Any]) -> Sample:
    times = {key: tuple(value.get(key, {}).items()) for key in ("stages", "legs")}
    return Sample(**{**_only(Sample, value), **times})


def _only(kind: type, value: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: value[field.name] for field in fields(kind) if field.name in value}
