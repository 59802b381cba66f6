"""Run mutants of checks that use several GPUs, on real GPUs, or with fake GPUs (pretend_ranks.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.smoke_mutants.mutant import broken, check, environment, gpus, needs_gpus, needs_torch

PRETEND = Path(__file__).with_name("pretend_ranks.py").read_text("utf-8")

without_gpus = [
    needs_torch,
    pytest.mark.skipif(gpus() > 1, reason="torch finds several GPUs, so no rank needs to pretend"),
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


# The driver's description of the fake GPUs of pretend_ranks.py.
PRETENDED_HOST = {
    "driver": {
        "gpus": [{"name": "pretended", "capability": [9, 0]}] * 2,
        "peers": [[0, 1], [1, 0]],
        "links": [],
    }
}


def tried(id: str, tmp_path: Path, mutant: str = "", *, pretend: bool, **env: str) -> dict[str, Any]:
    """The finding of the check *id*; its ranks must leave no file behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    facts = environment()
    if pretend:  # without NCCL
        facts = facts | {"host": PRETENDED_HOST, "claims": facts["claims"] | {"nccl": None}}
    code = (PRETEND if pretend else "") + mutant
    result = check(id, tmp_path, code, facts=facts, limit=400, TMPDIR=str(scratch), **env)
    assert list(scratch.glob("kiln-ranks-*")) == []
    return result


def broken_by(mutant: str, id: str, tmp_path: Path, *, pretend: bool, **env: str) -> list[str]:
    """The values that *mutant* moves out of bounds, without the value that fake GPUs always violate."""
    result = tried(id, tmp_path, mutant, pretend=pretend, **env)
    names, detects = broken(result), "joined" if id == "hang" else "backend"
    assert result["outcome"] == ("failed" if names else "passed")
    if pretend:
        assert detects in names, result["message"]
        names.remove(detects)
    return names
