"""Benchmark a build that downloads the wheels against the download alone."""

from __future__ import annotations

from bench import sides
from bench.fetch import streams
from bench.results import Figure, Outcome, fastest, per_round
from bench.sides import Contender, Say, alternate, build
from bench.subject import Subject

_MIB = 1 << 20


def cold(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure a build that downloads the wheels, and the download alone."""
    own = streams()
    with_pyc, without = "ours, .pyc cached", "ours, .pyc made"
    bare = (f"curl, {own} connections", f"curl, {own} connections, ranges", "our downloader alone")
    contenders = (
        Contender(
            name=with_pyc,
            what="`build`: download, convert, layout",
            run=lambda: build(subject, wheels=False, bytecode=True),
        ),
        Contender(
            name=bare[0],
            what="find the URLs, then one `curl --parallel`; nothing is hashed",
            run=lambda: sides.download(subject, "curl", own),
        ),
        Contender(
            name=without,
            what="the same; extract the base's Python, which compiles",
            run=lambda: build(subject, wheels=False, bytecode=False),
        ),
        Contender(
            name=bare[1],
            what="the same, with a range request for each whole file",
            run=lambda: sides.download(subject, "curl-ranges", own),
        ),
        Contender(
            name=bare[2],
            what=f"its files with {own} threads, nothing is hashed or converted",
            run=lambda: sides.download(subject, "own", own),
        ),
    )
    found = alternate(contenders, rounds, say)
    best = fastest(*(found[name].samples for name in bare[:2]))
    ours = (*found[with_pyc].samples, *found[without].samples)
    return Outcome(
        name="cold",
        title="Base cached, wheels not",
        state=(
            "our cache has only the base, and .pyc files and the base's Python where the row says so; no side"
            " has cached pages or URLs of the index; before each run, the output of the run before it was"
            " synced and deleted"
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
            '"Bare download" is the faster of the two curl rows in each round. A mirror that must first fetch'
            " a file may send a range of it at once, but the whole file only when the mirror has all of it.",
            f"{len(subject.locked.wheels)} wheels, {subject.wheel_bytes / 1e6:,.0f} MB: {subject.name}.",
        ),
    )
