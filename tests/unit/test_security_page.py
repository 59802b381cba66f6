"""SECURITY.md names a test for each attack, and the test is there."""

from __future__ import annotations

import ast
import re
from functools import cache

from torchkiln.util.places import ROOT

NAMED = re.compile(r"`(tests/\S+?\.py)::(\w+)(\[.*?\])?`")
ROWS = [
    line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ") and "::" in line
]


@cache
def functions(file: str) -> frozenset[str]:
    """The tests in *file*."""
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_each_attack_has_a_test() -> None:
    assert len(ROWS) > 200
    assert [row for row in ROWS if not NAMED.search(row)] == []


def test_each_test_that_is_named_is_there() -> None:
    named = {(found[1], found[2]) for row in ROWS for found in NAMED.finditer(row)}
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not (ROOT / file).is_file() or name not in functions(file)
    ]
    assert missing == []
