"""Which check does not apply where, and that each reason is a fact with words and sources."""

from __future__ import annotations

from typing import Any

import pytest

from smoke_tests.applicable import RULES, not_applicable
from torchkiln.matrix.facts import load

FACTS = load()


def cell(torch: str = "2.7.1", python: str = "3.11.2", flavor: str = "runtime") -> dict[str, Any]:
    return {"claims": {"torch": torch, "python": python, "flavor": flavor}}


@pytest.mark.parametrize(
    ("check", "facts", "capability", "reason"),
    [
        ("compile-cpu", cell("2.0.1"), None, "no-compile-on-3.11"),
        ("compile-cpu", cell("2.0.1", "3.10.12"), None, None),
        ("compile-cpu", cell("2.1.2"), None, None),
        ("compile-cpu", cell("2.3.1", "3.12.3"), None, "no-compile-on-3.12"),
        ("compile-cpu", cell("2.4.0", "3.12.3"), None, None),
        ("compile-gpu", cell("2.5.1", "3.13.0"), (9, 0), "no-compile-on-3.13"),
        ("compile-gpu", cell("2.6.0", "3.13.0"), (9, 0), None),
        ("compile-gpu", cell(), (6, 1), "triton-needs-7.0"),
        ("compile-gpu", cell(), (7, 0), None),
        ("bf16", cell(), (7, 5), "bf16-needs-8.0"),
        ("bf16", cell(), (8, 0), None),
        ("bf16", cell(), None, None),
        ("sdpa", cell(), (7, 5), "flash-needs-8.0"),
        ("sdpa", cell(), (8, 6), None),
        ("benchmark", cell(), (7, 0), "tf32-needs-8.0"),
        ("benchmark", cell(), (8, 0), None),
        ("fp8", cell("2.0.1"), (9, 0), "fp8-needs-torch-2.1"),
        ("fp8", cell(), (8, 6), "fp8-needs-8.9"),
        ("fp8", cell(), (8, 9), None),
        ("fp8", cell("2.2.2"), (8, 9), "fp8-needs-9.0-before-2.3"),
        ("fp8", cell("2.3.0+cu121"), (8, 9), None),
        ("fp8", cell("2.2.2"), (9, 0), None),
        ("extension", cell(), (9, 0), "extension-is-for-devel"),
        ("extension", cell(flavor="devel"), (9, 0), None),
        ("cuda", cell(), (3, 7), None),
    ],
)
def test_what_applies(
    check: str, facts: dict[str, Any], capability: tuple[int, int] | None, reason: str | None
) -> None:
    assert not_applicable(check, facts, capability) == reason


def test_each_reason_is_a_fact() -> None:
    """No reason without words and a source, and no words that no rule gives."""
    reasons = {reason for rules in RULES.values() for reason, _ in rules}

    assert reasons <= FACTS.reasons().keys()
    assert FACTS.checks.keys() <= reasons
    for reason in reasons:
        assert FACTS.citations[f"{'checks' if reason in FACTS.checks else 'traps'}.{reason}"]
