"""Run smoke checks in mutants, on a real GPU or on the fake GPU of pretend_gpu.py."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.applicable import not_applicable
from smoke_tests.gpus import capability
from smoke_tests.probe import probe
from tests.smoke_mutants.mutant import check, environment, needs_gpus, on_cpu

PRETEND = Path(__file__).with_name("pretend_gpu.py").read_text("utf-8")
# The module of GradScaler: torch.amp from torch 2.3.
SCALER = 'import torch\namp = torch.amp if hasattr(torch.amp, "GradScaler") else torch.cuda.amp\n'

anywhere = pytest.mark.parametrize(
    "pretend",
    [pytest.param(True, marks=on_cpu, id="pretended"), pytest.param(False, marks=needs_gpus(1), id="gpu")],
)


def broken_by(mutant: str, id: str, tmp_path: Path, *, pretend: bool, **env: str) -> list[str]:
    """The values of the check *id* that *mutant* moves out of bounds, without the values for the device."""
    return [line.split(":")[0] for line in faults_by(mutant, id, tmp_path, pretend=pretend, **env)]


def faults_by(mutant: str, id: str, tmp_path: Path, *, pretend: bool, **env: str) -> list[str]:
    """Like `broken_by`, with the whole message for each value."""
    result = _result(mutant, id, tmp_path, pretend, env)
    lines = result["message"].splitlines()
    assert result["outcome"] == ("failed" if lines else "passed")
    assert pretend == any(map(_of_device, lines)), result["message"]
    return [line for line in lines if not _of_device(line)]


def fails_with(mutant: str, id: str, tmp_path: Path, *, pretend: bool, **env: str) -> str:
    """The message of the check *id*, which *mutant* ends early."""
    result = _result(mutant, id, tmp_path, pretend, env)
    assert result["outcome"] == "failed"
    return str(result["message"])


def _result(mutant: str, id: str, tmp_path: Path, pretend: bool, env: dict[str, str]) -> dict[str, Any]:
    """The result of a check that ended. A fake GPU is slow and uses one core, because tests run in
    parallel."""
    code = (PRETEND if pretend else "") + mutant
    if pretend:
        env = {"OMP_NUM_THREADS": "1"} | env
    result = check(id, tmp_path, code, facts=None, limit=900 if pretend else 300, **env)
    assert not result["message"].startswith(("no result", "the process")), result
    return result


def _of_device(line: str) -> bool:
    return line.startswith("device")


def skip_unless_it_applies(check: str) -> None:
    """Skip the test if the runner would skip *check* with the facts of this environment."""
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

# rtld-audit(7): the loader calls this function for each name that it searches. For a hidden library, it does
# not return NULL: the loader's error would then lack the name, unlike the error for a missing file.
_AUDIT = """
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
unsigned int la_version(unsigned int version) {{ (void)version; return 1; }}
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned int flag) {{
    (void)cookie; (void)flag;
    char *missing;
    if (!strstr(name, "{part}") || asprintf(&missing, "/missing/%s", basename(name)) < 0) return (char *)name;
    return missing;
}}
"""


def another_cudnn(folder: Path, version: tuple[int, int, int]) -> dict[str, str]:
    """The environment in which another cuDNN is found first, which returns *version*."""
    major, minor, patch = version
    number = major * (10_000 if major >= 9 else 1_000) + minor * 100 + patch
    # This library has no cuDNN soname: the loader would use it for torch, which needs cuDNN's other symbols.
    source = _CUDNN.format(number=number, major=major, minor=minor, patch=patch)
    return {"LD_PRELOAD": str(_built(folder / "libanother_cudnn.so", source))}


def without_library(folder: Path, part: str) -> dict[str, str]:
    """The environment in which no library whose name contains *part* can be found."""
    return {"LD_AUDIT": str(_built(folder / "libaudit.so", _AUDIT.format(part=part)))}


def _built(path: Path, source: str) -> Path:
    command = ["gcc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path
