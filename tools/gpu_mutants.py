#!/usr/bin/env python3
"""JUnit files of `make gpu-mutants` → docs/proofs/NAME.mutants.json: what came of each test, and where.

    .venv/bin/python tools/gpu_mutants.py docs/proofs/NAME.mutants.json dist/gpu-mutants*.xml

Files that tell differently of one test are refused: which of the two would count?
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.rows_json import rows_json  # noqa: E402
from torchkiln.util.files import write_atomic  # noqa: E402

OUTCOMES = ("passed", "failed", "skipped")


def record(files: Iterable[bytes]) -> dict[str, Any]:
    """The record of these JUnit *files*: GPUs, torch, the earliest time, and each module's outcomes by test.

    :raises ValueError: a test ended in two ways, or no file tells of GPUs.
    """
    suites = [suite for data in files for suite in Xml.fromstring(data).iter("testsuite")]
    told = {one.get("name"): one.get("value") for suite in suites for one in suite.iter("property")}
    if "gpus" not in told:
        raise ValueError("no file tells which GPUs these were: test_host_gpu.py did not run on one")
    modules: dict[str, dict[str, str]] = {}
    for module, test, outcome in (case for suite in suites for case in _cases(suite)):
        tests = modules.setdefault(module, {})
        if tests.setdefault(test, outcome) != outcome:
            raise ValueError(f"{module}.py: {test} {tests[test]} and {outcome}")
    return {
        "schema": 1,
        "gpus": told["gpus"],
        "torch": told["torch"],
        "when": min(suite.get("timestamp", "") for suite in suites)[:19] + "Z",
        "tests": {module: dict(sorted(tests.items())) for module, tests in sorted(modules.items())},
    }


def _cases(suite: Xml.Element) -> Iterator[tuple[str, str, str]]:
    for case in suite.iter("testcase"):
        if not case.get("classname"):
            continue  # a worker that was interrupted before its test began
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        yield case.get("classname", "").rpartition(".")[2], case.get("name", ""), outcome


def main() -> int:
    """Write the record; 2 if the files give none."""
    if len(sys.argv) < 3:
        sys.stderr.write(f"usage: {sys.argv[0]} RECORD.mutants.json JUNIT.xml...\n")
        return 2
    try:
        made = record(Path(name).read_bytes() for name in sys.argv[2:])
    except (OSError, ValueError, Xml.ParseError) as error:
        sys.stderr.write(f"{sys.argv[0]}: {error}\n")
        return 2
    write_atomic(Path(sys.argv[1]), rows_json(made, 3))
    return 0


if __name__ == "__main__":
    sys.exit(main())
