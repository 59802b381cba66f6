"""Which check applies where, and the bounds of what checks measure."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoke_tests.applicable import RULES, not_applicable
from smoke_tests.links import bus_bandwidth, floor, promised, slowest, taken, wanted
from smoke_tests.measure import Measure, fault, plain
from torchkiln.matrix.facts import load
from torchkiln.smoke.verdict import is_within

# What NCCL 2.14 to 2.28 print, cut short.
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
def test_the_link_is_what_nccl_says_it_took(log: str, link: str) -> None:
    assert taken(log) == link


def driver(*ways: str, peers: bool = True, nvlinks: int = 18) -> dict[str, Any]:
    """What the probe tells of three GPUs."""
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
def test_the_promise_is_the_slowest_way_that_a_ring_can_need(host: dict[str, Any], link: str) -> None:
    assert promised(host) == link


def test_a_link_that_is_slower_than_promised_is_wanted_better() -> None:
    fast, mixed = driver("NVLINK", "NVLINK", "NVLINK"), driver("NVLINK", "SYS", "NVLINK")
    assert [wanted(used, fast) for used in ("NVLink", "PCIe P2P", "SHM", "NET", "none")] == ["NVLink"] * 5
    assert [wanted(used, mixed) for used in ("NVLink", "PCIe P2P", "SHM", "NET")] == [
        "NVLink",
        "PCIe P2P",
        "SHM",
        "SHM",
    ]
    assert slowest(["NVLink", "SHM", "PCIe P2P"]) == "SHM"


def test_floors_lie_above_what_the_next_slower_link_can_give() -> None:
    host = driver("NVLINK", "NVLINK", "NVLINK")
    pcie_5_0_x16, seen_through_memory, seen_over_nvlink = 63.0, 8.0, 333.0
    assert pcie_5_0_x16 < floor("NVLink", host) < seen_over_nvlink
    assert 1 < floor("SHM", host) + 0.1 < seen_through_memory
    assert floor("PCIe P2P", host) == 5.0


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """nccl-tests, doc/PERFORMANCE.md: algbw = size / time, busbw = algbw * 2(n-1)/n."""
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
def test_inside_and_outside_judge_alike(value: object, bound: dict[str, object]) -> None:
    value, bound = plain(value), plain(bound)
    assert (fault(value, bound) == "") == is_within(value, bound)


@given(values)
def test_plain_is_what_json_gives_back(value: object) -> None:
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, None, "3", [3]])
def test_no_numeric_bound_lets_through_what_is_no_number(value: object) -> None:
    measure = Measure()
    measure("x", value, at_least=-9, at_most=9)
    assert measure.faults()


def test_every_fault_is_told_at_once() -> None:
    measure = Measure()
    measure("loss", 0.9, at_most=0.1)
    measure("free", 3)
    measure("wheels", {"a": "1", "b": "2"}, equals={"a": "2", "c": "3"})
    loss, wheels = measure.faults()
    assert loss == "loss: 0.9 is not at most 0.1"
    assert wheels == "wheels: c is missing (wanted '3'); b is not wanted (is '2'); a is '1', wanted '2'"


def test_a_check_that_bounded_nothing_is_a_fault() -> None:
    measure = Measure()
    measure("seconds", 1.0)
    assert measure.faults() == ["the check bounded nothing: it could not have failed"]


def test_a_name_is_measured_once() -> None:
    measure = Measure()
    measure("x", 1, equals=1)
    with pytest.raises(ValueError, match="twice"):
        measure("x", 2, equals=2)


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
