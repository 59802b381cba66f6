"""SECURITY.md names a test for each attack, and the test exists."""

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
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_each_attack_has_a_test() -> None:
    assert len(ROWS) > 200
    assert [row for row in ROWS if not NAMED.search(row)] == []


def test_each_named_test_exists() -> None:
    named = {(found[1], found[2]) for row in ROWS for found in NAMED.finditer(row)}
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not (ROOT / file).is_file() or name not in functions(file)
    ]
    assert missing == []


ACTORS = (
    "hostile index or wheel",
    "hostile registry",
    "hostile image or layout",
    "hostile matrix or lock in a pull request",
    "hostile project folder",
    "hostile git repository",
    "hostile cache on a shared machine",
    "report forger",
    "key thief",
    "malicious mirror of the distribution",
    "user in the container",
    "network in the middle",
)


def threats() -> list[list[str]]:
    """The rows of the threat model: actor, attack, result, and a test or a reason."""
    section = (ROOT / "SECURITY.md").read_text().split("## Threat model\n")[1].split("\n## ")[0]
    rows = []
    for part in section.split("\n### ")[1:]:
        actor, *lines = part.splitlines()
        table = [line for line in lines if line.startswith("| ")][2:]
        rows += [[actor.lower(), *(cell.strip() for cell in line.strip("|").split(" | "))] for line in table]
    return rows


def test_each_attack_of_the_threat_model_has_a_test_or_is_not_defended() -> None:
    """Each row names either a test, or the reason why there is no defence."""
    assert [
        row
        for row in threats()
        if len(row) != 4 or (row[2] == "**not defended**") == bool(NAMED.search(row[3])) or not row[3]
    ] == []


def test_each_actor_has_defended_and_undefended_attacks() -> None:
    actors = {row[0] for row in threats()}
    open_ends = {row[0] for row in threats() if row[2] == "**not defended**"}
    assert (actors, open_ends) == (set(ACTORS), set(ACTORS))
