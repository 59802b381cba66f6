"""A wheel whose page no longer lists it is downloaded by the path that the lock recorded."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from tests.cells import planned_cell, put_base, small_wheels
from tests.pool_worker import in_this_process
from tests.publisher import interpreter
from tests.reports import LOCKED
from tests.servers.answering import NOT_FOUND, Answer, Answering
from tests.unpublished import FakeIndex, IndexWithout, locked_wheel, taken
from tests.wheels import WheelSpec, write_wheel
from torchkiln.cli import torchkiln
from torchkiln.engine.build import BuildOptions, build
from torchkiln.engine.environment import Environment
from torchkiln.engine.keep import LOCK_TYPE
from torchkiln.engine.prefetch import all_missing
from torchkiln.errors import BadWheel, BuildFailed, NotListed, Stale
from torchkiln.index.download import Downloads
from torchkiln.index.package_index import PackageIndex
from torchkiln.index.pages import Pages, path_of
from torchkiln.index.settings import index_settings
from torchkiln.locks.file import from_json, lock_digest, to_json
from torchkiln.locks.lock import same_files
from torchkiln.matrix import facts, matrix
from torchkiln.model.digest import Digest
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Silent, Transfer
from torchkiln.oci.image import canonical_json, descriptor, digest_of
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT
from torchkiln.vault import places
from torchkiln.vault.places import FolderVault
from torchkiln.vault.sources import VaultFetcher

ZEROS = "0" * 60
WHL = "/whl/cu126/torch-2.7.1%2Bcu126-cp311.whl"
PREFIX = "/mirror/pypi"  # a mirror's own, before the path that all mirrors have


@dataclass
class Unlisting(Answering):
    """An index whose files are below a prefix, with paths in PyPI's layout; its pages list some of them."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)  # by path
    listed: list[str] = field(default_factory=list)  # paths
    pages: bool = True
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.answer)
        self.page = self.url(f"{PREFIX[1:]}/simple")

    def answer(self, path: str, _: Mapping[str, str]) -> Answer:
        self.asked.append(path)
        if path in self.files:
            return 200, {}, self.files[path]
        if not (self.pages and path == f"{PREFIX}/simple/demo/"):
            return NOT_FOUND
        links = (
            f'<a href="{at}#sha256={hashlib.sha256(self.files[at]).hexdigest()}">{at.rpartition("/")[2]}</a>'
            for at in self.listed
        )
        return 200, {"Content-Type": "text/html"}, f"<html><body>{''.join(links)}</body></html>".encode()

    def add(self, version: str, prefix: str = PREFIX, *, listed: bool = True) -> LockedWheel:
        file = write_wheel(WheelSpec(name="demo", version=version, files=()), self.folder)
        name = hashlib.blake2b(file.read_bytes(), digest_size=32).hexdigest()
        path = f"/packages/{name[:2]}/{name[2:4]}/{name[4:]}/{file.name}"
        self.files[prefix + path] = file.read_bytes()
        self.listed += [prefix + path] * listed
        return replace(locked_wheel(file), path=path)

    def downloads(self) -> tuple[Downloads, Store]:
        store = Store(self.folder / f"cache-{len(list(self.folder.iterdir()))}")
        settings = index_settings({}, pip_config="", default_url=self.page)
        return Downloads(Pages(settings, store), sleep=lambda _: None), store

    def fetched(self, wheel: LockedWheel) -> bytes:
        downloads, store = self.downloads()
        return downloads.fetch_wheel(wheel, store).read_bytes()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Unlisting]:
    with Unlisting(tmp_path) as server:
        yield server


@pytest.fixture
def unlisted(index: Unlisting) -> LockedWheel:
    """A wheel that the page does not list; it lists another one."""
    index.add("2.0")
    return index.add("1.0", listed=False)


def test_a_wheel_that_is_still_served_is_found_below_the_prefix_of_the_others(
    index: Unlisting, unlisted: LockedWheel
) -> None:
    assert hashlib.sha256(index.fetched(unlisted)).hexdigest() == unlisted.sha256
    with pytest.raises(BuildFailed, match="the index no longer has this file"):
        index.fetched(replace(unlisted, path=None))


def test_without_a_page_the_path_is_that_of_the_server(index: Unlisting) -> None:
    wheel = index.add("1.0", prefix="")
    index.pages = False

    assert hashlib.sha256(index.fetched(wheel)).hexdigest() == wheel.sha256


def test_other_bytes_at_the_path_are_refused(index: Unlisting, unlisted: LockedWheel) -> None:
    index.files[f"{PREFIX}{unlisted.path}"] = bytes(unlisted.size)

    with pytest.raises(BadWheel, match="sha256"):
        index.fetched(unlisted)


def test_a_wheel_that_is_gone_is_reported_with_its_path(index: Unlisting, unlisted: LockedWheel) -> None:
    """Of the places, only those with a path of a known layout are asked."""
    del index.files[f"{PREFIX}{unlisted.path}"]
    other = index.listed.pop()
    for name in ("2.0", "3.0", "4.0"):
        index.files[f"/files/demo-{name}-py3-none-any.whl"] = index.files[other] + name.encode()
        index.listed.append(f"/files/demo-{name}-py3-none-any.whl")

    with pytest.raises(BuildFailed) as caught:
        index.fetched(unlisted)
    assert f"and does not serve {unlisted.path}" in caught.value.message
    assert "--vault" in caught.value.hint
    assert [path for path in index.asked if path.endswith(unlisted.path or "?")] == [unlisted.path]


def test_a_lock_records_the_paths_that_all_mirrors_have(index: Unlisting) -> None:
    wheel = index.add("1.0")
    nothing: dict[str, Any] = dict.fromkeys(("constraints", "keep", "bound"), ())
    wanted = IndexRequest(requirements=("demo",), python="3.11", glibc=(2, 36), as_of="2099-01-01", **nothing)
    found = PackageIndex(index.downloads()[0].pages)
    assert found.wheels(replace(wanted, image=True)) == (wheel,)
    assert found.wheels(wanted) == (replace(wheel, path=None),)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (f"https://a.example/packages/ab/cd/{ZEROS}/x.whl#z", f"/packages/ab/cd/{ZEROS}/x.whl"),
        (f"https://a.example/p/packages/ab/cd/{ZEROS}/x.whl", f"/packages/ab/cd/{ZEROS}/x.whl"),
        (f"https://a.example{WHL}", WHL),
        ("https://a.example/files/x.whl", None),
        ("file:///root/wheels/x.whl", None),
    ],
)
def test_only_paths_of_known_layouts_are_recorded(url: str, path: str | None) -> None:
    assert path_of(url) == path


def test_no_digest_depends_on_a_path() -> None:
    path = f"/packages/ab/cd/{ZEROS}/x.whl"
    recorded = replace(LOCKED, wheels=tuple(replace(wheel, path=path) for wheel in LOCKED.wheels))

    assert lock_digest(recorded) == lock_digest(LOCKED)
    assert same_files(recorded, LOCKED)
    assert from_json(to_json(recorded)) == recorded
    with pytest.raises(Stale, match="edited or merged incorrectly"):
        from_json(to_json(recorded).replace(b"/packages/ab/", b"/packages/ff/"))


@pytest.mark.parametrize(
    "path",
    ["//evil.example/x.whl", "/../x.whl", "https://evil.example/x.whl", "/packages/ab/cd/x.whl", "/whl/../x"],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    wheels: Any = (replace(LOCKED.wheels[0], path=path), *LOCKED.wheels[1:])
    with pytest.raises(Stale, match="path"):
        from_json(to_json(replace(LOCKED, wheels=wheels)))


def test_a_vault_names_the_wheels_that_the_index_no_longer_lists(
    index: Unlisting, unlisted: LockedWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three locks, each with one wheel: on the page, still served, and gone."""
    listed, gone = index.add("3.0"), index.add("4.0", listed=False)
    del index.files[f"{PREFIX}{gone.path}"]
    vault = FolderVault(tmp_path / "vault")
    for number, wheel in enumerate((listed, unlisted, gone)):
        config = to_json(replace(LOCKED, wheels=(wheel,), layers=()))
        described = descriptor(LOCK_TYPE, digest_of(config), len(config))
        vault.tag(f"t{number}", canonical_json({"config": described, "layers": []}), config)
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", index.page)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    done = CliRunner().invoke(torchkiln, ["vault", "check", str(vault.folder), "--upstream"])

    assert done.exit_code == 0, done.exception
    assert done.stdout == f"unlisted {unlisted.filename}\ngone {gone.filename}\n"
    assert "1 listed, 1 unlisted, 1 gone" in done.stderr


def test_all_missing_wheels_are_named_in_one_error(tmp_path: Path) -> None:
    plan, store = planned_cell(small_wheels(tmp_path)), Store(tmp_path / "cache")
    first = NotListed("torch: missing", hint="a vault")
    found = all_missing(plan, store, IndexWithout("torch", "sympy"), first)

    lines = found.message.splitlines()
    assert lines[0] == "2 of 5 wheels were not found"
    assert sorted(line.partition("-")[0] for line in lines[1:]) == ["sympy", "torch"]
    assert (found.exit_code, found.hint) == (6, "a vault")
    assert all_missing(plan, store, IndexWithout("torch"), first) is first


def test_a_build_names_them_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, store = planned_cell(small_wheels(tmp_path)), Store(tmp_path / "cache")
    put_base(plan.locked.base, store)
    monkeypatch.setattr(sys.modules[build.__module__], "plan_locked", lambda *_: plan)
    environment = Environment(
        store=store, fetcher=IndexWithout("torch", "triton", "sympy"), observer=Silent()
    )
    known = facts.load()
    images, options = matrix.read(ROOT / "matrix.yaml", known), BuildOptions()
    with interpreter(), in_this_process(), pytest.raises(NotListed, match="3 of 5 wheels were not found"):
        build(plan.locked, images, known, tmp_path / "dist", environment, options=options)
    assert not (tmp_path / "dist/index.json").exists()


def test_a_copy_from_a_vault_can_be_cancelled(
    index: Unlisting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first piece, nothing more is read, and the index is not asked."""
    wheel, vault, pieces = index.add("1.0"), FolderVault(tmp_path / "vault"), list[int]()
    vault.put(Digest(f"sha256:{wheel.sha256}"), wheel.size, tmp_path / wheel.filename)
    monkeypatch.setattr(places, "_PIECE", 100)
    VaultFetcher((vault,), IndexWithout()).fetch(
        wheel, tmp_path / "x", Transfer(pieces.append, lambda: bool(pieces))
    )

    assert pieces == [100] < [wheel.size]


@pytest.mark.parametrize("vaults", [0, 1])
def test_an_invalid_wheel_keeps_its_error(tmp_path: Path, vaults: int) -> None:
    """The index's error is raised as it is; its message then names each vault that lacks the wheel."""
    vault, index = FolderVault(tmp_path / "vault"), FakeIndex([])
    error = BadWheel("x.whl", "too long")
    with pytest.raises(BadWheel) as caught, patch.object(index, "fetch", side_effect=error):
        taken(VaultFetcher((vault,) * vaults, index), LOCKED.wheels[0], tmp_path / "x")

    reasons = [f"  {vault.name}: not there"] * vaults
    assert caught.value.message.split("\n") == ["x.whl: too long", *reasons]
