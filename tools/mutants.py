#!/usr/bin/env python3
"""Change single expressions of torchkiln/, run the tests that import the changed module, and see if they
fail.

    .venv/bin/python tools/mutants.py --seed 2026 --count 60 [--start 0]

Works in a temporary git worktree of HEAD. Prints for each mutant: killed or survived, place, change, tests.
A mutant survives if a test is missing, if the expression has no effect, or if the test that would fail is not
among the nearest tests.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 420  # seconds for a test file; a mutant that hangs counts as killed
_FARTHEST = 4  # maximum number of imports from a test file to a module
_NO_TESTS = 5  # pytest's exit code if no test ran: all tests of the file are for `make proof`
_OPPOSITE = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Mutant:
    """An expression on one line, and its replacement."""

    path: Path
    line: int  # from 1
    start: int  # bytes within the line
    end: int
    text: str

    @property
    def former(self) -> str:
        """The expression in the file."""
        return self.path.read_bytes().split(b"\n")[self.line - 1][self.start : self.end].decode()

    def apply(self) -> None:
        """Change the file."""
        lines = self.path.read_bytes().split(b"\n")
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + self.text.encode() + line[self.end :]
        self.path.write_bytes(b"\n".join(lines))


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a module."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        changed, text = _changed(node, source)
        if text and changed.lineno == changed.end_lineno:
            yield Mutant(path, changed.lineno, changed.col_offset, changed.end_col_offset or 0, text)


def _changed(node: ast.AST, source: str) -> tuple[ast.expr, str]:
    """The expression to replace, and its replacement; empty if there is none."""

    def code(part: ast.AST) -> str:
        return ast.get_source_segment(source, part) or ""

    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OPPOSITE:
            return node, f"({code(left)}) {_OPPOSITE[type(operator)]} ({code(right)})"
        case ast.BoolOp(op=operator, values=values):
            other = " or " if isinstance(operator, ast.And) else " and "
            return node, "(" + other.join(f"({code(value)})" for value in values) + ")"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return node, f"({code(operand)})"
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and value > 1:
            return node, str(value + 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right):
            sign = "-" if isinstance(operator, ast.Add) else "+"
            return node, "" if isinstance(left, ast.JoinedStr) else f"({code(left)} {sign} {code(right)})"
        case ast.If(test=test):
            return test, f"not ({code(test)})"
        case _:
            return ast.Constant(None, lineno=0, col_offset=0), ""


class NearestTests:
    """Finds test files by their imports."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.modules = {path: path.read_text() for path in sorted((tree / "torchkiln").rglob("*.py"))}
        self.tests = {
            path: path.read_text()
            for folder in ("unit", "integration")
            for path in sorted((tree / "tests" / folder).glob("test_*.py"))
        }
        self.helpers = {path.stem: path.read_text() for path in sorted((tree / "tests").glob("*.py"))}

    def of(self, module: Path) -> list[str]:
        """At most 17 test files for *module*, nearest first, by the imports of tests and of their helpers."""
        found: dict[Path, None] = {}
        level, seen = [module], {module}
        for distance in range(_FARTHEST):
            patterns = [self._importing(one) for one in level]
            for pattern in patterns:
                found |= dict.fromkeys(self._matching(pattern))
            for pattern in patterns:
                names = "|".join(name for name, text in self.helpers.items() if pattern.search(text))
                if names:
                    found |= dict.fromkeys(self._matching(re.compile(rf"tests(\.| import )({names})\b")))
            if distance == 0 and module.parent.name == "model":
                found[self.tree / "tests/unit/test_codec.py"] = None  # compares the types with the schemas
            if distance == 1:
                found[self.tree / "tests/unit/test_mistakes.py"] = None
            level = [
                user
                for user, text in self.modules.items()
                if user not in seen and any(pattern.search(text) for pattern in patterns)
            ]
            seen.update(level)
        unit = [path for path in found if path.parent.name == "unit"][:14]
        integration = [path for path in found if path.parent.name == "integration"][:3]
        return [str(path.relative_to(self.tree)) for path in unit + integration]

    def _matching(self, pattern: re.Pattern[str]) -> list[Path]:
        return [path for path, text in self.tests.items() if pattern.search(text)]

    def _importing(self, module: Path) -> re.Pattern[str]:
        name = ".".join(module.relative_to(self.tree).with_suffix("").parts).removesuffix(".__init__")
        parent, _, leaf = name.rpartition(".")
        full, above = re.escape(name), re.escape(parent)
        return re.compile(rf"from {full} import|import {full}\b|from {above} import [^\n]*\b{leaf}\b")


def outcome(tree: Path, mutant: Mutant, tests: list[str]) -> tuple[str, str]:
    """killed or SURVIVED, and the test that failed.

    Each file runs in a separate process, nearest first, because in one process tests/conftest.py would run
    the
        slowest file first.
    """
    for test in tests:
        sound = mutant.path.read_bytes()
        mutant.apply()
        fault = _fault(tree, test)
        mutant.path.write_bytes(sound)
        if fault and not _fault(tree, test):  # a test that fails without the mutant, too, does not count
            return "killed", fault
    return "SURVIVED", ""


def _fault(tree: Path, test: str) -> str:
    """The first failed test of a file; empty if none failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not proof", "-n", "0", test]
    command += ["-p", "no:cacheprovider"]
    environ = {**os.environ, "PYTHONPATH": str(tree), "TORCHKILN_TEST_PACKAGES": "no"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{test}: no end within {LIMIT_S} s"
    if done.returncode in (0, _NO_TESTS):
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:110] if failed else test


def main() -> int:
    """Print a line for each mutant; returns 1 if any survived."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--count", type=int, default=60, help="size of the sample")
    parser.add_argument("--start", type=int, default=0, help="number of the first mutant")
    options = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree)], cwd=ROOT, check=True)
        try:
            (tree / ".venv").symlink_to(sys.prefix)  # for tests that start its programs
            nearest = NearestTests(tree)
            sample = [mutant for module in nearest.modules for mutant in mutants(module)]
            random.Random(options.seed).shuffle(sample)
            for number in range(options.start, min(options.count, len(sample))):
                mutant, started = sample[number], time.monotonic()
                tests = nearest.of(mutant.path)
                state, test = outcome(tree, mutant, tests)
                survived += state == "SURVIVED"
                place = f"{mutant.path.relative_to(tree)}:{mutant.line}"
                seconds = f"{len(tests)} files, {time.monotonic() - started:.0f} s"
                sys.stdout.write(
                    f"{number}  {state}  {place}  {mutant.former} → {mutant.text}  {seconds}  {test}\n"
                )
                sys.stdout.flush()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
