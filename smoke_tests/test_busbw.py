"""busbw: the GPUs use the expected link, and it is as fast as such a link must be."""

from statistics import median

import pytest

from smoke_tests.links import TELLING, bus_bandwidth, floor, slowest, taken, wanted
from smoke_tests.probe import probe
from smoke_tests.ranks import measure_group, rank_endings, values_of


@pytest.mark.tier(2)
@pytest.mark.limit(300)
def test_busbw(measure):
    """All-reduce from 1 KiB to 1 GiB; the bound is at 1 GiB, by the kind of link, for the slowest rank."""
    driver = probe("driver")
    endings = rank_endings("busbw:by_size", limit=240, env=TELLING)
    seen = values_of(endings)
    link = slowest(taken(rank.output) for rank in endings)
    due = wanted(link, driver)
    bandwidth = [
        {
            size: bus_bandwidth(int(size), median(rounds), len(seen))
            for size, rounds in rank["seconds"].items()
        }
        for rank in seen
    ]

    measure_group(measure, seen)
    measure("between_gpus", driver["links"])
    measure("nvlinks", [gpu["nvlinks"] for gpu in driver["gpus"]])
    measure("link", link, equals=due)
    measure("seconds", [rank["seconds"] for rank in seen])
    measure("busbw_gb_s", bandwidth)
    measure("busbw_at_1_gib_gb_s", min(of[str(1 << 30)] for of in bandwidth), at_least=floor(due, driver))
    measure("wrong_elements", sum(sum(rank["wrong"].values()) for rank in seen), equals=0)
