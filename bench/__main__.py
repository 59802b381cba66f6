"""`python -m bench [NAME...]`: run benchmarks and write docs/bench.json, docs/bench.md and the plot.

Prints the page on stdout and progress on stderr. Results of benchmarks that are not run are kept.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bench import growth, machine, report
from bench.cold import cold
from bench.meters import Failed
from bench.ordinary import pip
from bench.project import package, project
from bench.published import published, published_cold, published_others
from bench.results import SCHEMA, Outcome, addresses_in, outcome_json
from bench.rows_json import rows_json
from bench.sibling import sibling
from bench.sides import Say, keep_bytecode
from bench.start import start
from bench.start_links import start_links, start_pulls
from bench.subject import TAG, Subject, real, recorded, served, shrunk
from bench.thin import thin
from bench.warm import unchanged, warm
from tests.servers.index_server import IndexServer
from torchkiln.errors import KilnError
from torchkiln.index.settings import redact_text
from torchkiln.store.store import Store, cache_root
from torchkiln.util.files import pretty_json, write_atomic
from torchkiln.util.places import ROOT

OF_SUBJECT: dict[str, Callable[[Subject, int, Say], Outcome]] = {
    "cold": cold,
    "warm": warm,
    "unchanged": unchanged,
    "pip": pip,
    "cores": growth.cores,
    "published": published,
    "published-others": published_others,
    "published-cold": published_cold,
    "sibling": sibling,
    "start": start,
    "start-links": start_links,
    "start-pulls": start_pulls,
    "thin": thin,
    "project": project,
    "package": package,
}
OF_WORKSHOP: dict[str, Callable[[growth.Workshop, int, Say], Outcome]] = {
    "cells": growth.cells,
    "count": growth.count,
    "size": growth.size,
}
NAMES = (*OF_SUBJECT, *OF_WORKSHOP)
NOT_MEASURED = (
    "Nine real sets: their wheels are 28 GB of downloads; the growth by cells uses generated wheels.",
)
_QUICK = 100  # --quick uses 1/100 of the real sizes


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--quick", is_flag=True, help="small generated wheels, a local index; writes nothing to docs/")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for bench.json, bench.md and bench-ratios.svg  [default: docs; with --quick: none]",
)
@click.option("--rows", is_flag=True, help="print rows for docs/numbers.json instead of the page")
def main(names: tuple[str, ...], rounds: int, quick: bool, output: Path | None, rows: bool) -> None:
    """Run the benchmarks NAMES, or all if there are none."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the scratch folder is deleted
    folder = output or (None if quick else ROOT / "docs")
    document = _previous(folder)
    for name in names or NAMES:
        document["benchmarks"][name] = _run(name, rounds, quick)
        if folder:  # after each benchmark, so that an interruption loses no results
            _publish(document, folder)
    text = pretty_json(report.number_rows(document)).decode() if rows else report.page(document)
    click.echo(text, nl=False)


def _run(name: str, rounds: int, quick: bool) -> dict[str, Any]:
    _say(f"{name}, {rounds} rounds")
    run, started = machine.describe(), time.monotonic()
    cache = Store(cache_root())
    try:
        with tempfile.TemporaryDirectory(prefix="torchkiln-bench-", dir=cache.root.parent) as folder:
            if name in OF_WORKSHOP:
                workshop = growth.Workshop(base=cache, scratch=Path(folder), quick=quick)
                outcome = OF_WORKSHOP[name](workshop, rounds, _say)
            else:
                with _subject(cache, Path(folder), quick) as subject:
                    outcome = OF_SUBJECT[name](subject, rounds, _say)
    except (KilnError, Failed) as error:
        hint = f"\nhint: {error.hint}" if isinstance(error, KilnError) and error.hint else ""
        raise click.ClickException(f"{name}: {redact_text(str(error))}{hint}") from error
    _say(f"{name}: {time.monotonic() - started:.0f} s")
    return {"run": run, "rounds": rounds, "quick": quick, "outcome": outcome_json(outcome)}


@contextmanager
def _subject(cache: Store, scratch: Path, quick: bool) -> Iterator[Subject]:
    """The real set, or a generated set of a hundredth of its size on a local index."""
    if not quick:
        yield real(cache, scratch)
        return
    with IndexServer() as server:
        subject = served(shrunk(TAG, cache, Store(scratch / "made"), scratch, divisor=_QUICK), server)
        yield recorded(subject, keep_bytecode(subject))


def _previous(folder: Path | None) -> dict[str, Any]:
    """The existing document, with the results of other benchmarks."""
    fresh: dict[str, Any] = {"schema": SCHEMA, "not_measured": list(NOT_MEASURED), "benchmarks": {}}
    try:
        found = json.loads((folder / "bench.json").read_bytes()) if folder else fresh
    except FileNotFoundError:
        return fresh
    known = found["benchmarks"] if found.get("schema") == SCHEMA else {}
    return fresh | {"benchmarks": {name: known[name] for name in NAMES if name in known}}


def _publish(document: dict[str, Any], folder: Path) -> None:
    """Write the three files, unless they contain an address or a path of this machine."""
    document["benchmarks"] = {
        name: document["benchmarks"][name] for name in NAMES if name in document["benchmarks"]
    }
    files = {
        "bench.json": rows_json(document, 4).decode(),
        "bench.md": report.page(document),
        "bench-ratios.svg": report.picture(document),
    }
    places = (str(Path.home()), str(ROOT), str(cache_root().parent))
    for name, text in files.items():
        if found := addresses_in(text, places):
            raise click.ClickException(
                f"{name} would contain an address or a path of this machine: {found[0]!r}"
            )
        write_atomic(folder / name, text.encode())


def _say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
