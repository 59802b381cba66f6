"""Every disturbance, many instants → a log and its page, for people who run `python -m tests.campaign`."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.campaign import host, network
from tests.campaign.instants import IMPATIENT, draw
from tests.campaign.page import cut_inside, page
from tests.campaign.scene import ROOT, Scene
from tests.campaign.trials import Record, Reference, provoke_all


def main() -> int:
    """Run it; 0 when nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instants", type=int, default=120, help="runs that a signal must hit")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1)
    parser.add_argument(
        "--log", type=Path, help="write the log there, and the page of the same name beside it"
    )
    told = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchkiln-campaign-") as folder:
        reference = Reference(Scene(Path(folder), seed=told.seed))
        reference.measure()
        records = [*_instants(reference, told.seed, told.instants, told.jobs)]
        disturbances = [IMPATIENT, *network.faults(), *host.faults()]
        records += provoke_all(reference, disturbances, jobs=told.jobs)
        spoilt = reference.check()
    log = summary(records, seed=told.seed, asked=told.instants, spoilt=spoilt)
    log |= {"seconds": round(time.monotonic() - started), "mounts": host.can_mount()}
    if told.log:
        told.log.write_text(json.dumps(log, indent=1, ensure_ascii=False) + "\n")
        told.log.with_suffix(".md").write_text(page(log))
    for record in records:
        for line in record.wrong:
            print(f"{record.group}: {record.name} {record.detail}: {line}")
    print(json.dumps(log["counts"] | log["cut inside"]))
    return 1 if log["wrong"] else 0


def _instants(reference: Reference, seed: int, wanted: int, jobs: int) -> Iterator[Record]:
    """Instants until *wanted* runs were hit; a run that was over before its signal does not count."""
    drawn = draw(seed, reference)
    hit = 0
    while hit < wanted:
        for record in provoke_all(reference, itertools.islice(drawn, wanted - hit), jobs=jobs):
            hit += not record.late
            yield record


def summary(records: list[Record], *, seed: int, asked: int, spoilt: tuple[str, ...]) -> dict[str, Any]:
    """The log: what was done, what came of it, what was lost."""
    hits = [record for record in records if record.group == "instant" and not record.late]
    return {
        "seed": seed,
        "instants": asked,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "counts": {
            "runs hit by a signal": len(hits),
            "runs that were over before": sum(record.late for record in records),
            "faults of network and index": sum(record.group == "network" for record in records),
            "faults of the machine": sum(record.group == "host" for record in records),
            "wheel bytes that the next run found": sum(record.kept for record in records),
            "wheel bytes that it asked for": sum(record.fetched for record in records),
            "wheel bytes that it asked for again": sum(record.again for record in records),
        },
        "cut inside": cut_inside(hits),
        "wrong": [f"{record.name}: {line}" for record in records for line in record.wrong] + list(spoilt),
        "records": [record.as_json() for record in records],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
