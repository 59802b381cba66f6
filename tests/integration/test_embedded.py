"""A whole build by the embedded engine, in small: once, twice, slowly, in company, and with faults."""

import json
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cells import build, planned_cell, small_wheels
from tests.hostile import KINDS, SPEC
from tests.layers import tree_of_layer
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import write_wheel
from torchkiln.build.known import forecast
from torchkiln.build.scheduler import Job, Scheduler
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci.validate.validate import validate
from torchkiln.store.store import Store
from torchkiln.wheel.source import Cancelled

SITE = f"opt/venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return small_wheels(tmp_path / "wheels")


def blobs(cache: Path) -> int:
    return sum(1 for _ in (cache / "blobs" / "sha256").iterdir())


def leftovers(cache: Path) -> list[str]:
    return [str(path) for path in (cache / "tmp").rglob("*") if path.is_file()]


def test_a_build_and_the_next(wheels: list[Path], tmp_path: Path) -> None:
    """Each wheel comes once, each layer is made once, the layout is sound; again, nothing is done."""
    cell, index, cache = planned_cell(wheels), FakeIndex(wheels), tmp_path / "cache"
    before = forecast(cell, Store(cache))
    first = build(cell, cache, tmp_path / "layout", index)
    second = build(cell, cache, tmp_path / "layout", index)

    titles = [layer.title for layer in first.image.layers]
    assert titles[1:4] == ["triton 1.0", "torch 1.0", "dependencies: jinja2 1.0, networkx 1.0, sympy 1.0"]
    assert sorted(index.fetched) == sorted(wheel.name for wheel in wheels)
    assert (before["downloads"], forecast(cell, Store(cache))["downloads"]) == (5, 0)
    assert first.reused == (titles[0], titles[4])
    assert second.reused == tuple(titles)
    assert second.image == first.image
    assert validate(tmp_path / "layout") == ()
    assert leftovers(cache) == []


def test_what_is_in_the_layers(wheels: list[Path], tmp_path: Path) -> None:
    """Three wheels in one layer, each whole: code, byte-code, launcher, metadata."""
    cache = tmp_path / "cache"
    built = build(planned_cell(wheels), cache, tmp_path / "layout", FakeIndex(wheels))
    tree = tree_of_layer(Store(cache).blob(built.image.layers[3].blob.digest).read_bytes())

    for name in ("jinja2", "networkx", "sympy"):
        tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
        assert tree[f"{SITE}/{name}/__init__.py"].data.endswith(f"# {name}\n".encode())
        assert f"{SITE}/{name}/__pycache__/__init__.{tag}.pyc" in tree
        assert tree[f"opt/venv/bin/{name}"].mode == 0o755
        assert tree[f"{SITE}/{name}-1.0.dist-info/INSTALLER"].data == b"torchkiln\n"


def test_the_same_digest_by_every_way(wheels: list[Path], tmp_path: Path) -> None:
    """Cold caches, a server without ranges, bytes that trickle in, wheels that are there: one manifest."""
    cell = planned_cell(wheels)
    ways = {
        "plain": FakeIndex(wheels),
        "no ranges": FakeIndex(wheels, ranges=False),
        "slow": FakeIndex(wheels, piece=20_000, pause=0.01),
    }
    found = {
        way: build(cell, tmp_path / way, tmp_path / f"{way} layout", index).image.manifest
        for way, index in ways.items()
    }
    there = Store(tmp_path / "there")
    for wheel in wheels:
        place = there.wheel(locked_wheel(wheel))
        place.parent.mkdir(parents=True)
        place.write_bytes(wheel.read_bytes())
    nobody = FakeIndex([])
    found["there"] = build(cell, there.root, tmp_path / "layout", nobody).image.manifest

    assert len(set(found.values())) == 1, found
    assert nobody.fetched == []


TOGETHER = """
import json, sys
from pathlib import Path
from tests.cells import build, planned_cell
from tests.unpublished import FakeIndex
if __name__ == "__main__":
    folder, layout = Path(sys.argv[1]), Path(sys.argv[2])
    wheels = sorted((folder / "wheels").glob("*.whl"))
    index = FakeIndex(wheels, piece=30_000, pause=0.03)
    built = build(planned_cell(wheels), folder / "cache", layout, index)
    print(json.dumps({"digest": built.image.manifest, "fetched": index.fetched, "reused": built.reused}))
"""


def test_two_builds_at_once_do_the_work_once(wheels: list[Path], tmp_path: Path) -> None:
    """Two processes, one cache: every wheel comes once, every layer is made by one of them."""
    script = tmp_path / "together.py"
    script.write_text(TOGETHER)
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(tmp_path / name)],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        )
        for name in ("one", "two")
    ]
    told = [json.loads(process.communicate()[0]) for process in running]

    assert [process.returncode for process in running] == [0, 0]
    assert told[0]["digest"] == told[1]["digest"]
    assert sorted(told[0]["fetched"] + told[1]["fetched"]) == sorted(wheel.name for wheel in wheels)
    assert (
        len(told[0]["reused"]) + len(told[1]["reused"]) == 2 + 5
    )  # base and overlay twice, each other layer once
    assert leftovers(tmp_path / "cache") == []


def test_a_lost_download_calls_off_the_rest_and_the_next_run_goes_on(
    wheels: list[Path], tmp_path: Path
) -> None:
    """The error is the download's, not of those who heard of it; what came is not asked for again."""
    cell, cache = planned_cell(wheels), tmp_path / "cache"
    (torch,) = (wheel for wheel in wheels if wheel.name.startswith("torch"))
    lost = FakeIndex(wheels, piece=10_000, pause=0.005, broken={torch.name: "the line went dead"})

    with pytest.raises(BuildFailed, match="the line went dead"):
        build(cell, cache, tmp_path / "layout", lost)
    (part,) = cache.glob("wheels/*/torch-*.part")
    have = part.stat().st_size
    assert torch.stat().st_size // 2 <= have < torch.stat().st_size
    assert leftovers(cache) == []
    assert not (tmp_path / "layout").exists()

    index = FakeIndex(wheels)
    image = build(cell, cache, tmp_path / "layout", index).image
    assert index.sent[torch.name] == torch.stat().st_size - have
    assert (
        image.manifest
        == build(cell, tmp_path / "other", tmp_path / "layout2", FakeIndex(wheels)).image.manifest
    )


@pytest.mark.parametrize("name", ["torch", "triton", "jinja2", "sympy"])
def test_whichever_download_is_lost(name: str, wheels: list[Path], tmp_path: Path) -> None:
    """Big or small, first or last: its own error is told."""
    broken = {wheel.name: f"no {name}" for wheel in wheels if wheel.name.startswith(name)}
    lost = FakeIndex(wheels, piece=100, pause=0.0001, broken=broken)
    with pytest.raises(BuildFailed, match=f"^no {name}$"):
        build(planned_cell(wheels), tmp_path / "cache", tmp_path / "layout", lost)
    assert leftovers(tmp_path / "cache") == []


def test_the_cause_is_told_even_if_it_comes_last(
    wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was called off may end before the one at fault does: that is no answer yet."""
    others: list[Cancelled] = []
    made = Scheduler._make

    def slow_to_fail(self: Scheduler, slot: int, job: Job, out: Path) -> Blob:
        try:
            return made(self, slot, job, out)
        except BuildFailed:
            self._cancelled.set()
            while len(others) < 2:
                time.sleep(0.01)
            time.sleep(0.3)
            raise
        except Cancelled as error:
            others.append(error)
            raise

    monkeypatch.setattr(Scheduler, "_make", slow_to_fail)
    lost = FakeIndex(wheels, piece=200, pause=0.01, broken={"sympy-1.0-py3-none-any.whl": "no sympy"})
    with pytest.raises(BuildFailed, match=r"^no sympy$"):
        build(planned_cell(wheels), tmp_path / "cache", tmp_path / "layout", lost)
    assert len(others) == 2


@pytest.mark.parametrize("name", ["torch", "jinja2"])
@pytest.mark.parametrize("part", ["", ".part"], ids=["in the cache", "arrived before"])
def test_a_damaged_wheel_of_an_earlier_run_is_fetched_again(
    name: str, part: str, wheels: list[Path], tmp_path: Path
) -> None:
    """What the disk made of it is not the server's fault, so it is asked once more, in the same run."""
    (damaged,) = (wheel for wheel in wheels if wheel.name.startswith(name))
    store, cell, index = Store(tmp_path / "cache"), planned_cell(wheels), FakeIndex(wheels)
    place = store.wheel(locked_wheel(damaged))
    place.parent.mkdir(parents=True)
    place.with_name(place.name + part).write_bytes(damaged.read_bytes()[:-1] + b"!")

    image = build(cell, store.root, tmp_path / "layout", index).image
    assert index.sent[damaged.name] == damaged.stat().st_size
    assert place.read_bytes() == damaged.read_bytes()
    fresh = build(cell, tmp_path / "other", tmp_path / "layout2", FakeIndex(wheels)).image
    assert image.manifest == fresh.manifest


def test_a_server_with_other_bytes_is_asked_once_more_and_no_oftener(
    wheels: list[Path], tmp_path: Path
) -> None:
    """The cache's copy was bad, and so is the server's: refused, and nothing kept."""
    (torch,) = (wheel for wheel in wheels if wheel.name.startswith("torch"))
    store, cell = Store(tmp_path / "cache"), planned_cell(wheels)
    place = store.wheel(locked_wheel(torch))
    place.parent.mkdir(parents=True)
    place.write_bytes(torch.read_bytes()[:-1] + b"!")
    torch.write_bytes(torch.read_bytes()[:-1] + b"?")

    with pytest.raises(BadWheel, match=f"^{torch.name}: "):
        build(cell, store.root, tmp_path / "layout", FakeIndex(wheels))
    assert [path for path in (store.root / "wheels").rglob("torch*") if path.is_file()] == []


@pytest.mark.parametrize(
    "kind",
    [
        *("smuggled member", "traversal", "bomb", "record lies on a hash", "cut in a stream"),
        *("stream runs on", "bomb by ratio", "WHEEL: Windows", "over python", "two directories"),
    ],
)
@pytest.mark.parametrize("ranges", [True, False], ids=["arriving", "complete"])
def test_nothing_is_kept_of_a_bad_wheel(
    kind: str, wheels: list[Path], tmp_path: Path, *, ranges: bool
) -> None:
    """Locked as it is, so its hash holds: refused by name; neither layer nor file is in the store."""
    honest = write_wheel(SPEC, tmp_path / "honest")
    bad = tmp_path / "bad" / honest.name
    bad.parent.mkdir()
    bad.write_bytes(KINDS[kind].make(honest))
    cache = tmp_path / "cache"
    cell = planned_cell([bad])

    with pytest.raises(BadWheel, match=f"^{honest.name}: .*({KINDS[kind].reason})"):
        build(cell, cache, tmp_path / "layout", FakeIndex([bad], ranges=ranges))

    assert [path for path in (cache / "wheels").rglob("*") if path.is_file()] == []
    assert leftovers(cache) == []
    assert blobs(cache) == 2  # base and overlay
    assert not (tmp_path / "layout").exists()


def test_other_bytes_than_the_locked_ones(wheels: list[Path], tmp_path: Path) -> None:
    """A sound wheel of the right size, but another: both hashes are told; the next run asks for all of it."""
    (torch,) = (wheel for wheel in wheels if wheel.name.startswith("torch"))
    cell = planned_cell(wheels)
    index = FakeIndex(wheels)
    data = torch.read_bytes()
    index.files[torch.name] = data[:12] + bytes([data[12] ^ 1]) + data[13:]  # a time stamp: nobody reads it

    with pytest.raises(
        BadWheel,
        match=f"^{torch.name}: hash mismatch: the lock has sha256:[0-9a-f]{{64}},"
        " the downloaded file has sha256:[0-9a-f]{64}$",
    ):
        build(cell, tmp_path / "cache", tmp_path / "layout", index)
    assert list((tmp_path / "cache").glob("wheels/*/torch*")) == []
    build(cell, tmp_path / "cache", tmp_path / "layout", FakeIndex(wheels))


def test_a_layer_that_is_not_the_recorded_one(wheels: list[Path], tmp_path: Path) -> None:
    """A lock with recorded layers holds the build to them."""
    built = build(planned_cell(wheels), tmp_path / "cache", tmp_path / "layout", FakeIndex(wheels))
    recorded = built.image.layers
    nobody = FakeIndex([])
    build(planned_cell(wheels, recorded), tmp_path / "cache", tmp_path / "layout2", nobody)
    blob = replace(recorded[2].blob, digest=Digest("sha256:" + "0" * 64))
    wrong = (*recorded[:2], replace(recorded[2], blob=blob), *recorded[3:])
    with pytest.raises(BuildFailed, match=r"^layer 'torch 1.0': expected sha256:0{64} .*, got sha256:"):
        build(planned_cell(wheels, wrong), tmp_path / "cache", tmp_path / "layout3", nobody)
    assert not (tmp_path / "layout3").exists()


def test_layers_lie_over_each_other_without_trouble(wheels: list[Path], tmp_path: Path) -> None:
    """What two layers both have is the folders, and these are the same in both."""
    cache = tmp_path / "cache"
    image = build(planned_cell(wheels), cache, tmp_path / "layout", FakeIndex(wheels)).image
    seen: dict[str, tuple[bytes, int]] = {}
    for layer in image.layers[1:4]:
        with tarfile.open(Store(cache).blob(layer.blob.digest), "r:gz") as tar:
            for member in tar:
                kind = (member.type, member.mode)
                assert seen.setdefault(member.name, kind) == kind
