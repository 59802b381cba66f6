"""`python -m tests.campaign` runs the complete campaign of disturbed builds, and writes log and page."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.campaign import host, network
from tests.campaign.instants import IMPATIENT, draw
from tests.campaign.scene import ROOT, Scene
from tests.campaign.trials import Reference, provoke_all

if TYPE_CHECKING:
    from tests.campaign.trials import Record

_CUTS = {
    "write": "a write to a file",
    "read": "a download (a read of the socket, or a wheel half downloaded)",
    "rename": "a rename",
    "link": "a hard link",
    "unlink": "a deletion",
    "sync": "a flush to the disk",
}
_HEAD = """# Interrupted builds

This page and its log (`tests/campaign/log.json`, not committed) are written by this command:

    .venv/bin/python -m tests.campaign --seed {seed} --instants {instants} --log tests/campaign/log.json

It runs `build.py`, as a user does, for a small cell with a generated index, lock, base and wheels, and
interrupts the build. A preloaded library (`LD_PRELOAD`) counts the build's writes, socket reads, renames,
links, deletions and flushes. It sends a signal at a random call: before it, after it, or when half of a
write is done. Other signals are sent at random times. Then a checker that shares no code with torchkiln
hashes every blob, compares every wheel and `.part` file with the original file, follows every record and
tag, inflates every layer, and looks for processes that still run. Then the same build is run again:
it must succeed, give the digest of an uninterrupted build, leave nothing behind, and download
no byte of a wheel that was in the cache. `make proof` runs a short form.

Seed {seed}, {instants} instants, {seconds} s, Python {python}{mounts}. **{verdict}**

"""


def cut_inside(records: Iterable[Record]) -> dict[str, int]:
    """The number of *records* that were interrupted during each kind of operation."""
    counts = Counter(
        op for record in records for op in {*record.flying, *(("read",) if record.halves else ())}
    )
    return {_CUTS[op]: counts[op] for op in _CUTS}


def page(log: Mapping[str, Any]) -> str:
    """The text of tests/campaign/results.md, from the campaign's log."""
    verdict = f"{len(log['wrong'])} faults: see the log." if log["wrong"] else "No fault was found."
    mounts = "" if log["mounts"] else "; without the faults that need a mount, which needs root"
    text = _HEAD.format(**{**log, "verdict": verdict, "mounts": mounts})
    text += "## Counts\n\n" + _table(("what", "number"), ((k, f"{v:,}") for k, v in log["counts"].items()))
    text += "\nOperations that a signal interrupted (one signal can interrupt several):\n\n"
    text += _table(("operation", "runs"), log["cut inside"].items())
    hits = [record for record in log["records"] if record["group"] == "instant" and not record["late"]]
    text += "\n## Signals\n\n" + _table(
        ("signal", "cache before", "runs", "exit codes", "runs that left temporary files"), _signals(hits)
    )
    text += (
        '\nCtrl-C and "of all" signal all processes of the build; the other signals reach one process. A\n'
        'cache "part" has half of each big wheel and all small wheels.\n'
        "\nA negative exit code means that the signal killed the process, because the signal cannot be\n"
        "handled or its handler was not yet set. A shell shows -2 as 130 and -15 as 143. The messages:\n\n"
    )
    text += "".join(f"    {line}\n" for line in _sentences(hits))
    for group, title in (("network", "Network and index"), ("host", "The machine")):
        rows = [record for record in log["records"] if record["group"] == group]
        text += f"\n## {title}\n\n" + _table(("fault", "exit code", "message"), (_row(row) for row in rows))
    return text


def _signals(hits: list[dict[str, Any]]) -> Iterable[tuple[object, ...]]:
    for name, start in sorted({(record["name"], record["start"]) for record in hits}):
        found = [record for record in hits if (record["name"], record["start"]) == (name, start)]
        codes = Counter(record["code"] for record in found)
        counts = ", ".join(f"{code} ({count}×)" for code, count in sorted(codes.items()))
        yield name, start, len(found), counts, sum(record["leftovers"] > 0 for record in found)


def _sentences(hits: list[dict[str, Any]]) -> list[str]:
    counts = Counter(record["sentence"] for record in hits if record["sentence"].startswith("error: "))
    lines: list[str] = []
    for sentence, _ in counts.most_common():
        lines += [*sentence.splitlines(), ""]
    return lines[:-1]


def _row(record: dict[str, Any]) -> tuple[object, ...]:
    message = record["sentence"] if record["code"] else "(none: the build succeeds)"
    lines = [line.replace("|", "\\|").replace("<", "&lt;") for line in message.splitlines()]
    return record["name"], record["code"], "<br>".join(lines)


def _table(head: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in row) + " |\n" for row in lines)


def main() -> int:
    """Run the campaign; returns 0 if no fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instants", type=int, default=120, help="runs that a signal must hit")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)) + 1)
    parser.add_argument(
        "--log", type=Path, help="write the log there, and the page of the same name beside it"
    )
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchkiln-campaign-") as folder:
        reference = Reference(Scene(Path(folder), seed=arguments.seed))
        reference.measure()
        records = [*_instants(reference, arguments.seed, arguments.instants, arguments.jobs)]
        disturbances = [IMPATIENT, *network.faults(), *host.faults()]
        records += provoke_all(reference, disturbances, jobs=arguments.jobs)
        spoilt = reference.check()
    log = summary(records, seed=arguments.seed, instants=arguments.instants, spoilt=spoilt)
    log |= {"seconds": round(time.monotonic() - started), "mounts": host.can_mount()}
    if arguments.log:
        arguments.log.write_text(json.dumps(log, indent=1, ensure_ascii=False) + "\n")
        arguments.log.with_suffix(".md").write_text(page(log))
    for record in records:
        for line in record.wrong:
            print(f"{record.group}: {record.name} {record.detail}: {line}")
    print(json.dumps(log["counts"] | log["cut inside"]))
    return 1 if log["wrong"] else 0


def _instants(reference: Reference, seed: int, hits_required: int, jobs: int) -> Iterator[Record]:
    """Interrupt runs until *hits_required* were hit; a run that ended before its signal does not count."""
    drawn = draw(seed, reference)
    hit = 0
    while hit < hits_required:
        for record in provoke_all(reference, itertools.islice(drawn, hits_required - hit), jobs=jobs):
            hit += not record.late
            yield record


def summary(records: list[Record], *, seed: int, instants: int, spoilt: tuple[str, ...]) -> dict[str, Any]:
    """The log: counts, faults and all records."""
    hits = [record for record in records if record.group == "instant" and not record.late]
    return {
        "seed": seed,
        "instants": instants,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "counts": {
            "runs hit by a signal": len(hits),
            "runs that ended before the signal": sum(record.late for record in records),
            "faults of network and index": sum(record.group == "network" for record in records),
            "faults of the machine": sum(record.group == "host" for record in records),
            "wheel bytes in the cache before the next run": sum(record.cached for record in records),
            "wheel bytes that the next run requested": sum(record.fetched for record in records),
            "of these, bytes that were in the cache": sum(record.again for record in records),
        },
        "cut inside": cut_inside(hits),
        "wrong": [f"{record.name}: {line}" for record in records for line in record.wrong] + list(spoilt),
        "records": [record.as_json() for record in records],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
