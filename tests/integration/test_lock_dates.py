"""A lock's date decides which releases take part, whatever the index says about upload times.

Indexes differ: JSON or HTML pages, with an upload time for every file, for some, or for none. Each form is
served here by a local index, so that the answer does not hang on what a live index has today.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standin.index_server import IndexServer
from torchkiln.index.package_index import open_index
from torchkiln.model.index import IndexRequest
from torchkiln.store.store import Store

RELEASES = {"1.0": "2026-01-10", "1.1": "2026-08-31", "1.2": "2026-09-01", "2.0": "2026-10-05"}
UNTIL = "2026-09-01"


@pytest.fixture
def server() -> Iterator[IndexServer]:
    with IndexServer() as server:
        yield server


def chosen(server: IndexServer, cache: Path, as_of: str, *, keep: tuple[tuple[str, str], ...] = ()) -> str:
    """The version of `attrs-like` that a lock of the date *as_of* names."""
    environ = {"UV_DEFAULT_INDEX": server.url("simple"), "PATH": "/usr/bin", "HOME": str(cache)}
    wanted = IndexRequest(
        requirements=("attrs-like",),
        constraints=(),
        python="3.11",
        glibc=(2, 36),
        as_of=as_of,
        keep=keep,
        bound=(),
    )
    [wheel] = open_index(environ, Store(cache / "store")).wheels(wanted)
    return wheel.version


def put_up(server: IndexServer, *, undated: tuple[str, ...] = ()) -> None:
    for version, day in RELEASES.items():
        server.add(
            "simple", "attrs-like", version, date="" if version in undated else f"{day}T12:00:00.000000Z"
        )


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
@pytest.mark.parametrize(
    ("as_of", "version"),
    [(UNTIL, "1.1"), ("2026-09-02", "1.2"), ("2026-12-01", "2.0"), ("2026-02-01", "1.0")],
)
def test_the_date_decides_where_every_file_has_one(
    server: IndexServer, tmp_path: Path, json: bool, as_of: str, version: str
) -> None:
    server.json = json
    put_up(server)

    assert chosen(server, tmp_path, as_of) == version


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_a_file_without_a_date_counts_as_old(server: IndexServer, tmp_path: Path, json: bool) -> None:
    """1.1 has no date and takes part; 1.2 and 2.0 have one and are too new."""
    server.json = json
    put_up(server, undated=("1.1",))

    assert chosen(server, tmp_path, "2026-03-01") == "1.1"


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_without_any_dates_kept_versions_hold_and_the_newest_is_new(
    server: IndexServer, tmp_path: Path, json: bool
) -> None:
    server.json = json
    put_up(server, undated=tuple(RELEASES))

    assert chosen(server, tmp_path, UNTIL) == "2.0"
    assert chosen(server, tmp_path, UNTIL, keep=(("attrs-like", "1.1"),)) == "1.1"
