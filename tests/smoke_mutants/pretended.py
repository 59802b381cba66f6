"""Broken environments for checks: on a real GPU, or on a CPU that passes for one."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.applicable import not_applicable
from smoke_tests.gpus import capability
from smoke_tests.probe import probe
from tests.smoke_mutants.mutant import broken, check, environment, needs_gpus, on_cpu

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


def skip_unless_it_applies(check: str) -> None:
    """Skip where the runner would not run *check* either, by the same facts."""
    if fact := not_applicable(check, environment(), _capability()):
        pytest.skip(f"not applicable: {fact}")


@functools.cache
def _capability() -> tuple[int, int] | None:
    return capability({"driver": probe("driver")})


_CUDNN = """
#include <stddef.h>
size_t cudnnGetVersion(void) {{ return {number}; }}
int cudnnGetProperty(int which, int *value) {{
    const int parts[] = {{{major}, {minor}, {patch}}};
    *value = parts[which];
    return 0;
}}
"""

# rtld-audit(7): the loader asks this before it looks at a place, and NULL says that nothing is there.
_AUDIT = """
#include <stdint.h>
#include <string.h>
unsigned int la_version(unsigned int version) {{ (void)version; return 1; }}
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned int flag) {{
    (void)cookie; (void)flag;
    return strstr(name, "{part}") ? 0 : (char *)name;
}}
"""


def another_cudnn(folder: Path, version: tuple[int, int, int]) -> dict[str, str]:
    """The environment in which another cuDNN, of *version*, answers first when it is asked what it is."""
    major, minor, patch = version
    number = major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch
    # Not by cuDNN's own soname: the loader would take it for the library that torch needs, and miss the rest.
    source = _CUDNN.format(number=number, major=major, minor=minor, patch=patch)
    return {"LD_PRELOAD": str(_built(folder / "libanother_cudnn.so", source))}


def without_library(folder: Path, part: str) -> dict[str, str]:
    """The environment in which no library whose name contains *part* can be found."""
    return {"LD_AUDIT": str(_built(folder / "libaudit.so", _AUDIT.format(part=part)))}


def _built(path: Path, source: str) -> Path:
    command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path
