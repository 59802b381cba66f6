"""A wheel whose page no longer lists it is downloaded by the path that the lock recorded."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cells import planned_cell, put_base, small_wheels
from tests.pool_worker import in_this_process
from tests.publisher import interpreter
from tests.reports import LOCKED
from tests.servers.background import InBackground
from tests.wheels import WheelSpec, write_wheel
from torchkiln.build.build import BuildOptions, build
from torchkiln.build.environment import Environment
from torchkiln.build.keep import LOCK_TYPE
from torchkiln.build.prefetch import all_missing
from torchkiln.cli import torchkiln
from torchkiln.errors import BadWheel, BuildFailed, NotListed, Stale
from torchkiln.index.download import Downloads
from torchkiln.index.package_index import PackageIndex
from torchkiln.index.pages import Pages, path_of
from torchkiln.index.settings import index_settings
from torchkiln.lock.lock import from_json, lock_digest, same_files, to_json
from torchkiln.matrix import facts, matrix
from torchkiln.model.cell import Source
from torchkiln.model.digest import Digest
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Silent
from torchkiln.oci.image import canonical_json, descriptor, digest_of
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT
from torchkiln.vault import places
from torchkiln.vault.places import FolderVault
from torchkiln.vault.sources import VaultFetcher
from torchkiln.wheel.source import Cancelled

ZEROS = "0" * 60
PREFIX = "/mirror/pypi"  # a mirror's own, before the path that all mirrors have


@dataclass
class Unlisting(InBackground):
    """An index whose files are below a prefix, with paths in PyPI's layout; its pages list some of them."""

    folder: Path
    files: dict[str, bytes] = field(default_factory=dict)  # by path
    listed: list[str] = field(default_factory=list)  # paths
    pages: bool = True

    def __post_init__(self) -> None:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data, kind = index.answer(self.path)
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data or b"")))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data or b"")

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, path: str) -> tuple[bytes | None, str]:
        if path in self.files:
            return self.files[path], "application/octet-stream"
        if not (self.pages and path == f"{PREFIX}/simple/demo/"):
            return None, "text/plain"
        links = (
            f'<a href="{at}#sha256={hashlib.sha256(self.files[at]).hexdigest()}">{at.rpartition("/")[2]}</a>'
            for at in self.listed
        )
        return f"<html><body>{''.join(links)}</body></html>".encode(), "text/html"

    def add(self, version: str, prefix: str = PREFIX) -> LockedWheel:
        file = write_wheel(WheelSpec(name="demo", version=version, files=()), self.folder)
        data = file.read_bytes()
        name = hashlib.blake2b(data, digest_size=32).hexdigest()
        path = f"/packages/{name[:2]}/{name[2:4]}/{name[4:]}/{file.name}"
        self.files[prefix + path] = data
        self.listed.append(prefix + path)
        return LockedWheel(
            name="demo",
            version=version,
            filename=file.name,
            sha256=hashlib.sha256(data).hexdigest(),
            size=len(data),
            index=Source.DEFAULT,
            path=path,
        )

    def unlist(self, wheel: LockedWheel) -> None:
        self.listed = [path for path in self.listed if not path.endswith(wheel.path or "?")]

    @contextmanager
    def downloads(self) -> Iterator[tuple[Downloads, Store]]:
        store = Store(self.folder / f"cache-{len(list(self.folder.iterdir()))}")
        settings = index_settings({}, pip_config="", default_url=f"{self.url}{PREFIX}/simple")
        yield Downloads(Pages(settings, store), sleep=lambda _: None), store


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Unlisting]:
    with Unlisting(tmp_path) as server:
        yield server


def fetched(index: Unlisting, wheel: LockedWheel) -> bytes:
    with index.downloads() as (downloads, store):
        return downloads.fetch_wheel(wheel, store).read_bytes()


def test_a_wheel_that_is_still_served_is_found_below_the_prefix_of_the_others(index: Unlisting) -> None:
    wheel = index.add("1.0")
    index.add("2.0")
    index.unlist(wheel)

    assert hashlib.sha256(fetched(index, wheel)).hexdigest() == wheel.sha256
    with pytest.raises(BuildFailed, match="the index no longer has this file"):
        fetched(index, replace(wheel, path=None))


def test_without_a_page_the_path_is_that_of_the_server(index: Unlisting) -> None:
    wheel = index.add("1.0", prefix="")
    index.pages = False

    assert hashlib.sha256(fetched(index, wheel)).hexdigest() == wheel.sha256


def test_other_bytes_at_the_path_are_refused(index: Unlisting) -> None:
    wheel = index.add("1.0")
    index.add("2.0")
    index.unlist(wheel)
    place = f"{PREFIX}{wheel.path}"
    index.files[place] = bytes(len(index.files[place]))

    with pytest.raises(BadWheel, match="sha256"):
        fetched(index, wheel)


def test_a_wheel_that_is_gone_is_reported_with_its_path(index: Unlisting) -> None:
    wheel = index.add("1.0")
    index.add("2.0")
    index.unlist(wheel)
    del index.files[f"{PREFIX}{wheel.path}"]

    with pytest.raises(BuildFailed) as caught:
        fetched(index, wheel)
    assert f"and does not serve {wheel.path}" in caught.value.message
    assert "--vault" in caught.value.hint


def test_a_lock_records_the_paths_that_all_mirrors_have(index: Unlisting) -> None:
    wheel = index.add("1.0")
    wanted = IndexRequest(
        requirements=("demo",),
        constraints=(),
        python="3.11",
        glibc=(2, 36),
        as_of="2099-01-01",
        keep=(),
        bound=(),
    )
    with index.downloads() as (downloads, _):
        found = PackageIndex(downloads.pages)
        assert found.wheels(replace(wanted, paths=True)) == (wheel,)
        assert found.wheels(wanted) == (replace(wheel, path=None),)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (f"https://a.example/packages/ab/cd/{ZEROS}/x.whl#z", f"/packages/ab/cd/{ZEROS}/x.whl"),
        (f"https://a.example/p/packages/ab/cd/{ZEROS}/x.whl", f"/packages/ab/cd/{ZEROS}/x.whl"),
        (
            "https://a.example/whl/cu126/torch-2.7.1%2Bcu126-cp311.whl",
            "/whl/cu126/torch-2.7.1%2Bcu126-cp311.whl",
        ),
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
    with pytest.raises(Stale, match="its recorded layers, paths or seal"):
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
    index: Unlisting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three locks, each with one wheel: on the page, still served, and gone."""
    wheels = listed, unlisted, gone = index.add("1.0"), index.add("2.0"), index.add("3.0")
    for wheel in (unlisted, gone):
        index.unlist(wheel)
    del index.files[f"{PREFIX}{gone.path}"]
    vault = FolderVault(tmp_path / "vault")
    for number, wheel in enumerate(wheels):
        config = to_json(replace(LOCKED, wheels=(wheel,), layers=()))
        described = descriptor(LOCK_TYPE, digest_of(config), len(config))
        vault.tag(f"t{number}", canonical_json({"config": described, "layers": []}), config)
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}{PREFIX}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    done = CliRunner().invoke(torchkiln, ["vault", "check", str(vault.folder), "--upstream"])

    assert done.exit_code == 0, done.exception
    assert done.stdout == f"unlisted {unlisted.filename}\ngone {gone.filename}\n"
    assert "1 listed, 1 unlisted, 1 gone" in done.stderr
    assert listed.filename not in done.stdout


class WithoutSome:
    """An index that no longer has some wheels."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks

    def size(self, wheel: LockedWheel) -> int:
        return wheel.size

    def tail(self, wheel: LockedWheel, _: int) -> bytes | None:
        if wheel.name in self.lacks:
            raise NotListed(f"{wheel.filename}: the index no longer has this file", hint="a vault")
        if wheel.name == "jinja2":
            raise BuildFailed("HTTP 503 Service Unavailable")
        return None

    def fetch(self, wheel: LockedWheel, *_: object, **__: object) -> None:
        self.tail(wheel, 1)
        raise Cancelled


def test_all_missing_wheels_are_named_in_one_error(tmp_path: Path) -> None:
    plan, store = planned_cell(small_wheels(tmp_path)), Store(tmp_path / "cache")
    first = NotListed("torch: missing", hint="a vault")
    found = all_missing(plan, store, WithoutSome("torch", "sympy"), first)

    lines = found.message.splitlines()
    assert lines[0] == "2 of 5 wheels were not found"
    assert sorted(line.partition("-")[0] for line in lines[1:]) == ["sympy", "torch"]
    assert (found.exit_code, found.hint) == (6, "a vault")
    assert all_missing(plan, store, WithoutSome("torch"), first) is first


def test_a_build_names_them_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, store = planned_cell(small_wheels(tmp_path)), Store(tmp_path / "cache")
    put_base(plan.locked.base, store)
    monkeypatch.setattr(sys.modules[build.__module__], "plan_locked", lambda *_: plan)
    environment = Environment(store=store, fetcher=WithoutSome("torch", "triton", "sympy"), observer=Silent())
    known = facts.load()
    with (
        interpreter(),
        in_this_process(),
        pytest.raises(NotListed, match="3 of 5 wheels were not found"),
    ):
        build(
            plan.locked,
            matrix.read(ROOT / "matrix.yaml", known),
            known,
            tmp_path / "dist",
            environment,
            options=BuildOptions(),
        )
    assert not (tmp_path / "dist/index.json").exists()


def test_a_copy_from_a_vault_can_be_cancelled(index: Unlisting, tmp_path: Path) -> None:
    """After the first piece, nothing more is read, and the index is not asked."""
    wheel = index.add("1.0")
    data = index.files[f"{PREFIX}{wheel.path}"]
    vault = FolderVault(tmp_path / "vault")
    (tmp_path / "file").write_bytes(data)
    vault.put(Digest(f"sha256:{wheel.sha256}"), wheel.size, tmp_path / "file")
    pieces: list[int] = []
    fetcher = VaultFetcher((vault,), WithoutSome("demo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "_PIECE", 100)
        fetcher.fetch(wheel, tmp_path / "x", on_progress=pieces.append, cancelled=lambda: bool(pieces))

    assert pieces == [100] < [wheel.size]


@pytest.mark.parametrize("vaults", [0, 1])
def test_an_invalid_wheel_keeps_its_error(index: Unlisting, tmp_path: Path, vaults: int) -> None:
    """The index's error is raised as it is; its message then names each vault that lacks the wheel."""
    wheel = index.add("1.0")
    vault = FolderVault(tmp_path / "vault")

    class Wrong(WithoutSome):
        def fetch(self, wheel: LockedWheel, *_: object, **__: object) -> None:
            raise BadWheel(wheel.filename, "too long")

    with pytest.raises(BadWheel) as caught:
        VaultFetcher((vault,) * vaults, Wrong()).fetch(
            wheel, tmp_path / "x", on_progress=lambda _: None, cancelled=lambda: False
        )

    reasons = [f"  {vault.name}: not there"] * vaults
    assert caught.value.message.split("\n") == [f"{wheel.filename}: too long", *reasons]


def test_files_with_other_paths_give_no_prefix(index: Unlisting) -> None:
    """The page lists only files with paths of no known layout: one place is asked, not one for each file."""
    wheel = index.add("1.0")
    index.unlist(wheel)
    for version in ("2.0", "3.0", "4.0"):
        other = index.add(version)
        data = index.files.pop(f"{PREFIX}{other.path}")
        index.unlist(other)
        index.files[f"/files/{other.filename}"] = data
        index.listed.append(f"/files/{other.filename}")
    asked: list[str] = []
    answer = index.answer
    index.answer = lambda path: asked.append(path) or answer(path)  # type: ignore[method-assign,func-returns-value]

    with pytest.raises(BuildFailed, match="does not serve"):
        fetched(index, wheel)
    assert [path for path in asked if path.endswith(wheel.path or "?")] == [wheel.path]
