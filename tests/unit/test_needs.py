"""A test that does not run says why, and what is expected to fail must fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.needs import give_up, tool
from torchkiln.util.places import ROOT

WANTED = {"skipif": {"reason"}, "importorskip": {"reason"}, "xfail": {"reason", "strict"}}


def unexplained(source: str) -> Iterator[int]:
    """The lines of *source* that leave a test out without a reason, or let it fail and pass alike."""
    nodes = list(ast.walk(ast.parse(source)))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    for call in calls:
        given, kind = {keyword.arg for keyword in call.keywords}, call.func.attr
        if WANTED.get(kind, set()) - given or (kind == "skip" and not call.args and "reason" not in given):
            yield call.lineno
    called = {id(call.func) for call in calls}
    for node in nodes:
        bare = isinstance(node, ast.Attribute) and node.attr in ("skip", "xfail") and id(node) not in called
        if bare and isinstance(
            node.value, ast.Attribute
        ):  # `pytest.mark.skip`; `pytest.skip` waits for a call
            yield node.lineno


def test_what_is_left_out_says_why() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for line in unexplained(file.read_text("utf-8"))
    ]

    assert found == []


def test_nothing_is_left_out_for_want_of_an_engine_where_one_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHKILN_NEEDS_ENGINE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no dockerd"):
        give_up("no dockerd")
    monkeypatch.setenv("TORCHKILN_NEEDS_ENGINE", "1")
    with pytest.raises(pytest.fail.Exception, match="no dockerd"):
        give_up("no dockerd")


def test_a_program_that_is_not_here_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.skip.Exception, match="apt-get install skopeo"):
        tool("skopeo")
