"""busbw: the GPUs use the expected link, and it is as fast as such a link must be."""

from statistics import median

import pytest

from smoke_tests.expected import LINKS
from smoke_tests.links import NCCL_LOG, bus_bandwidth, floor, slowest, used_link
from smoke_tests.probe import probe
from smoke_tests.ranks import measure_group, rank_endings, values_of

VALUES = {
    "busbw": {
        "backend": {"expected": "nccl_on_each"},
        "gpus": {"expected": "ranks"},
        "between_gpus": {"type": "any"},
        "nvlinks": {"type": "any"},
        "link": {"type": "string"},
        # Index in LINKS, fastest first; it may be lower, because rings can avoid a slow pair.
        "link_number": {"at_most": "promised_link"},
        "seconds": {"type": [{"*": ["number"]}]},
        "busbw_gb_s": {"type": [{"*": "number"}]},
        "busbw_at_1_gib_gb_s": {"type": "number"},
        "busbw_over_floor": {"at_least": 1.0},
        "wrong_elements": {"equals": 0},
    },
}


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_busbw(measure):
    """All-reduce from 1 KiB to 1 GiB. At 1 GiB, the slowest rank must reach the bound for the type of
    link."""
    driver = probe("driver")
    endings = rank_endings("busbw:by_size", limit=240, env=NCCL_LOG)
    results = values_of(endings)
    link = slowest(used_link(rank.output) for rank in endings)
    bandwidth = [
        {
            size: bus_bandwidth(int(size), median(rounds), len(results))
            for size, rounds in rank["seconds"].items()
        }
        for rank in results
    ]

    measure_group(measure, results)
    measure("between_gpus", driver["links"])
    measure("nvlinks", [gpu["nvlinks"] for gpu in driver["gpus"]])
    measure("link", link)
    measure("link_number", LINKS.index(link))
    measure("seconds", [rank["seconds"] for rank in results])
    measure("busbw_gb_s", bandwidth)
    slowest_rank = min(by_size[str(1 << 30)] for by_size in bandwidth)
    measure("busbw_at_1_gib_gb_s", slowest_rank)
    measure("busbw_over_floor", slowest_rank / floor(link, driver))
    measure("wrong_elements", sum(sum(rank["wrong"].values()) for rank in results))
