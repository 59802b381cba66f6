"""A check with several GPUs in a broken environment: on real ones, and on ranks that pretend to have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.smoke_mutants.mutant import broken, check, gpus, needs_gpus, needs_torch

PRETEND = Path(__file__).with_name("pretend_ranks.py").read_text("utf-8")

without_gpus = [
    needs_torch,
    pytest.mark.skipif(gpus() > 1, reason="torch finds several GPUs here, and ranks need not pretend"),
]
anywhere = pytest.mark.parametrize(
    "pretend",
    [
        pytest.param(True, marks=without_gpus, id="pretended"),
        pytest.param(False, marks=needs_gpus(2), id="gpus"),
    ],
)
pretended = pytest.mark.parametrize("pretend", [pytest.param(True, marks=without_gpus, id="pretended")])
on_gpus = pytest.mark.parametrize("pretend", [pytest.param(False, marks=needs_gpus(2), id="gpus")])


def tried(id: str, tmp_path: Path, mutant: str = "", *, pretend: bool, **env: str) -> dict[str, Any]:
    """The finding of the check *id*, whose ranks left no file behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    told = check(id, tmp_path, (PRETEND if pretend else "") + mutant, limit=400, TMPDIR=str(scratch), **env)
    assert list(scratch.glob("kiln-ranks-*")) == []
    return told


def broken_by(mutant: str, id: str, tmp_path: Path, *, pretend: bool, **env: str) -> list[str]:
    """The names of the values that *mutant* broke, less the one that finds a pretended GPU out."""
    told = tried(id, tmp_path, mutant, pretend=pretend, **env)
    names, gives_away = broken(told), "met" if id == "hang" else "backend"
    assert told["outcome"] == ("failed" if names else "passed")
    if pretend:
        assert gives_away in names, told["message"]
        names.remove(gives_away)
    return names
