"""What a check can ask for: `facts` (told from outside), `measure`; and the result it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smoke_tests.measure import Measure

MEASURE = pytest.StashKey[Measure]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two files that runner.py hands over."""
    parser.addoption("--kiln-facts", help="JSON: what the lock and the manifest say of this image")
    parser.addoption("--kiln-result", help="where the check's outcome and values are written")


@pytest.fixture(scope="session")
def facts(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the outside says of this image: the lock and the manifest, never the image itself."""
    given = request.config.getoption("--kiln-facts")
    assert given, "this check compares with the lock: give --kiln-facts FILE (torchkiln smoke does)"
    return json.loads(Path(given).read_bytes())


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Records raw values and their bounds; they are judged together when the check ends."""
    return request.node.stash.setdefault(MEASURE, Measure())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """After the check's own asserts: every value against its bound, all faults at once."""
    yield
    faults = item.stash.get(MEASURE, Measure()).faults()
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write the result after each phase: the last word stands, the first failure stays."""
    report = yield
    path = item.config.getoption("--kiln-result")
    if path:
        before = json.loads(Path(path).read_text()) if Path(path).exists() else {}
        Path(path).write_text(json.dumps(_result(item, call, report, before)))
    return report


def _result(item: pytest.Item, call: Any, report: Any, before: dict[str, Any]) -> dict[str, Any]:
    seen = item.stash.get(MEASURE, Measure())
    result = {
        "outcome": before.get("outcome", "passed"),
        "message": before.get("message", ""),
        "measured": seen.measured,
        "threshold": seen.threshold,
        "ran": before.get("ran", False) or call.when == "call",
    }
    if result["outcome"] == "passed" and (report.skipped or hasattr(report, "wasxfail")):
        reason = getattr(report, "wasxfail", "") or str(call.excinfo.value if call.excinfo else "")
        result |= {"outcome": "failed", "message": f"the check skipped itself, which no check may: {reason}"}
    elif result["outcome"] == "passed" and report.failed:
        result |= {"outcome": "failed", "message": _message(call, report)}
    return result


def _message(call: Any, report: Any) -> str:
    """What broke, and for what was not asserted by the suite the place too."""
    error = call.excinfo
    if error is None:
        return str(report.longrepr)
    text = str(error.value).strip()
    if isinstance(error.value, (AssertionError, pytest.fail.Exception)):
        return text
    return f"{error.typename}: {text}\n(at {error.traceback[-1].path.name}:{error.traceback[-1].lineno + 1})"
