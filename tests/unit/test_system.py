"""Which base and tools a build uses: the locked ones or replacements; and the errors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.planned import LOCK_DIGEST, locked
from tests.roots import entry, tar_of
from tests.unit.test_base_artefact import Archive as ArchiveOfBases
from tests.unit.test_base_artefact import a_base, a_store, blob_of, packages
from tests.unit.test_tools import devel
from torchkiln.base import artefact, tools
from torchkiln.base.on_top import pins
from torchkiln.engine.environment import Environment
from torchkiln.engine.prerequisites import BaseSources, provide, ready
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.lock import LockedBase, LockedCell, LockedTools, LockedWheel
from torchkiln.model.plan import ImagePlan
from torchkiln.model.progress import Silent
from torchkiln.plan.plan import plan
from torchkiln.store.store import Store

__all__ = ["a_store"]

STATUS = "Package: {}\nStatus: install ok installed\nVersion: {}\n\n"


def tools_tar(base: LockedBase, cmake: str) -> bytes:
    """A layer of tools on *base*, whose dpkg status has one more package."""
    there = [*base.packages, *packages(cmake=cmake)]
    status = "".join(STATUS.format(package.name, package.version) for package in there)
    return tar_of([entry("var/lib/dpkg/status", status.encode()), entry("usr/bin/cmake", b"cmake")])


def some_tools(base: LockedBase, store: Store | None, cmake: str = "3.25") -> LockedTools:
    """The lock entry of tools on *base*. Their blob is written to *store*."""
    blob = blob_of(tools_tar(base, cmake), store)
    return LockedTools(os=base.os, name="devel", base=base.digest, **blob, packages=packages(cmake=cmake))


@dataclass
class Archive(ArchiveOfBases):
    """It also builds tools."""

    cmake: str = "3.25"
    tools: int = 0

    def build_tools(self, _: str, __: object, base: LockedBase, store: Store, **___: object) -> LockedTools:
        self.tools += 1
        assert store.has_blob(base.digest, base.size)  # apt needs the base to install on
        return some_tools(base, store, self.cmake)


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> Archive:
    found = Archive()
    monkeypatch.setattr(artefact, "build", found.build)
    monkeypatch.setattr(tools, "build", found.build_tools)
    return found


def a_cell() -> LockedCell:
    """A devel lock without wheels, so that none is downloaded."""
    base = a_base(None)
    return replace(devel(), base=base, tools=some_tools(base, None), wheels=(), layers=())


def environment(store: Store, fetcher: Any = None) -> Environment:
    return Environment(store=store, fetcher=fetcher, observer=Silent(), environ={})


def found(locked: LockedCell, store: Store, **sources: Any) -> tuple[LockedCell, tuple[str, ...]]:
    return provide(planned(locked), environment(store), BaseSources(**sources))


def planned(locked: LockedCell) -> ImagePlan:
    return plan(locked, (), aliases=(), lock_digest=LOCK_DIGEST)


def test_base_and_tools_of_the_cache_are_used(store: Store, archive: Archive) -> None:
    """A runtime image needs no tools."""
    base, runtime = a_base(store), replace(a_cell(), tools=None)
    assert found(runtime, store) == (runtime, ())
    some_tools(base, store)

    assert found(a_cell(), store) == (a_cell(), ())
    assert (archive.bases, archive.tools) == (0, 0)


def test_the_archive_may_still_have_both(store: Store, archive: Archive) -> None:
    assert found(a_cell(), store, locked_only=True) == (a_cell(), ())
    assert (archive.bases, archive.tools) == (1, 1)


def test_newer_tools_are_used_and_named(store: Store, archive: Archive) -> None:
    a_base(store)
    archive.cmake = "3.31"

    first, again = found(a_cell(), store), found(a_cell(), store)

    assert first == again
    assert first[1] == ("cmake 3.25 → 3.31",)
    assert first[0].tools == some_tools(a_base(None), None, "3.31")
    assert archive.tools == 1


def test_with_locked_only_newer_tools_are_an_error(store: Store, archive: Archive) -> None:
    a_base(store)
    archive.cmake = "3.31"

    reason = r"the layer of tools devel of debian12 does not match the lock .*\n  cmake 3\.25 → 3\.31"
    with pytest.raises(BuildFailed, match=reason) as caught:
        found(a_cell(), store, locked_only=True)
    assert caught.value.exit_code == 6
    assert "--vault" in caught.value.hint
    assert "lock TAG --upgrade-base" in caught.value.hint


def test_on_another_base_tools_are_built_again_even_if_the_locked_are_cached(
    store: Store, archive: Archive
) -> None:
    """The dpkg status in the layer of tools contains the base's packages."""
    locked = a_cell()
    some_tools(a_base(None), store)
    archive.openssl = "3.0.19"

    now, moved = found(locked, store)

    assert now.base == a_base(None, "3.0.19")
    assert now.tools == some_tools(now.base, None)
    assert moved == ("openssl 3.0.18 → 3.0.19", "same packages, different bytes")
    assert found(locked, store) == (now, moved)
    assert (archive.bases, archive.tools) == (1, 1)


def test_the_lock_reads_back_and_an_invalid_one_is_named(tmp_path: Path) -> None:
    made = some_tools(a_base(None), None)
    path = artefact.write_lock(tmp_path, made)

    assert path == tmp_path / "base-debian12" / "devel.json"
    assert tools.read_lock(tmp_path, "debian12", "devel") == made
    assert tools.read_lock(tmp_path, "debian12", "devel-gcc11") is None
    assert artefact.read_lock(tmp_path, "debian12") is None
    path.write_text(path.read_text().replace(made.digest, "sha256:abc"))
    with pytest.raises(ConfigError, match=r"base-debian12/devel\.json: "):
        tools.read_lock(tmp_path, "debian12", "devel")


def test_each_package_of_the_base_is_pinned() -> None:
    assert pins(a_base(None).packages) == (
        "Package: openssl\nPin: version 3.0.18\nPin-Priority: 1001\n\n"
        "Package: python3.11-minimal\nPin: version 3.11.2-6+deb12u6\nPin-Priority: 1001\n"
    )


def test_a_build_plans_once_and_again_only_on_another_base(store: Store, archive: Archive) -> None:
    planned_on: list[LockedCell] = []

    def counted(locked: LockedCell) -> ImagePlan:
        planned_on.append(locked)
        return planned(locked)

    def plan_built(locked: LockedCell) -> tuple[ImagePlan, tuple[str, ...]]:
        planned_on.clear()
        with ready(locked, counted, environment(store), BaseSources(), what="tests") as found:
            return found

    assert plan_built(a_cell()) == (planned(a_cell()), ())
    assert planned_on == [a_cell()]

    archive.cmake = "3.31"
    store.blob(some_tools(a_base(None), None).digest).unlink()
    built, moved = plan_built(a_cell())
    assert planned_on == [a_cell(), built.locked]
    assert (built.layers[-2].title, moved) == (planned(a_cell()).layers[-2].title, ("cmake 3.25 → 3.31",))
    assert built.locked.tools == some_tools(a_base(None), None, "3.31")


@dataclass
class Index:
    """A fake index that records the requests; with `down`, each request fails."""

    down: bool = False
    requests: list[str] = field(default_factory=list)

    def size(self, wheel: LockedWheel) -> int:
        return self._answer(wheel, 1)

    def tail(self, wheel: LockedWheel, count: int) -> bytes:
        return b"x" * self._answer(wheel, count)

    def fetch(self, wheel: LockedWheel, *_: object, **__: object) -> None:
        """Not recorded: it runs while the base is built, so its order is random."""

    def _answer(self, wheel: LockedWheel, result: int) -> int:
        self.requests.append(wheel.name)
        if self.down:
            raise BuildFailed(f"{wheel.filename}: connection refused")
        return result


def with_wheels(*, unknown: bool = False) -> LockedCell:
    """A lock of the tests' base with wheels. With *unknown*, the size of torch's wheel is unknown."""
    cell = locked("2.7.1")
    wheels = [replace(each, size=0) if unknown and each.name == "torch" else each for each in cell.wheels]
    return replace(cell, base=a_base(None), tools=None, wheels=tuple(wheels), layers=())


def provided(cell: LockedCell, store: Store, index: Index) -> None:
    provide(planned(cell), environment(store, index), BaseSources())


def test_an_unreachable_index_is_noticed_before_the_base_is_built(store: Store, archive: Archive) -> None:
    """One request is sent to each index, for the smallest file."""
    index = Index(down=True)
    with pytest.raises(BuildFailed, match="connection refused"):
        provided(with_wheels(), store, index)

    assert archive.bases == 0
    assert index.requests == [min(with_wheels().wheels, key=lambda wheel: wheel.size).name]


def test_a_wheel_of_unknown_size_is_requested_too(store: Store, archive: Archive) -> None:
    """Nothing is requested if base or wheels are there."""
    index = Index()
    provided(with_wheels(unknown=True), store, index)
    assert (archive.bases, index.requests) == (1, ["torch"])

    index = Index(down=True)
    provided(with_wheels(), store, index)  # the base is in the cache now
    store.blob(a_base(None).digest).unlink()
    provided(replace(with_wheels(), wheels=()), store, index)  # nothing is missing but the base
    assert (archive.bases, index.requests) == (2, [])
