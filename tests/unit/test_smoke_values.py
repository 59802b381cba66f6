"""Which checks apply to an image, and the bounds of measured values."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoke_tests.applicable import RULES, not_applicable
from smoke_tests.expected import promised_link
from smoke_tests.links import bus_bandwidth, floor, slowest, used_link
from smoke_tests.measure import Measure, fault, plain
from tests.smoke_suites import SUITE
from torchkiln.matrix.facts import load
from torchkiln.smoke.verdict import is_within

# Output of NCCL 2.14 to 2.28, shortened.
NVLINK_LOG = """
host:1:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 24, type NVL/PIX, sameChannels 1
host:1:9 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 24, type NVL/PIX, sameChannels 1
host:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:1:9 [0] NCCL INFO Channel 01/0 : 0[1a000] -> 1[1b000] via P2P/IPC
"""
PCIE_LOG = NVLINK_LOG.replace("NVL/PIX", "PXB/PIX")
SHM_LOG = """
host:1:9 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1
host:1:9 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, type SYS/PIX, sameChannels 1
host:1:9 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""
NET_LOG = "host:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"


@pytest.mark.parametrize(
    ("log", "link"),
    [
        (NVLINK_LOG, "NVLink"),
        (NVLINK_LOG.replace("NVL/PIX", "NVB/PIX"), "NVLink"),
        (PCIE_LOG, "PCIe P2P"),
        (NVLINK_LOG.replace("Pattern 4", "Pattern 3"), "PCIe P2P"),
        (SHM_LOG, "SHM"),
        (NVLINK_LOG + SHM_LOG, "SHM"),
        (SHM_LOG + NET_LOG, "NET"),
        ("no NCCL here, not even via P2P/CUMEM", "none"),
    ],
)
def test_the_used_link_is_read_from_the_log_of_nccl(log: str, link: str) -> None:
    assert used_link(log) == link


def driver(*ways: str, peers: bool = True, nvlinks: int = 18) -> dict[str, Any]:
    """The output of the probe on a host with three GPUs."""
    pairs = [[0, 1], [0, 2], [1, 2]]
    return {
        "gpus": [{"nvlinks": nvlinks} for _ in range(3)],
        "peers": [pair for one, other in pairs for pair in ([one, other], [other, one])] if peers else [],
        "links": [[*pair, way] for pair, way in zip(pairs, ways, strict=False)],
    }


@pytest.mark.parametrize(
    ("host", "link"),
    [
        (driver("NVLINK", "NVLINK", "NVLINK"), "NVLink"),
        (driver("NVLINK", "PIX", "PXB"), "PCIe P2P"),
        (driver("NVLINK", "SYS", "NVLINK"), "SHM"),
        (driver("NVLINK", "NVLINK", "NVLINK", peers=False), "SHM"),
        (driver("NVLINK"), "SHM"),
    ],
)
def test_the_promised_link_is_the_slowest_that_a_ring_needs(host: dict[str, Any], link: str) -> None:
    assert promised_link(host) == link


def test_the_bound_is_that_of_the_faster_of_used_and_promised_link() -> None:
    fast, mixed = driver("NVLINK", "NVLINK", "NVLINK"), driver("NVLINK", "SYS", "NVLINK")
    assert [floor(used, fast) for used in ("NVLink", "PCIe P2P", "SHM", "NET", "none")] == [108.0] * 5
    assert [floor(used, mixed) for used in ("NVLink", "PCIe P2P", "SHM", "NET")] == [108.0, 5.0, 1.0, 1.0]
    assert slowest(["NVLink", "SHM", "PCIe P2P"]) == "SHM"


def test_the_bound_of_a_link_exceeds_the_bandwidth_of_the_next_slower_one() -> None:
    host = driver("SYS", "SYS", "SYS")
    pcie_5_0_x16, measured_through_memory, measured_over_nvlink = 63.0, 8.0, 333.0
    assert pcie_5_0_x16 < floor("NVLink", host) < measured_over_nvlink
    assert 1 < floor("SHM", host) + 0.1 < measured_through_memory
    assert floor("PCIe P2P", host) == 5.0


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """From doc/PERFORMANCE.md of nccl-tests: algbw = size / time, busbw = algbw * 2(n-1)/n."""
    assert bus_bandwidth(10**9, 1.0, 2) == pytest.approx(1.0)
    assert bus_bandwidth(10**9, 0.5, 8) == pytest.approx(2 * 14 / 8)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)
bounds = st.fixed_dictionaries(
    {}, optional={"equals": values, "at_least": st.integers(-5, 5), "at_most": st.floats(-5, 5)}
).filter(bool)


@given(value=values, bound=bounds)
def test_suite_and_torchkiln_compare_values_alike(value: object, bound: dict[str, object]) -> None:
    value, bound = plain(value), plain(bound)
    assert (fault(value, bound) == "") == is_within(value, bound)


@given(values)
def test_plain_values_are_equal_after_json(value: object) -> None:
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


def measure_of(**declared: dict[str, Any]) -> Measure:
    """A `measure` for a check with the declarations *declared*; "a" and "b" name expected values."""
    return Measure(declared, {"a": 1, "b": ["x"]}.__getitem__)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, None, "3", [3]])
def test_only_numbers_are_within_numeric_bounds(value: object) -> None:
    measure = measure_of(x={"at_least": -9, "at_most": 9})
    measure("x", value)
    assert measure.faults()


def test_every_fault_is_reported() -> None:
    measure = measure_of(
        loss={"at_most": 0.1}, free={"type": "integer"}, wheels={"equals": {"a": "2", "c": "3"}}
    )
    measure("loss", 0.9)
    measure("free", 3)
    measure("wheels", {"a": "1", "b": "2"})
    loss, wheels = measure.faults()
    assert loss == "loss: 0.9 is not at most 0.1"
    assert wheels == "wheels: c is missing (expected '3'); b is not expected (is '2'); a is '1', expected '2'"


def test_a_check_without_a_bound_is_a_fault() -> None:
    measure = measure_of(seconds={"type": "number"})
    measure("seconds", 1.0)
    assert measure.faults() == ["no value has a bound, so the check cannot fail"]


def test_a_value_that_is_not_declared_or_measured_twice_is_an_error() -> None:
    measure = measure_of(x={"equals": 1})
    measure("x", 1)
    with pytest.raises(ValueError, match="twice"):
        measure("x", 2)
    with pytest.raises(ValueError, match="y is not declared in VALUES"):
        measure("y", 2)


def test_a_declared_value_that_is_not_measured_is_a_fault() -> None:
    measure = measure_of(x={"equals": 1}, y={"type": "string"})
    measure("x", 1)
    assert measure.faults() == ["y: not measured"]
    assert measure.faults(complete=False) == []


def test_expected_values_are_bounds() -> None:
    measure = measure_of(x={"at_most": "a"}, y={"expected": "b"})
    measure("x", 1)
    measure("y", ["x"])
    assert measure.faults() == []
    assert measure.threshold == {"x": {"at_most": 1}, "y": {"equals": ["x"]}}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "integer"),
        (False, "number"),
        (1.5, "integer"),
        (1, "string"),
        (1, "boolean"),
        ([1, True], ["integer"]),
        ({"a": [1, "2"]}, {"*": ["number"]}),
        ({"a": 1}, ["number"]),
        ([1], {"*": "number"}),
        (None, "string"),
    ],
)
def test_a_value_of_another_type_is_a_fault(value: object, kind: Any) -> None:
    measure = measure_of(x={"type": kind}, y={"equals": 1})
    measure("x", value)
    measure("y", 1)
    (fault,) = measure.faults()
    assert fault.startswith("x: ")


@pytest.mark.parametrize(("value", "expected"), [(1, True), (True, 1), (0, False), ([0], [False])])
def test_a_boolean_is_not_equal_to_a_number(value: object, expected: object) -> None:
    assert fault(value, {"equals": expected})
    assert not is_within(value, {"equals": expected})


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
        ("semi-structured", cell("2.5.1"), (9, 0), "semi-structured-needs-torch-2.6"),
        ("semi-structured", cell("2.6.0"), (7, 5), "semi-structured-needs-8.0"),
        ("semi-structured", cell("2.15.0"), (8, 0), None),
        ("extension", cell(), (9, 0), "extension-is-for-devel"),
        ("extension", cell(flavor="devel"), (9, 0), None),
        ("cuda", cell(), (3, 7), None),
    ],
)
def test_which_checks_apply(
    check: str, facts: dict[str, Any], capability: tuple[int, int] | None, reason: str | None
) -> None:
    assert not_applicable(check, facts, capability) == reason


def test_each_reason_is_a_documented_fact() -> None:
    """Each reason has a sentence and a source, and each sentence belongs to a rule."""
    reasons = {reason for rules in RULES.values() for reason, _ in rules}

    assert reasons <= FACTS.reasons().keys()
    assert FACTS.checks.keys() <= reasons
    for reason in reasons:
        assert FACTS.citations[f"{'checks' if reason in FACTS.checks else 'traps'}.{reason}"]


@pytest.mark.parametrize("file", sorted(SUITE.glob("test_*.py")), ids=lambda file: file.name)
def test_checks_only_measure_and_their_bounds_are_in_values(file: Path) -> None:
    """Each measured name is declared in VALUES, and no call of `measure` has a bound."""
    tree = ast.parse(file.read_text("utf-8"))
    (values,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VALUES"
    )
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "measure"
    ]
    assert [ast.unparse(call) for call in calls if len(call.args) != 2 or call.keywords] == []
    names = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    assert names <= {name for rules in values.values() for name in rules}
