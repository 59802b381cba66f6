"""The link between GPUs: what the hardware promises, what NCCL says it took, and how fast it must be."""

from __future__ import annotations

from typing import Any

import pytest

from smoke_tests.links import bus_bandwidth, floor, promised, slowest, taken, wanted

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
