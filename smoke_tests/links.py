"""Find the type of link that NCCL uses between GPUs, and compute its bandwidth.

Bus bandwidth is defined as in nccl-tests (doc/PERFORMANCE.md): bytes / seconds * 2(n-1)/n for an all-reduce
of n ranks. For any n, this can be compared with the speed of one GPU's link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from smoke_tests.expected import LINKS, NET, NONE, NVLINK, PCIE, SHM, promised_link

# With these variables NCCL prints on stdout, which is the rank's output, how it connects the GPUs.
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH", "NCCL_DEBUG_FILE": ""}

# Bounds in GB/s at 1 GiB, each higher than the next slower type of link can reach. NVLink, for each active
# link: a link gives 20 to 50 in each direction. The 18 links of an H100 or H200 must give 108 (two H200 gave
# 333); PCIe 5.0 gives at most 63. For a bridge of few links the bound is lower.
_NVLINK_EACH = 6.0
# PCIe 3.0 x16 gives 10 to 12, x8 half of that. Through the host's memory, kernels copy each byte twice: two
# H200 gave 8, and old or busy hosts give 2 to 4.
_FLOORS = {PCIE: 5.0, SHM: 1.0}

_VIA = re.compile(r"NCCL INFO Channel .* via (P2P|SHM|NET)\b")
# Pattern 4 is the ring; this is the type of its farthest pair.
_RING = re.compile(r"NCCL INFO Pattern 4, .*\btype (\w+)/")


def used_link(log: str) -> str:
    """The slowest link in NCCL's log; "none" if it made no connection."""
    links = {"P2P": PCIE, "SHM": SHM, "NET": NET}
    if not (found := {links[via] for via in _VIA.findall(log)}):
        return NONE
    worst = slowest(found)
    over_nvlink = set(_RING.findall(log)) and set(_RING.findall(log)) <= {"NVL", "NVB"}
    return NVLINK if worst == PCIE and over_nvlink else worst


def slowest(links: Iterable[str]) -> str:
    """The slowest of *links*."""
    return max(links, key=LINKS.index)


def floor(used: str, driver: Mapping[str, Any]) -> float:
    """The minimum bus bandwidth in GB/s at 1 GiB, for the faster of *used* and the promised link."""
    link = min(used, promised_link(driver), key=LINKS.index)
    if link == NVLINK:
        return _NVLINK_EACH * min(gpu["nvlinks"] or 1 for gpu in driver["gpus"])
    return _FLOORS[link]


def bus_bandwidth(size: int, seconds: float, world: int) -> float:
    """GB/s (10^9 bytes) of an all-reduce of *size* bytes."""
    return size / seconds * 2 * (world - 1) / world / 1e9
