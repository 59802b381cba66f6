"""docs/smoke.md, executed: the usual snippets pass without a GPU, and the example of a check works.

test_promised.py tests that the checks named by the snippets fail there.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

from smoke_tests.catalogue import catalogue
from tests.smoke_mutants import mutant as harness
from tests.smoke_mutants.mutant import PYTHON, broken, check, gpus, needs_torch
from tests.smoke_mutants.pretended import PRETEND
from tests.smoke_suites import SUITE, suite_with

pytestmark = needs_torch
PAGE = (SUITE.parent / "docs" / "smoke.md").read_text("utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SNIPPETS = _BLOCK.findall(SECTIONS["What common test snippets prove"])
EXAMPLE, MUTANT = _BLOCK.findall(SECTIONS["Adding a check"])


def title(snippet: str) -> str:
    """The check that the snippet's first line names."""
    return snippet.partition("\n")[0].removeprefix("# ")


@pytest.mark.parametrize("snippet", SNIPPETS, ids=title)
def test_a_usual_snippet_passes_without_a_gpu(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-I", "-c", snippet],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert title(snippet) in {item.id for item in catalogue(SUITE) if item.tier > 0}


def test_there_are_snippets() -> None:
    assert len({title(snippet) for snippet in SNIPPETS}) == len(SNIPPETS) >= 5


@pytest.mark.parametrize("broken_seed", [False, True], ids=["sound", "mutant"])
def test_the_example_is_a_check_and_its_mutant_breaks_it(
    broken_seed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU, the value `device` also fails; all other values are as on the page."""
    monkeypatch.setattr(harness, "SUITE", suite_with(tmp_path / "suite", {"test_seeds.py": EXAMPLE}))
    mutant = _argument(MUTANT) if broken_seed else ""
    finding = check("seeds", tmp_path, mutant if gpus() else PRETEND + mutant)
    names = ([] if gpus() else ["device"]) + (["equal"] if broken_seed else [])
    assert broken(finding) == names


def _argument(source: str) -> str:
    """The argument *mutant* of the call of check() in *source*."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    called = next(call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "check")
    found = ast.literal_eval(called.args[2])
    assert isinstance(found, str)
    return found
