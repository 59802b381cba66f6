"""Locks with a live index, and with upload dates in all forms from a local index."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.needs import nightly
from tests.programs import run_program
from tests.servers.index_server import IndexServer
from torchkiln.index.package_index import open_index, open_offered
from torchkiln.locks.file import lock_digest, requirements_txt, to_json
from torchkiln.locks.lock import System, Versions, load_locked, lock
from torchkiln.matrix.add_release import look_up
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedCell
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

IMAGES = ROOT / "images"
TAG = "2.7.1-cuda12.1-cudnn9-runtime"


@pytest.mark.proof
def test_locked_again_with_its_versions_it_is_the_same_bytes(tmp_path: Path) -> None:
    """A lock that has no paths of its wheels gets them, if the index has paths of a known layout."""
    committed = load_locked(IMAGES, TAG)
    index = open_index(os.environ, Store(tmp_path))

    def locked_again(previous: LockedCell) -> LockedCell:
        system, versions = System(base=committed.base), Versions(as_of="2999-01-01", previous=previous)
        return lock(committed.resolution, index, system, versions)

    def without_paths(locked: LockedCell) -> LockedCell:
        return replace(locked, wheels=tuple(replace(wheel, path=None) for wheel in locked.wheels))

    again = locked_again(committed)
    assert to_json(without_paths(again)) == to_json(without_paths(committed))
    assert lock_digest(again) == lock_digest(committed)
    assert to_json(locked_again(again)) == to_json(again)


@pytest.mark.proof
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="pip judges wheels by its own Python: run these tests by 3.11"
)
def test_pip_installs_the_requirements_with_their_hashes(tmp_path: Path) -> None:
    """`pip install --dry-run` accepts the requirements. Only small wheels, because it downloads them."""
    committed = load_locked(IMAGES, TAG)
    small = {wheel.name for wheel in committed.wheels if wheel.size < 100_000}
    lines = requirements_txt(committed).decode().splitlines()
    file = tmp_path / "requirements.txt"
    file.write_text("".join(f"{line}\n" for line in lines if line.partition("==")[0] in small))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-cache-dir",
        "-q",
    ]
    done = run_program([*command, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(file)])

    assert len(small) > 40
    assert done.returncode == 0, done.stderr


RAW = yaml.safe_load((ROOT / "torchkiln" / "data" / "compat.yaml").read_text())["releases"]


@pytest.mark.proof
@pytest.mark.parametrize(
    "version", ["2.8.0", *(pytest.param(name, marks=nightly) for name in ("2.9.1", "2.10.0", "2.11.0"))]
)
def test_the_proposal_equals_the_block_of_the_facts_except_for_gpu_code(tmp_path: Path, version: str) -> None:
    proposal = look_up(version, open_offered(os.environ, Store(tmp_path)))
    proposed = proposal.entry
    committed = {key: value for key, value in RAW[version].items() if key != "earlier"}
    committed["default"].pop("bytes_cp310", None)
    for default in (
        proposed["default"],
        committed["default"],
    ):
        default["requires"] = [str(Requirement(text)) for text in default["requires"]]

    assert list(proposed["variants"]) == [committed["default"]["variant"]]
    from_metadata = proposed.keys() - {"variants", "index_sha256"}
    assert {key: proposed[key] for key in from_metadata} == {key: committed[key] for key in from_metadata}
    assert proposed.keys() == committed.keys()


# --- upload dates ----------------------------------------------------------------------------------


RELEASES = {"1.0": "2026-01-10", "1.1": "2026-08-31", "1.2": "2026-09-01", "2.0": "2026-10-05"}
UNTIL = "2026-09-01"


@pytest.fixture
def server() -> Iterator[IndexServer]:
    with IndexServer() as server:
        yield server


def chosen(server: IndexServer, cache: Path, as_of: str, *, keep: tuple[tuple[str, str], ...] = ()) -> str:
    """The version of `attrs-like` that a lock of the date *as_of* names."""
    environ = {
        "UV_DEFAULT_INDEX": server.url("simple"),
        "PATH": "/usr/bin",
        "HOME": str(cache),
        "PIP_CONFIG_FILE": "/dev/null",
    }
    request = IndexRequest(
        requirements=("attrs-like",),
        constraints=(),
        python="3.11",
        glibc=(2, 36),
        as_of=as_of,
        keep=keep,
        bound=(),
    )
    [wheel] = open_index(environ, Store(cache / "store")).wheels(request)
    return wheel.version


def serve_releases(server: IndexServer, *, undated: tuple[str, ...] = ()) -> None:
    for version, day in RELEASES.items():
        server.add(
            "simple", "attrs-like", version, date="" if version in undated else f"{day}T12:00:00.000000Z"
        )


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
@pytest.mark.parametrize(
    ("as_of", "version"),
    [(UNTIL, "1.1"), ("2026-09-02", "1.2"), ("2026-12-01", "2.0"), ("2026-02-01", "1.0")],
)
def test_the_date_decides_if_every_file_has_one(
    server: IndexServer, tmp_path: Path, json: bool, as_of: str, version: str
) -> None:
    server.json = json
    serve_releases(server)

    assert chosen(server, tmp_path, as_of) == version


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_a_file_without_a_date_counts_as_old(server: IndexServer, tmp_path: Path, json: bool) -> None:
    """1.1 has no date, so it is not excluded. 1.2 and 2.0 have a date and are too new."""
    server.json = json
    serve_releases(server, undated=("1.1",))

    assert chosen(server, tmp_path, "2026-03-01") == "1.1"


@pytest.mark.parametrize("json", [False, True], ids=["html", "json"])
def test_without_dates_locked_versions_stay_and_others_are_the_newest(
    server: IndexServer, tmp_path: Path, json: bool
) -> None:
    server.json = json
    serve_releases(server, undated=tuple(RELEASES))

    assert chosen(server, tmp_path, UNTIL) == "2.0"
    assert chosen(server, tmp_path, UNTIL, keep=(("attrs-like", "1.1"),)) == "1.1"
