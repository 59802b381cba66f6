"""The gate's decision: a value that only the gate can make, and a signed statement that is read again."""

from __future__ import annotations

import ast
import dataclasses
import json
from dataclasses import replace

import pytest

from tests.reports import IMAGE, LOCKED, OTHER, SUITE, report, signed_report
from torchkiln.errors import VerificationFailed
from torchkiln.gate.clearance import clearance, decision_of, prevailing
from torchkiln.gate.gate import ClearedImage, clear, judge, override
from torchkiln.matrix.policy import Policy
from torchkiln.util.places import ROOT


def test_only_the_gate_makes_a_cleared_image() -> None:
    image = clear(judge([signed_report(report())], Policy(), LOCKED, SUITE, image=IMAGE))
    fields = {field.name: getattr(image, field.name) for field in dataclasses.fields(image)}

    with pytest.raises(TypeError, match="only the gate"):
        ClearedImage(**fields, by=object())
    with pytest.raises(TypeError):
        ClearedImage(**fields)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="by"):
        replace(image, override="because")
    with pytest.raises(dataclasses.FrozenInstanceError):
        image.result = replace(image.result, image=OTHER)  # type: ignore[misc]


def makers(tree: ast.AST) -> set[str]:
    """The names in *tree* that could create a ClearedImage; imports and annotations do not count."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    names = set()
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name == "ClearedImage" and id(node) not in annotations:
            names.add("ClearedImage")
        if name == "_CLEARANCE" or (isinstance(node, ast.alias) and node.name == "_CLEARANCE"):
            names.add("_CLEARANCE")
        if isinstance(node, ast.alias) and node.name == "ClearedImage" and node.asname:
            names.add("ClearedImage")
    return names


def test_no_other_module_could_make_one() -> None:
    files = [file for file in (ROOT / "torchkiln").rglob("*.py") if file.name != "gate.py"]
    files.append(ROOT / "torchkiln" / "cli" / "gate.py")

    assert {file.name: names for file in files if (names := makers(ast.parse(file.read_text())))} == {}
    assert makers(ast.parse((ROOT / "torchkiln" / "gate" / "gate.py").read_text())) == {
        "ClearedImage",
        "_CLEARANCE",
    }


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from torchkiln.gate.gate import ClearedImage", set()),
        ("def publish(image: ClearedImage) -> list[ClearedImage]: ...", set()),
        ("ClearedImage(tag='x')", {"ClearedImage"}),
        ("gate.ClearedImage(tag='x')", {"ClearedImage"}),
        ("Made = ClearedImage", {"ClearedImage"}),
        ("object.__new__(ClearedImage)", {"ClearedImage"}),
        ("from torchkiln.gate.gate import ClearedImage as Made", {"ClearedImage"}),
        ("from torchkiln.gate.gate import _CLEARANCE", {"_CLEARANCE"}),
        ("gate._CLEARANCE", {"_CLEARANCE"}),
    ],
)
def test_a_maker_is_seen(line: str, names: set[str]) -> None:
    """Each of these lines creates a ClearedImage, so the test above must find it."""
    assert makers(ast.parse(line)) == names


CLEARED = clear(judge([signed_report(report())], Policy(), LOCKED, SUITE, image=IMAGE))
OVERRIDDEN = override(judge([], Policy(), LOCKED, SUITE, image=IMAGE), "for CPUs only")


def test_it_is_read_as_it_was_written() -> None:
    found = decision_of(clearance(CLEARED), where="x")
    assert (found.suite, found.override, found.missing) == (SUITE.digest, None, ())
    assert [(check.id, check.tier) for check in found.checks] == [
        (check.id, check.tier) for check in SUITE.checks
    ]
    assert found.gpus == ("2 × NVIDIA H200",)

    found = decision_of(clearance(OVERRIDDEN), where="x")
    assert (found.override, found.missing) == ("for CPUs only", OVERRIDDEN.result.missing)
    assert found.missing


def test_a_decision_without_override_prevails() -> None:
    """A later publication with --override does not make a cleared image an uncleared one."""
    proved = decision_of(clearance(CLEARED), where="x")
    first, second = (replace(proved, override=reason) for reason in ("first", "second"))

    assert prevailing([first, proved, second]) == proved
    assert prevailing([first, second]) == second
    assert prevailing([]) is None


@pytest.mark.parametrize("key", ["suite", "checks", "override", "missing", "reports"])
def test_an_attestation_without_a_key_or_of_another_type_is_refused(key: str) -> None:
    attestation = clearance(CLEARED)
    content = {name: value for name, value in attestation.content.items() if name != key}
    for wrong in (replace(attestation, predicate=json.dumps(content)), replace(attestation, kind="urn:x")):
        with pytest.raises(VerificationFailed, match="x: "):
            decision_of(wrong, where="x")
