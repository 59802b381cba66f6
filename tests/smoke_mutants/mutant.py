"""A check in an environment broken on purpose: the environment or the call into torch, never the check.

The broken environment is a venv over the one that has torch, and a .pth file in it runs the mutant's code
whenever a Python of that venv starts: in the check's process and in each rank that it starts.
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
alone = pytest.mark.alone  # it times a GPU or fills it: no other test beside
# A namespace of its own: its functions find what else it defines.
# Once: where lib64 is a link to lib, some Pythons read the file twice.
_HOOK = (
    "import os, sys; 'kiln_mutant' in sys.modules or sys.modules.update(kiln_mutant=os) or "
    "exec(compile(os.environ.get('KILN_MUTANT', ''), 'mutant', 'exec'), {'__name__': ''})\n"
)


@functools.cache
def gpus() -> int:
    """How many GPUs that torch sees."""
    asked = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.check_output([PYTHON, "-I", "-c", asked])) if PYTHON else 0


@functools.cache
def environment() -> dict[str, Any]:
    """The facts of the environment that has torch (see smoke_tests/environment.py)."""
    asked = [PYTHON, "-I", "-B", str(SUITE / "probes" / "environment.py")]
    return {"claims": json.loads(subprocess.check_output(asked)), "labels": {}, "wheels": []}


without_gpu = pytest.mark.skipif(
    gpus() > 0, reason="torch finds a GPU here, and it is tested what happens without"
)
on_cpu = (needs_torch, without_gpu)


def needs_gpus(count: int) -> pytest.MarkDecorator:
    """A test that wants *count* GPUs: `make gpu-mutants` on a machine that has them."""
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
    """The finding (outcome, message, measured ...) of the check *id* where *mutant* ran before everything.

    :param mutant: Python source; it may import torch and replace what it finds there.
    :param facts: what a lock would say; None: what the environment's distributions say.
    :param env: environment variables on top of ours.
    """
    told, result = tmp_path / "facts.json", tmp_path / "result.json"
    told.write_text(json.dumps(facts or environment()))
    command = [broken_python(), "-I", "-B", str(SUITE / "one.py"), str(SUITE), pytest_folder()]
    command += [_node(id), str(told), str(result)]
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


def broken(told: Mapping[str, Any]) -> list[str]:
    """The names of the values that were out of bounds, as the check's message gives them."""
    return [line.split(":")[0] for line in str(told["message"]).splitlines()]


@functools.cache
def broken_python() -> str:
    """An interpreter that sees what PYTHON sees, and runs KILN_MUTANT as it starts."""
    folder = Path(tempfile.mkdtemp(prefix="kiln-mutants-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run([PYTHON, "-I", "-m", "venv", "--without-pip", str(folder)], check=True)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'), sysconfig.get_path('platlib'))"
    sites = dict.fromkeys(subprocess.check_output([PYTHON, "-I", "-c", asked], text=True).split())
    own = next((folder / "lib").glob("python*")) / "site-packages"
    (own / "mutant.pth").write_text("\n".join(sites) + "\n" + _HOOK)
    return str(folder / "bin" / "python")


def _node(id: str) -> str:
    from smoke_tests.catalogue import catalogue

    found = next(one for one in catalogue(SUITE) if one.id == id)
    return f"{found.file}::{found.function}"


def pytest_folder() -> str:
    """Where this process has its pytest: for the other interpreter the last place to look."""
    return str(Path(pytest.__file__).parent.parent)
