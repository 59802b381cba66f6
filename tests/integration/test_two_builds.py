"""Several builds and `prune` share a cache: no work is done twice, and the images are correct."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cells import small_wheels
from tests.company import build
from tests.company import start as program
from tests.unpublished import FakeIndex
from torchkiln.oci.layout import open_layout
from torchkiln.oci.validate.validate import validate
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof  # a minute of builds

ALL = ("torch", "triton", "jinja2", "networkx", "sympy")


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return small_wheels(tmp_path / "wheels")


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Builds in separate processes, stopped at the end of the test."""
    running = []

    def started(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        running.append(program(*args, **options))
        return running[-1]

    yield started
    for process in running:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for a build; returns its result, and its stderr under the key "stderr"."""
    out, stderr = process.communicate()
    assert process.returncode == 0, stderr.decode()
    return {**json.loads(out), "stderr": stderr.decode()}


def expected(wheels: list[Path], names: tuple[str, ...], folder: Path) -> str:
    """The digest of a build that runs alone."""
    chosen = [wheel for wheel in wheels if wheel.name.split("-")[0] in names]
    alone = build(chosen, folder / "alone", folder / "alone layout", FakeIndex(chosen))
    shutil.rmtree(folder / "alone")
    shutil.rmtree(folder / "alone layout")
    return alone.image.manifest


def test_one_cell_into_two_layouts(start: Start, wheels: list[Path], tmp_path: Path) -> None:
    """Each wheel is downloaded once, each layer is made once, both have the same image."""
    results = [
        ended(process) for process in [start(tmp_path, tmp_path / name, "t", ALL) for name in ("one", "two")]
    ]

    assert {result["digest"] for result in results} == {expected(wheels, ALL, tmp_path)}
    assert sorted(results[0]["fetched"] + results[1]["fetched"]) == sorted(wheel.name for wheel in wheels)
    assert len(results[0]["reused"]) + len(results[1]["reused"]) == 2 + 5  # base and overlay twice
    assert validate(tmp_path / "one") == validate(tmp_path / "two") == ()


def test_two_tags_into_one_layout(start: Start, wheels: list[Path], tmp_path: Path) -> None:
    """The common wheels of two cells are downloaded once, and the layout has both tags."""
    cells = {"a": ("torch", "triton", "jinja2", "sympy"), "b": ("torch", "triton", "networkx", "sympy")}
    running = {ref: start(tmp_path, tmp_path / "layout", ref, names) for ref, names in cells.items()}
    results = {ref: ended(process) for ref, process in running.items()}

    fetched = results["a"]["fetched"] + results["b"]["fetched"]
    assert sorted(fetched) == sorted(wheel.name for wheel in wheels)
    for ref, names in cells.items():
        assert results[ref]["digest"] == expected(wheels, names, tmp_path)
    assert dict(open_layout(tmp_path / "layout").refs()) == {ref: results[ref]["digest"] for ref in cells}
    assert validate(tmp_path / "layout") == ()


def test_different_layers_with_a_wheel_in_common(start: Start, wheels: list[Path], tmp_path: Path) -> None:
    """Both builds need the wheel of sympy at the same time. It is downloaded once."""
    cells = {"a": ("jinja2", "sympy"), "b": ("networkx", "sympy")}
    running = {ref: start(tmp_path, tmp_path / ref, ref, names, piece=20) for ref, names in cells.items()}
    results = {ref: ended(process) for ref, process in running.items()}

    fetched = results["a"]["fetched"] + results["b"]["fetched"]
    assert sorted(name.split("-")[0] for name in fetched) == ["jinja2", "networkx", "sympy"]
    for ref, names in cells.items():
        assert results[ref]["digest"] == expected(wheels, names, tmp_path)


def test_the_second_continues_when_the_first_is_killed(
    start: Start, wheels: list[Path], tmp_path: Path
) -> None:
    """The second build names the process for which it waits. When this is killed, it continues the work."""
    first = start(tmp_path, tmp_path / "one", "t", ALL)
    while not list((tmp_path / "cache").glob("wheels/*/torch-*.part")):
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGSTOP)  # so that it cannot finish before the second build starts
    second = start(tmp_path, tmp_path / "two", "t", ALL)
    assert second.stderr
    line = second.stderr.readline().decode()
    assert f"waiting for process {first.pid} (since " in line
    assert "), which makes layer " in line
    assert not (tmp_path / "two").exists()
    first.kill()
    first.communicate()

    results = ended(second)
    assert results["digest"] == expected(wheels, ALL, tmp_path)
    assert validate(tmp_path / "two") == ()
    build(wheels, tmp_path / "cache", tmp_path / "two", FakeIndex([]))
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []
    assert list((tmp_path / "cache" / "claims").iterdir()) == []


PRUNE = """
import sys
from pathlib import Path
from torchkiln.cache.prune import PrunePolicy, prune
from torchkiln.store.store import Store
from torchkiln.cache.usage import cache_usage
folder = Path(sys.argv[1])
store, turns, gone = Store(folder / "cache"), 0, 0
while not (folder / "enough").exists():
    usage = lambda: cache_usage(store, (), folder / "none")
    gone += len(prune(store, usage, PrunePolicy(max_size=0)).gone)
    turns += 1
print(turns, gone)
"""


def test_prune_beside_builds(wheels: list[Path], tmp_path: Path) -> None:
    """`prune --max-size 0` runs repeatedly; every build succeeds with a correct, complete image."""
    right = expected(wheels, ALL, tmp_path)
    pruning = subprocess.Popen(
        [sys.executable, "-c", PRUNE, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    try:
        for turn in range(6):
            layout = tmp_path / f"layout {turn % 3}"
            if turn >= 3:
                shutil.rmtree(layout)  # now its blobs are unused
            index = FakeIndex(wheels, piece=50_000, pause=0.005)
            assert build(wheels, tmp_path / "cache", layout, index).image.manifest == right
            assert validate(layout) == ()
    finally:
        (tmp_path / "enough").touch()
        out, errors = pruning.communicate()
    assert pruning.returncode == 0, errors.decode()
    turns, removed = map(int, out.split())
    assert turns > 6
    assert removed > 5  # wheels at least
