"""A mutant, tried on a real GPU and, where there is none, on a CPU that passes for one (pretend_gpu.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.smoke_mutants.mutant import broken, check, needs_gpus, on_cpu

PRETEND = Path(__file__).with_name("pretend_gpu.py").read_text("utf-8")
# Where a mutant's code finds GradScaler: torch.amp has it from 2.3 on.
SCALER = 'import torch\namp = torch.amp if hasattr(torch.amp, "GradScaler") else torch.cuda.amp\n'

anywhere = pytest.mark.parametrize(
    "pretend",
    [pytest.param(True, marks=on_cpu, id="pretended"), pytest.param(False, marks=needs_gpus(1), id="gpu")],
)


def broken_by(mutant: str, id: str, tmp_path: Path, *, pretend: bool, **env: str) -> list[str]:
    """The names of the values that *mutant* broke in the check *id*, less the one that finds the CPU out."""
    told = _told(mutant, id, tmp_path, pretend, env)
    names = broken(told)
    assert told["outcome"] == ("failed" if names else "passed")
    assert pretend == any(map(_tells_where, names)), told["message"]
    return [name for name in names if not _tells_where(name)]


def fails_with(mutant: str, id: str, tmp_path: Path, *, pretend: bool, **env: str) -> str:
    """The message of the check *id* where *mutant* keeps it from going on."""
    told = _told(mutant, id, tmp_path, pretend, env)
    assert told["outcome"] == "failed"
    return str(told["message"])


def _told(mutant: str, id: str, tmp_path: Path, pretend: bool, env: dict[str, str]) -> dict[str, Any]:
    """The finding of a check which came to its end; a CPU that plays a GPU may take its time."""
    code = (PRETEND if pretend else "") + mutant
    told = check(id, tmp_path, code, facts=None, limit=900 if pretend else 300, **env)
    assert not told["message"].startswith(("no result", "the process")), told
    return told


def _tells_where(name: str) -> bool:
    return name.startswith("device")
