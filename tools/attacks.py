"""Bring the rows of docs/attacks.md up to date: a test module of an attacker, its claim, number of tests.

The rows name the modules: to list another module, add a row with its name.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_ROW = re.compile(r"^\| `(?P<module>\w+/test_\w+)` \|.*\n", re.MULTILINE)


def filled(text: str) -> str:
    """*text* with what the modules say and contain today in each row."""
    return _ROW.sub(lambda row: tested(row["module"]), text)


def tested(module: str) -> str:
    """The row of the test module *module* (`unit/test_x`); the process exits if there is none."""
    path = ROOT / "tests" / f"{module}.py"
    if not path.is_file():
        raise SystemExit(f"docs/attacks.md: there is no test module tests/{module}.py")
    tree = ast.parse(path.read_bytes())
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    count = sum(node.name.startswith("test_") for node in tests)
    claim = (ast.get_docstring(tree) or "").partition("\n")[0].replace("|", "\\|")
    return f"| `{module}` | {claim} | {count} |\n"
