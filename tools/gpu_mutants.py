#!/usr/bin/env python3
"""Write docs/proofs/NAME.mutants.json, the outcomes of all tests, from the JUnit files of `make gpu-mutants`.

    .venv/bin/python tools/gpu_mutants.py docs/proofs/NAME.mutants.json dist/gpu-mutants*.xml

Two files with different outcomes of the same test are an error.
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
    """The record of the JUnit *files*: GPUs, torch, the earliest time, and the outcomes by module and test.

    :raises ValueError: a test has two outcomes, or no file names the GPUs.
    """
    suites = [suite for data in files for suite in Xml.fromstring(data).iter("testsuite")]
    properties = {item.get("name"): item.get("value") for suite in suites for item in suite.iter("property")}
    if "gpus" not in properties:
        raise ValueError("no file names the GPUs: test_host_gpu.py did not run on a GPU")
    modules: dict[str, dict[str, str]] = {}
    for module, test, outcome in (case for suite in suites for case in _cases(suite)):
        tests = modules.setdefault(module, {})
        if tests.setdefault(test, outcome) != outcome:
            raise ValueError(f"{module}.py: {test}: conflicting outcomes: {tests[test]} and {outcome}")
    return {
        "schema": 1,
        "gpus": properties["gpus"],
        "torch": properties["torch"],
        "when": min(suite.get("timestamp", "") for suite in suites)[:19] + "Z",
        "tests": {module: dict(sorted(tests.items())) for module, tests in sorted(modules.items())},
    }


def _cases(suite: Xml.Element) -> Iterator[tuple[str, str, str]]:
    for case in suite.iter("testcase"):
        if not case.get("classname"):
            continue  # a worker that was interrupted before its test started
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        yield case.get("classname", "").rpartition(".")[2], case.get("name", ""), outcome


def main() -> int:
    """Write the record; returns 2 if the files are invalid."""
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
