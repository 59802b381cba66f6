"""Fixtures of the checks: `facts` and `claims` (passed from outside), and `measure`. Writes each check's
result.

runner.py runs each check in a separate process, and decides whether it runs. Under plain pytest, this file
decides with the same functions, and skips the others.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if "smoke_tests" not in sys.modules:  # plain pytest before 8.3 has not loaded the suite by path yet
    runpy.run_path(str(Path(__file__).with_name("one.py")))["load_suite"](Path(__file__).parent)

from smoke_tests.applicable import not_applicable
from smoke_tests.catalogue import Check, catalogue, missing
from smoke_tests.environment import NoTorchError, environment_facts
from smoke_tests.expected import expected
from smoke_tests.gpus import capability
from smoke_tests.host import fault, host_facts
from smoke_tests.measure import Measure

HERE = Path(__file__).resolve().parent
if not sys.dont_write_bytecode:  # a run writes no file into the suite's folder, not even bytecode
    sys.dont_write_bytecode = True
    shutil.rmtree(HERE / "__pycache__", ignore_errors=True)

# The lines that pytest adds to the message of a failed assert.
_EXPLAINED = re.compile(r"\nassert .*(\n .*)*\Z")
MEASURE = pytest.StashKey[Measure]()
FACTS = pytest.StashKey[dict[str, Any]]()
HOST = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options for the two files that runner.py passes, and those for plain pytest instead."""
    parser.addoption("--kiln-facts", help="JSON: what the lock and the manifest say of this image")
    parser.addoption("--kiln-result", help="where the check's outcome and values are written")
    parser.addoption("--bench", action="store_true", help="plain pytest: run tier 3, the benchmark, too")


def pytest_configure(config: pytest.Config) -> None:
    """Register the suite's marks, because pytest may use the configuration of another project."""
    config.addinivalue_line("markers", "tier(n): 0 needs no GPU, 1 one GPU, 2 two or more, 3 the benchmark")
    config.addinivalue_line("markers", "limit(seconds): how long runner.py gives the check (default 300)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under plain pytest, skip checks that do not apply, or that this host cannot run, with the reason.

    :raises pytest.UsageError: torch cannot be imported, or the suite is incomplete.
    """
    ours = [item for item in items if item.path.parent == HERE]
    if not ours or _option(config, "--kiln-result"):
        return
    if sentence := missing(HERE):
        raise pytest.UsageError(sentence)
    try:
        facts, host = _facts(config), _host(config)
    except NoTorchError as error:
        raise pytest.UsageError(str(error)) from None
    checks = {check.function: check for check in catalogue(HERE)}
    for item in ours:
        if reason := _reason(checks[item.originalname], config, facts, host):
            item.add_marker(pytest.mark.skip(reason=reason))


def _reason(check: Check, config: pytest.Config, facts: dict[str, Any], host: dict[str, Any]) -> str | None:
    if check.of_image and not _option(config, "--kiln-facts"):
        return "compares an image with its lock: run it with torchkiln smoke"
    if check.tier == 3 and not _option(config, "--bench"):
        return "a benchmark: add --bench to run it"
    if fact := not_applicable(check.id, facts, capability(host)):
        return f"not applicable: {fact}"
    return fault(check.id, check.tier, host, facts)


def _facts(config: pytest.Config) -> dict[str, Any]:
    given = _option(config, "--kiln-facts")
    if FACTS not in config.stash:
        config.stash[FACTS] = json.loads(Path(given).read_bytes()) if given else environment_facts()
    return config.stash[FACTS]


def _host(config: pytest.Config) -> dict[str, Any]:
    """The description of this host: that of the runner, which is in the report, or else a new one."""
    if HOST not in config.stash:
        config.stash[HOST] = _facts(config).get("host") or host_facts()
    return config.stash[HOST]


def _option(config: pytest.Config, name: str) -> Any:
    """The option's value; None if pytest loaded this file too late to know it (`pytest` without a path)."""
    return config.getoption(name, None)


@pytest.fixture(scope="session")
def facts(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The facts from the lock and the manifest, never from the image itself. Checks that use it are skipped
    if there is no image."""
    return _facts(request.config)


@pytest.fixture(scope="session")
def claims(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The expected versions of the software, from the lock or, without an image, from the distributions."""
    return _facts(request.config)["claims"]


@pytest.fixture(scope="session")
def wheels(request: pytest.FixtureRequest) -> dict[str, str]:
    """The versions of the locked distributions or, without an image, of those in the environment, by name."""
    return {wheel["name"]: wheel["version"] for wheel in _facts(request.config)["wheels"]}


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Record measured values; when the check ends, all are compared with the test module's VALUES."""
    return _measure(request.node)


def _measure(item: pytest.Item) -> Measure:
    """The measured values of a check."""
    if MEASURE not in item.stash:
        config, name = item.config, getattr(item, "originalname", item.name)
        check = next(check for check in catalogue(item.path.parent) if check.function == name)
        item.stash[MEASURE] = Measure(
            check.values, lambda value: expected(value, _facts(config), _host(config))
        )
    return item.stash[MEASURE]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """After the check's own asserts, compare every value with its declaration, and report all faults."""
    yield
    if faults := _measure(item).faults():
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write the result after each phase; a later phase does not replace the first failure."""
    report = yield
    path = _option(item.config, "--kiln-result")
    if path:
        before = json.loads(Path(path).read_text()) if Path(path).exists() else {}
        Path(path).write_text(json.dumps(_result(item, call, report, before)))
    return report


def _result(item: pytest.Item, call: Any, report: Any, before: dict[str, Any]) -> dict[str, Any]:
    values = _measure(item)
    # A check passes only when it has ended: until then its process can die.
    result = {"outcome": "failed", "message": "", "ran": False} | before
    if not result["message"] and (report.skipped or hasattr(report, "wasxfail")):
        reason = getattr(report, "wasxfail", "") or str(call.excinfo.value if call.excinfo else "")
        result["message"] = f"the check skipped itself, which is not allowed: {reason}"
    elif not result["message"] and report.failed:
        result["message"] = _message(call, report) or "failed without a message"
    result["ran"] = result["ran"] or call.when == "call"
    result["outcome"] = "passed" if result["ran"] and not result["message"] else "failed"
    return result | {"measured": values.measured, "threshold": values.threshold}


def _message(call: Any, report: Any) -> str:
    """The error message, with its location if the error is not an assert of the suite."""
    error = call.excinfo
    if error is None:
        return str(report.longrepr)
    text = _EXPLAINED.sub("", str(error.value).strip())
    if isinstance(error.value, (AssertionError, pytest.fail.Exception)):
        return text
    last = error.traceback[-1]
    return f"{error.typename}: {text}\n(at {Path(str(last.path)).name}:{last.lineno + 1})"
