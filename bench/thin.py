"""Benchmark thin images (`--gpus`) against the image for all GPUs: time and sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import sides
from bench.results import Figure, Outcome, per_round
from bench.sides import Contender, Say, alternate, build
from bench.subject import Subject
from bench.warm import STATE
from torchkiln.locks.lock import save
from torchkiln.model.layer import LAYER_FORMATS

_GPUS = ("--gpus", "9.0")
_FULL, _THIN, _OWN = "for all GPUs", "thin", "thin, own use"
_KINDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    _FULL: ((), "the image of the cell"),
    _THIN: (_GPUS, "`--gpus 9.0`: device code of libraries with an open licence"),
    _OWN: ((*_GPUS, "--own-use"), "`--gpus 9.0 --own-use`: of NVIDIA's libraries, too"),
}
_TIME = 2.5  # maximum ratio to the time of the image for all GPUs
_GB: Mapping[tuple[str, str], float] = {  # sizes of the set of 2.7.1 × 12.1
    (_THIN, "gzip"): 2.88,
    (_THIN, "zstd"): 2.08,
    (_OWN, "gzip"): 1.85,
    (_OWN, "zstd"): 1.32,
}


def thin(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure warm builds with all checks and with recorded layers, then the sizes in both formats."""
    unrecorded = subject.without_records()
    recorded = subject.scratch / "images-with-records"  # where a build writes the lock of a thin cell
    save(recorded, subject.locked)
    checked, committed = "every check", "committed lock"
    contenders = [
        Contender(
            name=f"{kind}, {lock}",
            what=what if lock == checked else "layers that the committed lock records are compared with it",
            run=partial(build, replace(subject, options=options), wheels=True, bytecode=True, images=images),
        )
        for lock, images in ((checked, unrecorded), (committed, recorded))
        for kind, (options, what) in _KINDS.items()
    ]
    found = alternate(contenders, rounds, say)
    figures = [
        Figure(
            what=f"{kind} / {_FULL}, {lock}: time",
            unit="×",
            values=per_round(found[f"{kind}, {lock}"].samples, found[f"{_FULL}, {lock}"].samples),
            target=_TIME if lock == checked else None,
        )
        for lock in (checked, committed)
        for kind in (_THIN, _OWN)
    ]
    for kind, (options, _) in _KINDS.items():
        for layer_format, size in _sizes(replace(subject, options=options), recorded).items():
            say(f"  {kind}, {layer_format}: {size / 1e9:.3f} GB")
            target = None if subject.generated else _GB.get((kind, layer_format))
            figures.append(
                Figure(what=f"{kind}, {layer_format}: size", unit="GB", values=(size / 1e9,), target=target)
            )
    return Outcome(
        name="thin",
        title="An image for one kind of GPU",
        state=STATE,
        sides=tuple(found.values()),
        figures=tuple(figures),
        notes=(
            "A cut library is inflated to a temporary file and compressed again, at level 6; with a recorded"
            " layer, too. Sizes are those of all layers, with the base.",
        ),
    )


def _sizes(subject: Subject, images: Path) -> dict[str, int]:
    """The compressed bytes of the image in each format; not timed."""
    cache, layout = subject.cache("sizes", wheels=True, bytecode=True), subject.scratch / "layout"
    found: dict[str, int] = {}
    try:
        for layer_format in LAYER_FORMATS:
            argv = [*subject.command(images), "--layer-format", layer_format, "--output", str(layout)]
            _, out = sides.run(subject, argv, {"TORCHKILN_CACHE": str(cache)})
            found[layer_format] = json.loads(out)["compressed_bytes"]
    finally:
        sides.remove(cache, layout)
    return found
