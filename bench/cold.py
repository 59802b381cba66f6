"""Benchmark a build that downloads the wheels against the download alone."""

from __future__ import annotations

from bench import sides
from bench.fetch import streams
from bench.results import Figure, Outcome, fastest, per_round
from bench.sides import Contender, Say, alternate, build
from bench.subject import Subject

_MIB = 1 << 20


def cold(subject: Subject, rounds: int, say: Say) -> Outcome:
    """A build that downloads the wheels, against the download alone."""
    own = streams()
    with_pyc, without = "ours, .pyc cached", "ours, .pyc made"
    bare = (f"curl, {own} connections", f"curl, {own} connections, ranges", "our downloader alone")
    ways = (
        Contender(
            name=with_pyc,
            what="`build`: download, convert, layout",
            run=lambda: build(subject, wheels=False, bytecode=True),
        ),
        Contender(
            name=bare[0],
            what="look-up, then one `curl --parallel`; nothing is hashed",
            run=lambda: sides.download(subject, "curl", own),
        ),
        Contender(
            name=without,
            what="the same; the base's Python is taken out of the base and compiles",
            run=lambda: build(subject, wheels=False, bytecode=False),
        ),
        Contender(
            name=bare[1],
            what="the same, each file asked for as a range from its start",
            run=lambda: sides.download(subject, "curl-ranges", own),
        ),
        Contender(
            name=bare[2],
            what=f"its files with {own} threads, nothing is hashed or converted",
            run=lambda: sides.download(subject, "own", own),
        ),
    )
    found = alternate(ways, rounds, say)
    best = fastest(*(found[name].samples for name in bare[:2]))
    ours = (*found[with_pyc].samples, *found[without].samples)
    return Outcome(
        name="cold",
        title="Base there, wheels not cached",
        state=(
            "only the base in our cache (and .pyc files with the base's Python, where said), no page and no"
            " address of the index kept, for either side; nothing to read but the base; before each run"
            " what the one before had written was synced and deleted"
        ),
        sides=tuple(found.values()),
        figures=(
            Figure(
                what="cold build, .pyc cached / bare download",
                unit="×",
                values=per_round(found[with_pyc].samples, best),
                target=1.3,
            ),
            Figure(
                what="cold build, .pyc made / bare download",
                unit="×",
                values=per_round(found[without].samples, best),
                target=1.6,
            ),
            Figure(
                what="cold build, .pyc cached / our downloader alone",
                unit="×",
                values=per_round(found[with_pyc].samples, found[bare[2]].samples),
            ),
            Figure(
                what="our downloader alone / bare download",
                unit="×",
                values=per_round(found[bare[2]].samples, best),
            ),
            Figure(
                what="peak memory of all processes of a cold build",
                unit="MiB",
                judged="worst",
                values=tuple(sample.peak / _MIB for sample in ours),
                target=400.0,
            ),
        ),
        notes=(
            "Bare download: of each round the faster curl. A mirror that must fetch a file itself may pass on"
            " a range as it comes, and hold a plain answer back until it has all of the file.",
            f"{len(subject.locked.wheels)} wheels, {subject.wheel_bytes / 1e6:,.0f} MB: {subject.name}.",
        ),
    )
