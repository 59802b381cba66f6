"""Find the type of link between GPUs that the driver reports and that NCCL uses, and compute its bandwidth.

Bus bandwidth is defined as in nccl-tests (doc/PERFORMANCE.md): bytes / seconds * 2(n-1)/n for an all-reduce,
which for any number of ranks n can be compared with the speed of one GPU's link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# What makes NCCL say on stdout, which is the rank's output, how it connects the GPUs.
TELLING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH", "NCCL_DEBUG_FILE": ""}

NVLINK, PCIE, SHM, NET, NONE = LINKS = ("NVLink", "PCIe P2P", "SHM", "NET", "none")  # the best first

# GB/s at 1 GiB. Not what the link should give but what the next lower one cannot:
# NVLink for each link that is up: one gives 20 to 50 in each direction, and 18 of them, an H100's or H200's,
# must give 108, where PCIe 5.0 ends at 63 (two H200 gave 333). A bridge of few links is asked for less.
_NVLINK_EACH = 6.0
# PCIe 3.0 x16 gives 10 to 12, x8 half of that. Through the host's memory every byte goes twice and is copied
# by kernels: two H200 gave 8, old and busy hosts give 2 to 4.
_FLOORS = {PCIE: 5.0, SHM: 1.0}

# By the way between two GPUs (probes/driver.py). Farther apart than some PCIe switches NCCL may prefer to go
# through the host's memory, although they are peers: that depends on the processor.
_AT_LEAST = {"NVLINK": NVLINK, "board": PCIE, "PIX": PCIE, "PXB": PCIE}

_VIA = re.compile(r"NCCL INFO Channel .* via (P2P|SHM|NET)\b")
_RING = re.compile(r"NCCL INFO Pattern 4, .*\btype (\w+)/")  # 4 is the ring: the farthest pair in it


def promised(driver: Mapping[str, Any]) -> str:
    """The slowest link that NCCL may need, from the driver's data on each pair of GPUs."""
    here, ways = len(driver["gpus"]), [way for _, _, way in driver["links"]]
    if len(driver["peers"]) < here * (here - 1) or len(ways) < here * (here - 1) // 2:
        return SHM
    return slowest(_AT_LEAST.get(way, SHM) for way in ways)


def wanted(used: str, driver: Mapping[str, Any]) -> str:
    """*used* if it is as good as promised (rings can avoid a slow pair), else the promised link."""
    return min(used, promised(driver), key=LINKS.index)


def taken(log: str) -> str:
    """The slowest link in NCCL's log; "none" if it made no connection."""
    ways = {"P2P": PCIE, "SHM": SHM, "NET": NET}
    if not (found := {ways[way] for way in _VIA.findall(log)}):
        return NONE
    worst = slowest(found)
    over_nvlink = set(_RING.findall(log)) and set(_RING.findall(log)) <= {"NVL", "NVB"}
    return NVLINK if worst == PCIE and over_nvlink else worst


def slowest(links: Iterable[str]) -> str:
    """The lowest class among *links*."""
    return max(links, key=LINKS.index)


def floor(link: str, driver: Mapping[str, Any]) -> float:
    """The minimum bus bandwidth of *link* in GB/s at 1 GiB."""
    if link == NVLINK:
        return _NVLINK_EACH * min(gpu["nvlinks"] or 1 for gpu in driver["gpus"])
    return _FLOORS[link]


def bus_bandwidth(size: int, seconds: float, world: int) -> float:
    """GB/s (10^9 bytes) of an all-reduce of *size* bytes."""
    return size / seconds * 2 * (world - 1) / world / 1e9
