"""Most mutants are part of `make proof` and `make gpu-mutants`, because mutants that run torch take minutes.

`make mutants` runs all mutants, and writes proved.json if they pass. With TORCHKILN_MUTANTS=SEED, as in
`.ci/run`, only a random sixteenth runs if the suite, the mutants and torch are those of proved.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.smoke_mutants.mutant import PYTHON

#: Files and tests that are part of `make test`. The other tests of device-code only protect the suite.
QUICK = {
    *("test_linkage", "test_lock", "test_shared_objects"),
    "test_each_locked_wheel_of_nvidia_is_in_the_table",
    *("test_the_rows_of_the_table_name_cases_and_checks_that_exist", "test_a_file_is_known_by_its_name"),
    *("test_an_image_that_was_cut_correctly_passes", "test_on_another_gpu_the_host_is_to_blame"),
}
#: Always part of `make proof`, because SECURITY.md names it as the test of an attack.
ALWAYS = "test_each_difference_is_found"
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROVED = HERE / "proved.json"
SHARE = 16
_CHOICE = os.environ.get("TORCHKILN_MUTANTS", "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow tests of this folder `proof`; deselect most if they passed with the same files."""
    here = (item for item in items if item.path.parent == HERE)
    slow = [item for item in here if QUICK.isdisjoint((item.path.stem, item.name.partition("[")[0]))]
    for item in slow:
        item.add_marker("proof")
    if _CHOICE in ("", "record") or not _proved():
        return
    drawn = set(random.Random(_CHOICE).sample(range(len(slow)), len(slow) // SHARE))
    left_out = {
        item
        for number, item in enumerate(slow)
        if number not in drawn and item.name.partition("[")[0] != ALWAYS
    }
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write proved.json if all mutants ran and passed."""
    if _CHOICE != "record" or exitstatus or not PYTHON or "PYTEST_XDIST_WORKER" in os.environ:
        return
    options, named = session.config.option, {Path(name).resolve() for name in session.config.args}
    whole = not options.keyword and options.markexpr in ("proof", "proof or hypothesis")
    if whole and not named.isdisjoint((HERE, *HERE.parents)):
        PROVED.write_text(json.dumps(_state(), indent=2) + "\n")


def _proved() -> bool:
    return PROVED.exists() and json.loads(PROVED.read_bytes()) == _state()


def _state() -> dict[str, Any]:
    """The versions on which the outcome of the mutants depends: hash of the files, torch."""
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(ROOT)}\n{_code(path)}".encode())
    return {"files": digest.hexdigest(), "torch": _torch()}


def _code(path: Path) -> str:
    """The code in a file, without comments, docstrings and the text of a page."""
    from torchkiln.smoke.suite import canonical

    if path.suffix == ".md":
        return "".join(re.findall(r"^```python\n.*?^```$", path.read_text("utf-8"), re.M | re.S))
    return canonical(path.read_bytes()) if path.suffix == ".py" else path.read_text("utf-8")


def _files() -> Iterator[Path]:
    for name in ("docs/smoke.md", "tests/cut_wheels.py", "tests/needs.py", "tests/smoke_suites.py"):
        yield ROOT / name
    for folder in (ROOT / "smoke_tests", ROOT / "torchkiln" / "smoke", HERE):
        found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        yield from sorted(path for path in found if path not in (PROVED, Path(__file__)))


def _torch() -> str:
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.check_output([PYTHON, "-I", "-c", code], text=True).strip() if PYTHON else ""
