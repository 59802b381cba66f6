"""Write the tables of docs/attacks.md: the test modules of an actor, with what their docstrings say."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from bench.markdown import table

ROOT = Path(__file__).resolve().parent.parent


def tested(names: Sequence[str]) -> str:
    """A row for each test module of *names* (without folder and `.py`): path, claim, number of tests."""
    rows = []
    for path in map(module, names):
        tree = ast.parse(path.read_bytes())
        tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        count = sum(node.name.startswith("test_") for node in tests)
        claim = (ast.get_docstring(tree) or "").partition("\n")[0].replace("|", "\\|")
        rows.append((f"`{path.relative_to(ROOT / 'tests').with_suffix('')}`", claim, str(count)))
    return table(("module", "claim", "tests"), rows)


def module(name: str) -> Path:
    """The file of the test module *name*; the process exits if there is not exactly one."""
    found = sorted((ROOT / "tests").rglob(f"{name}.py"))
    if len(found) != 1:
        raise SystemExit(f"docs/attacks.md: {len(found)} test modules have the name {name!r}")
    return found[0]
