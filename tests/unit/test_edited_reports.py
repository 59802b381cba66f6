"""The gate refuses a report in which any value that supports its verdict was changed, even if it is signed.

ADR 35 names the fields that an edit may change: they are recorded for readers, or are numbers within bounds.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from smoke_tests.expected import expected
from tests.needs import nightly
from tests.reports import IMAGE, LOCKED, TAG, gpu, host, report
from torchkiln.errors import ConfigError, GateRefused
from torchkiln.gate import gate
from torchkiln.gate.gate import clear, judge
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.policy import Policy
from torchkiln.model.digest import Digest
from torchkiln.model.report import SignedReport
from torchkiln.plan.plan import plan
from torchkiln.smoke.expected import facts_of
from torchkiln.smoke.report import document, from_document
from torchkiln.smoke.suite import load_suite
from torchkiln.smoke.verdict import verdict

SUITE = load_suite()
DIGEST = lock_digest(LOCKED)
FACTS = facts_of(LOCKED, {}, tag=TAG, lock_digest=DIGEST, manifest=IMAGE)
HOST = host(gpu(), gpu())
AT = datetime(2026, 11, 22, tzinfo=timezone.utc)
POLICY = Policy(tiers=(0, 1, 2, 3), checks=(), report_age=30, signed=True)
Path = tuple[str | int, ...]
# Recorded for readers; the gate computes nothing from them.
INFORMATION = {"tool", "runtime", "nonce", "schema"}
INFORMATION_OF_HOST = {"kernel", "cores", "memory", "shm", "uid", "nvidia_smi", "torch_config", "suite"}
INFORMATION_OF_GPU = {"processors", "memory", "free", "nvlinks"}


def sample(kind: Any) -> Any:
    """A value of *kind*."""
    if isinstance(kind, list):
        return [sample(kind[0])]
    if isinstance(kind, dict):
        return {"a": sample(kind["*"])}
    return {"any": None, "boolean": True, "integer": 3, "number": 0.5, "string": "text"}[kind]


def value_and_bound(rule: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A value that satisfies *rule*, and the bound that belongs to it."""
    if "equals" in rule or "expected" in rule:
        value = rule["equals"] if "equals" in rule else expected(rule["expected"], FACTS, HOST)
        return value, {"equals": value}
    bound = {
        key: expected(rule[key], FACTS, HOST) if isinstance(rule[key], str) else rule[key]
        for key in ("at_least", "at_most")
        if key in rule
    }
    if not bound:
        return sample(rule["type"]), {}
    return bound.get("at_most", bound.get("at_least")), bound


def finding(check: Any) -> dict[str, Any]:
    """A finding of *check* with the outcome "passed" or "not applicable"."""
    fact = SUITE.not_applicable(check.id, FACTS, (9, 0))
    pairs = {} if fact else {name: value_and_bound(rule) for name, rule in check.values.items()}
    return {
        "id": check.id,
        "tier": check.tier,
        "outcome": "not-applicable" if fact else "passed",
        "seconds": 1.5,
        "message": fact or "",
        "measured": {name: value for name, (value, _) in pairs.items()},
        "threshold": {name: bound for name, (_, bound) in pairs.items() if bound},
    }


def complete() -> dict[str, Any]:
    """A report in which every check of the suite passed on two H200 GPUs."""
    base = replace(report(), suite=SUITE.digest, findings=(), verdict="pass", host=json.dumps(HOST))
    return json.loads(json.dumps(document(base) | {"checks": [finding(check) for check in SUITE.checks]}))


REPORT = complete()


def is_cleared(content: Any, policy: Policy = POLICY) -> bool:
    """Whether the gate clears the image with this report, signed by a trusted key."""
    try:
        edited_report = from_document(content, where="report.json")
        signed = SignedReport(name="report.json", report=edited_report, signed=True, signers=("key",))
        clear(judge([signed], policy, LOCKED, SUITE, image=IMAGE, at=AT))
    except (ConfigError, GateRefused):
        return False
    return True


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """The paths of all values in *value*, and of *value* itself."""
    yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*above, key))


PATHS = [path for path in paths(REPORT) if path]


def rule_of(path: Path) -> Mapping[str, Any]:
    """The suite's rule for the measured value or bound that *path* belongs to."""
    check = next(check for check in SUITE.checks if check.id == REPORT["checks"][path[1]]["id"])
    rule: Mapping[str, Any] = check.values[str(path[3])]
    return rule


def kind_of(path: Path) -> object:
    """A key that is equal for paths that the same code judges: equal forms of rules, or equal outcomes."""
    match path:
        case ("checks", int(), "measured" | "threshold" as part, str(), *inner):
            form = sorted(
                (key, value if key in ("type", "expected") else type(value).__name__)
                for key, value in rule_of(path).items()
            )
            return part, str(form), len(inner)
        case ("checks", int(at), *field):
            return REPORT["checks"][at]["outcome"], tuple(field)
    return path


# `make test` edits only the first path of each kind: the same code judges all. NIGHTLY=yes edits all.
PLACES = pytest.mark.parametrize(
    "places",
    [
        pytest.param([*{kind_of(path): path for path in reversed(PATHS)}.values()], id="one of each kind"),
        pytest.param(PATHS, id="all", marks=[pytest.mark.proof, nightly]),
    ],
)
GONE = object()
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "passed", "pass", "cuda", "x", "2026-11-21T17:05:17Z", "2026-11-29T00:00:00Z", TAG]
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["x", "equals", "at_most", "device"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module", autouse=True)
def _the_lock_is_planned_once() -> Iterator[None]:
    """Without this fixture, the gate would plan the same lock's image again for each report."""
    planned = plan(LOCKED, (), aliases=(), lock_digest=DIGEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "lock_digest", lambda _: DIGEST)
        patch.setattr(gate, "plan", lambda *_, **__: planned)
        yield


def edited(path: Path, value: Any) -> Any:
    """REPORT with *value* at *path*; without *path* if *value* is GONE. It shares all other values."""
    content = copy.copy(REPORT)
    inner: Any = content
    for key in path[:-1]:
        inner[key] = copy.copy(inner[key])
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return content


def may_change(path: Path, content: Any) -> bool:
    """Whether an edit at *path* leaves every value as it is that the verdict depends on (ADR 35)."""
    match path:
        case (name,) if name in INFORMATION:
            return True
        case ("when",):
            then = datetime.strptime(content["when"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
            return -1 <= (AT - then).total_seconds() / 86400 <= 30
        case ("host", name, *_) if name in INFORMATION_OF_HOST:
            return True
        case ("host", "driver", "driver" | "cuda" | "init" | "fault" | "libcuda", *_):
            return True
        case ("host", "driver", "gpus", _, name, *_) if name in INFORMATION_OF_GPU:
            return True
        case ("checks", _, "seconds" | "message"):
            return REPORT["checks"][path[1]]["outcome"] == "passed" or path[2] == "seconds"
        case ("checks", int(at), "measured", str(name), *_):
            rule = rule_of(path)
            value = content["checks"][at]["measured"].get(name)
            bound = REPORT["checks"][at]["threshold"].get(name)
            if bound is None:
                return True
            return (
                not isinstance(value, bool)
                and "equals" not in rule
                and "expected" not in rule
                and (bound.get("at_least", value) <= value <= bound.get("at_most", value))
            )
    return False


def test_the_complete_report_is_cleared() -> None:
    assert verdict(from_document(REPORT, where="report.json").findings) == "pass"
    assert is_cleared(REPORT)


@PLACES
def test_a_report_without_any_of_its_values_is_refused(places: list[Path]) -> None:
    removed = [(path, edited(path, GONE)) for path in places]
    assert [path for path, content in removed if is_cleared(content) and not may_change(path, content)] == []


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(PATHS), value=values)
def test_an_edit_of_any_value_is_refused_or_changes_no_grounds(path: Path, value: Any) -> None:
    content = edited(path, value)
    assume(json.dumps(content) != json.dumps(REPORT))
    assert not is_cleared(content) or may_change(path, content)


@PLACES
@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_instead_of_a_number_is_refused(places: list[Path], value: bool) -> None:
    for path in places:
        match path:
            case ("checks", int(at), "measured" | "threshold", str(name), *_) if REPORT["checks"][at][
                "threshold"
            ].get(name):
                inner: Any = REPORT
                for key in path:
                    inner = inner[key]
                if isinstance(inner, (int, float)) and not isinstance(inner, bool):
                    assert not is_cleared(edited(path, value)), path


def test_a_report_whose_values_are_all_the_same_is_refused() -> None:
    """An earlier gate cleared a report with `{"x": 1}` as every value, and an equal bound for each."""
    content = copy.deepcopy(REPORT)
    for check in content["checks"]:
        if check["outcome"] == "passed":
            check["measured"], check["threshold"] = {"x": 1}, {"x": {"equals": 1}}
    assert not is_cleared(content)


def test_more_gpus_than_the_values_show_are_refused() -> None:
    content = copy.deepcopy(REPORT)
    content["host"] = json.loads(json.dumps(host(gpu(), gpu(), gpu())))
    assert not is_cleared(content)


def test_a_report_of_another_suite_that_the_policy_accepts_must_have_the_values_of_this_one() -> None:
    other = Digest("sha256:" + "1d" * 32)
    accepting = replace(POLICY, suites=(other,))
    content = edited(("suite",), other)
    assert not is_cleared(content)
    assert is_cleared(content, accepting)

    for check in content["checks"]:
        if check["outcome"] == "passed":
            check["measured"], check["threshold"] = {"x": 1}, {"x": {"equals": 1}}
    assert not is_cleared(content, accepting)
