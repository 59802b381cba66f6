"""Benchmark torchkiln against pip into a new venv, tar and gzip. One round, because it takes minutes."""

from __future__ import annotations

import shutil
import sys

from bench import sides
from bench.results import Figure, Outcome, Side, per_round
from bench.sides import Contender, Say, alternate, build
from bench.subject import Subject
from bench.warm import STATE, size_figure
from torchkiln.model.recipe import minor

_TITLE = "Against pip into a fresh venv, tar and gzip"
_COMPRESSORS = {"gzip -6": "gzip -6", "pigz -6": "pigz -6 -p2"}


def pip(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure the time from cached wheels to compressed layers, without the base; *rounds* is ignored."""
    here, required = f"{sys.version_info[0]}.{sys.version_info[1]}", minor(subject.locked.base.python)
    if here != required:
        reason = f"pip, tar and gzip: the wheels are for Python {required}, and this is {here}"
        return Outcome(name="pip", title=_TITLE, state=STATE, left_out=(reason,))
    ours = Contender(
        name="ours, .pyc made",
        what="`build` from cached wheels; recorded layers are compared",
        run=lambda: build(subject, wheels=True, bytecode=False),
    )
    mine = alternate((ours,), 1, say)[ours.name]
    theirs, left_out = _theirs(subject, say)
    figures = []
    for side in theirs:
        if side.name.startswith("pip + "):
            times = per_round(side.samples, mine.samples)
            figures.append(Figure(what=f"{side.name} / {mine.name}: time", unit="×", values=times))
            figures.append(size_figure(f"one layer: {side.name}", side, subject))
    figures.append(size_figure(f"wheel layers: {mine.name}", mine, subject))
    return Outcome(
        name="pip",
        title=_TITLE,
        state=f"{STATE}; one round each, because it takes minutes",
        sides=(mine, *theirs),
        figures=tuple(figures),
        notes=(
            "The venv is made beforehand, untimed; its own pip is in the layer. pip makes .pyc files, so ours"
            " are made too. pip does not verify hashes in this benchmark; a real build would have to.",
        ),
        left_out=left_out,
    )


def _theirs(subject: Subject, say: Say) -> tuple[tuple[Side, ...], tuple[str, ...]]:
    """Run pip once, then each installed compressor on the result; also return the skipped compressors."""
    venv = subject.scratch / "venv"
    found, left_out = [], []
    try:
        installed = sides.pip_install(subject, venv)
        say(f"  pip install: {installed.wall:.1f} s")
        found.append(Side(name="pip install", what="--no-deps --no-index", samples=(installed,)))
        for name, command in _COMPRESSORS.items():
            if shutil.which(command.split()[0]) is None:
                left_out.append(f"pip + tar + {name}: {name.split()[0]} is not installed")
                continue
            packed = sides.compress(venv, command)
            say(f"  tar | {name}: {packed.wall:.1f} s")
            found.append(Side(name=f"tar | {name}", what=f"`{command}`", samples=(packed,)))
            found.append(
                Side(name=f"pip + tar + {name}", what="both, to one layer", samples=(installed + packed,))
            )
    finally:
        sides.remove(venv)
    return tuple(found), tuple(left_out)
