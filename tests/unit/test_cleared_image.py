"""A cleared image is a permission: nobody but the gate can write one out."""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import replace

import pytest

from tests.reports import IMAGE, LOCKED, OTHER, SUITE, report, signed_report
from torchkiln.gate.gate import ClearedImage, clear, judge
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
    """What in *tree* could make a ClearedImage or hold the key to it: all but imports and annotations."""
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    told = set()
    for node in ast.walk(tree):
        name = getattr(node, "id", None) or getattr(node, "attr", None)
        if name == "ClearedImage" and id(node) not in annotations:
            told.add("ClearedImage")
        if name == "_CLEARANCE" or (isinstance(node, ast.alias) and node.name == "_CLEARANCE"):
            told.add("_CLEARANCE")
        if isinstance(node, ast.alias) and node.name == "ClearedImage" and node.asname:
            told.add("ClearedImage")
    return told


def test_no_other_module_could_make_one() -> None:
    files = [file for file in (ROOT / "torchkiln").rglob("*.py") if file.name != "gate.py"]
    files.append(ROOT / "torchkiln" / "cli" / "gate.py")

    assert {file.name: told for file in files if (told := makers(ast.parse(file.read_text())))} == {}
    assert makers(ast.parse((ROOT / "torchkiln" / "gate" / "gate.py").read_text())) == {
        "ClearedImage",
        "_CLEARANCE",
    }


@pytest.mark.parametrize(
    ("line", "told"),
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
def test_a_maker_is_seen(line: str, told: set[str]) -> None:
    """What the test above would tell."""
    assert makers(ast.parse(line)) == told
