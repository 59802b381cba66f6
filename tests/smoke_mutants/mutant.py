"""Run a smoke check in a mutant: the environment or torch is broken on purpose, never the check.

The mutant is a venv on top of the environment with torch. A .pth file in the venv runs code that breaks torch
when Python starts: in the process of the check, and in each rank that the check starts.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.runner import judge
from tests.smoke_suites import SUITE

PYTHON = os.environ.get("TORCHKILN_TORCH_PYTHON") or (
    sys.executable if importlib.util.find_spec("torch") else ""
)
needs_torch = pytest.mark.skipif(
    not PYTHON, reason="no torch here: set TORCHKILN_TORCH_PYTHON to an interpreter that has it"
)
# The check measures times of a GPU or fills its memory, so no other test may run at the same time.
alone = pytest.mark.alone
# The mutant's code runs in its own namespace, in which its functions find their globals.
# Only once, because some Pythons read the file twice if lib64 is a link to lib.
_HOOK = (
    "import os, sys; 'kiln_mutant' in sys.modules or sys.modules.update(kiln_mutant=os) or "
    "exec(compile(os.environ.get('KILN_MUTANT', ''), 'mutant', 'exec'), {'__name__': ''})\n"
)


@functools.cache
def gpus() -> int:
    """The number of GPUs that torch finds."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.check_output([PYTHON, "-I", "-c", code])) if PYTHON else 0


@functools.cache
def environment() -> dict[str, Any]:
    """The facts of the environment that has torch, as smoke_tests/environment.py makes them."""
    command = [PYTHON, "-I", "-B", str(SUITE / "probes" / "environment.py")]
    return {**json.loads(subprocess.check_output(command)), "labels": {}}


without_gpu = pytest.mark.skipif(
    gpus() > 0, reason="torch finds a GPU here; this test is for hosts without one"
)
on_cpu = (needs_torch, without_gpu)


def needs_gpus(count: int) -> pytest.MarkDecorator:
    """Mark a test that needs *count* GPUs: `make gpu-mutants` runs it on a machine that has them."""
    return pytest.mark.skipif(
        gpus() < count, reason=f"needs {count} GPUs: make gpu-mutants on a machine that has them"
    )


def check(
    id: str,
    tmp_path: Path,
    mutant: str = "",
    *,
    facts: Mapping[str, Any] | None = None,
    limit: float = 300,
    **env: str,
) -> dict[str, Any]:
    """The finding (outcome, message, measured, ...) of the check *id* in a process that runs *mutant* first.

    :param mutant: Python source; it may import torch and replace what it finds there.
    :param facts: the facts of a lock; None: those of the environment's distributions.
    :param env: environment variables, added to those of this process.
    """
    facts_file, result = tmp_path / "facts.json", tmp_path / "result.json"
    facts_file.write_text(json.dumps(facts or environment()))
    command = [broken_python(), "-I", "-B", str(SUITE / "one.py"), str(SUITE), pytest_folder()]
    command += [_node(id), str(facts_file), str(result)]
    own = {
        "KILN_MUTANT": mutant,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        command, env=os.environ | own | env, capture_output=True, text=True, check=False, timeout=limit
    )
    return judge(done.returncode, result, done.stdout + done.stderr, limit)


def broken(finding: Mapping[str, Any]) -> list[str]:
    """The names of the values that are out of bounds, from the check's message."""
    return [line.split(":")[0] for line in str(finding["message"]).splitlines()]


@functools.cache
def broken_python() -> str:
    """An interpreter with the packages of PYTHON that runs KILN_MUTANT when it starts."""
    folder = Path(tempfile.mkdtemp(prefix="kiln-mutants-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run([PYTHON, "-I", "-m", "venv", "--without-pip", str(folder)], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'), sysconfig.get_path('platlib'))"
    sites = dict.fromkeys(subprocess.check_output([PYTHON, "-I", "-c", code], text=True).split())
    own = next((folder / "lib").glob("python*")) / "site-packages"
    (own / "mutant.pth").write_text("\n".join(sites) + "\n" + _HOOK)
    return str(folder / "bin" / "python")


def _node(id: str) -> str:
    from smoke_tests.catalogue import catalogue

    found = next(entry for entry in catalogue(SUITE) if entry.id == id)
    return f"{found.file}::{found.function}"


def pytest_folder() -> str:
    """The folder of this process's pytest, which is appended to the path of the mutant's Python."""
    return str(Path(pytest.__file__).parent.parent)


def torch_prints(code: str, mutant: str = "") -> Any:
    """Run *mutant*, then *code*, in PYTHON with the suite loaded; returns the JSON in the last line."""
    head = f"import json, pathlib, runpy, sys\nsys.path.append({pytest_folder()!r})\n"
    head += f"runpy.run_path('{SUITE}/one.py')['load_suite'](pathlib.Path('{SUITE}'))"
    command = [PYTHON, "-I", "-B", "-c", "\n".join((mutant, head, code))]
    # One thread: several threads wait for each other, and are slow on a busy machine.
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
