"""Compare the values of a report with the declarations of the suite.

A report is not trusted. Its bounds must equal those that the suite declares, computed again from the lock and
the report's description of the host. Each declared value must be present, within its bounds, and have the
declared type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from torchkiln.errors import printable
from torchkiln.model.report import Finding
from torchkiln.smoke.suite import Suite, SuiteCheck
from torchkiln.util.strict_json import equal, is_number

_NUMERIC = ("at_least", "at_most")
_SHOWN = 80  # maximum characters of a value in a message


def declared_faults(
    check: SuiteCheck, finding: Finding, suite: Suite, facts: Mapping[str, Any], host: Mapping[str, Any]
) -> Iterator[str]:
    """How the values of *finding*, which was reported as passed, differ from the declarations of *check*.

    There are none if *check* has no declarations: a check of another suite, known only from a clearance.

    :param facts: the facts of the image, from `expected.facts_of`.
    :param host: the description of the host in the report.
    """
    if check.values is None:
        return
    measured, threshold = json.loads(finding.measured), json.loads(finding.threshold)
    for name in sorted(measured.keys() - check.values.keys()):
        yield f"{printable(name[:_SHOWN])} is not a value of this check"
    for name in sorted(threshold.keys() - measured.keys()):
        yield f"{printable(name[:_SHOWN])} has a bound, but no value"
    for name, rule in check.values.items():
        if name not in measured:
            yield f"{name} is missing"
            continue
        try:
            bound = _bound(rule, lambda expected: suite.expected(expected, facts, host))
        except Exception as error:  # the suite's code can raise anything if the report's host is forged
            yield f"{name}: its bound cannot be computed from the report's host: {_short(str(error))}"
            continue
        if not equal(threshold.get(name, {}), bound):
            yield f"{name} has the bound {_short(threshold.get(name, {}))}; the suite's is {_short(bound)}"
        elif fault := _fault(measured[name], bound, rule):
            yield f"{name} is {_short(measured[name])}: {fault}"


def _bound(rule: Mapping[str, Any], expected: Any) -> dict[str, Any]:
    bound = {
        key: expected(rule[key]) if isinstance(rule[key], str) else rule[key]
        for key in _NUMERIC
        if key in rule
    }
    if "expected" in rule:
        bound["equals"] = expected(rule["expected"])
    elif "equals" in rule:
        bound["equals"] = rule["equals"]
    return bound


def _fault(value: Any, bound: Mapping[str, Any], rule: Mapping[str, Any]) -> str:
    """Why *value* does not satisfy *bound* and the type of *rule*; empty if it does."""
    if "equals" in bound and not equal(value, bound["equals"]):
        return f"must be {_short(bound['equals'])}"
    for key, holds in (("at_least", float.__ge__), ("at_most", float.__le__)):
        if key in bound and not (is_number(value) and holds(float(value), float(bound[key]))):
            return f"must be {key.replace('_', ' ')} {bound[key]}"
    kind = rule.get("type", "any" if "equals" in bound else "number")
    return "" if _is_of(value, kind) else f"must be of type {json.dumps(kind)}"


def _is_of(value: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return isinstance(value, list) and all(_is_of(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_is_of(item, kind["*"]) for item in value.values())
    if kind == "number":
        return is_number(value)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return kind == "any" or isinstance(value, {"boolean": bool, "string": str}[kind])


def _short(value: Any) -> str:
    text = json.dumps(value)
    return printable(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")
