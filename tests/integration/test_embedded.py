"""Complete builds of a small image by the embedded engine: repeated, slow, concurrent, and with faults."""

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
from tests.pool_worker import no_workers
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import write_wheel
from torchkiln.engine.known import forecast
from torchkiln.engine.wheel_layers import Job, Scheduler
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.oci.validate.validate import validate
from torchkiln.store.store import Store
from torchkiln.wheel.source import Cancelled

__all__ = ["no_workers"]  # only the processes of `TOGETHER` start workers

SITE = f"opt/venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    return small_wheels(tmp_path / "wheels")


def blobs(cache: Path) -> int:
    return sum(1 for _ in (cache / "blobs" / "sha256").iterdir())


def leftovers(cache: Path) -> list[str]:
    return [str(path) for path in (cache / "tmp").rglob("*") if path.is_file()]


def test_a_build_and_the_next(wheels: list[Path], tmp_path: Path) -> None:
    """Each wheel is downloaded and each layer made once; the layout is valid; a second build reuses all."""
    cell, index, cache = planned_cell(wheels), FakeIndex(wheels), tmp_path / "cache"
    before = forecast(cell, Store(cache))
    first = build(cell, cache, tmp_path / "layout", index)
    second = build(cell, cache, tmp_path / "layout", index)

    titles = [layer.title for layer in first.image.layers]
    assert titles[:3] == ["triton 1.0", "torch 1.0", "dependencies: jinja2 1.0, networkx 1.0, sympy 1.0"]
    assert sorted(index.fetched) == sorted(wheel.name for wheel in wheels)
    assert (before["downloads"], forecast(cell, Store(cache))["downloads"]) == (5, 0)
    assert first.reused == (titles[3], titles[4])  # base and overlay
    assert second.reused == tuple(titles)
    assert second.image == first.image
    assert validate(tmp_path / "layout") == ()
    assert leftovers(cache) == []


def test_content_of_the_layers(wheels: list[Path], tmp_path: Path) -> None:
    """Three wheels in a layer, each complete: code, byte-code, launcher, metadata."""
    cache = tmp_path / "cache"
    built = build(planned_cell(wheels), cache, tmp_path / "layout", FakeIndex(wheels))
    tree = tree_of_layer(Store(cache).blob(built.image.layers[2].blob.digest).read_bytes())

    for name in ("jinja2", "networkx", "sympy"):
        tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
        assert tree[f"{SITE}/{name}/__init__.py"].data.endswith(f"# {name}\n".encode())
        assert f"{SITE}/{name}/__pycache__/__init__.{tag}.pyc" in tree
        assert tree[f"opt/venv/bin/{name}"].mode == 0o755
        assert tree[f"{SITE}/{name}-1.0.dist-info/INSTALLER"].data == b"torchkiln\n"


def test_the_same_digest_in_every_situation(wheels: list[Path], tmp_path: Path) -> None:
    """Cold caches, a server without ranges, a slow server, cached wheels: the same manifest."""
    cell = planned_cell(wheels)
    ways = {
        "plain": FakeIndex(wheels),
        "no ranges": FakeIndex(wheels, ranges=False),
        "slow": FakeIndex(wheels, piece=20_000, pause=0.01),
    }
    found = {
        case: build(cell, tmp_path / case, tmp_path / f"{case} layout", index).image.manifest
        for case, index in ways.items()
    }
    there = Store(tmp_path / "there")
    for wheel in wheels:
        place = there.wheel(locked_wheel(wheel))
        place.parent.mkdir(parents=True)
        place.write_bytes(wheel.read_bytes())
    empty_index = FakeIndex([])
    found["there"] = build(cell, there.root, tmp_path / "layout", empty_index).image.manifest

    assert len(set(found.values())) == 1, found
    assert empty_index.fetched == []


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


def test_two_concurrent_builds_do_the_work_once(wheels: list[Path], tmp_path: Path) -> None:
    """Two processes share a cache: one of them downloads each wheel, and one of them makes each layer."""
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
    results = [json.loads(process.communicate()[0]) for process in running]

    assert [process.returncode for process in running] == [0, 0]
    assert results[0]["digest"] == results[1]["digest"]
    assert sorted(results[0]["fetched"] + results[1]["fetched"]) == sorted(wheel.name for wheel in wheels)
    assert (
        len(results[0]["reused"]) + len(results[1]["reused"]) == 2 + 5
    )  # both builds reuse base and overlay; one of them reuses each other layer
    assert leftovers(tmp_path / "cache") == []


def test_a_failed_download_cancels_the_others_and_the_next_run_resumes(
    wheels: list[Path], tmp_path: Path
) -> None:
    """The message is that of the failed download. The next run does not request bytes that were received."""
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


@pytest.mark.parametrize("name", ["torch", "sympy"])
def test_any_download_can_fail(name: str, wheels: list[Path], tmp_path: Path) -> None:
    """The message is that of the failed download, whether it is big or small, first or last."""
    broken = {wheel.name: f"no {name}" for wheel in wheels if wheel.name.startswith(name)}
    lost = FakeIndex(wheels, piece=100, pause=0.0001, broken=broken)
    with pytest.raises(BuildFailed, match=f"^no {name}$"):
        build(planned_cell(wheels), tmp_path / "cache", tmp_path / "layout", lost)
    assert leftovers(tmp_path / "cache") == []


def test_the_cause_is_reported_even_if_it_fails_last(
    wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled jobs may end before the failed one: their errors are not the cause."""
    cancelled: list[Cancelled] = []
    made = Scheduler._make

    def slow_to_fail(self: Scheduler, slot: int, job: Job, out: Path) -> Blob:
        try:
            return made(self, slot, job, out)
        except BuildFailed:
            self._cancelled.set()
            while len(cancelled) < 2:
                time.sleep(0.01)
            time.sleep(0.3)
            raise
        except Cancelled as error:
            cancelled.append(error)
            raise

    monkeypatch.setattr(Scheduler, "_make", slow_to_fail)
    lost = FakeIndex(wheels, piece=200, pause=0.01, broken={"sympy-1.0-py3-none-any.whl": "no sympy"})
    with pytest.raises(BuildFailed, match=r"^no sympy$"):
        build(planned_cell(wheels), tmp_path / "cache", tmp_path / "layout", lost)
    assert len(cancelled) == 2


@pytest.mark.parametrize(
    ("name", "part"), [("torch", ""), ("jinja2", ".part")], ids=["in the cache", "arrived before"]
)
def test_a_damaged_cached_wheel_is_downloaded_again(
    name: str, part: str, wheels: list[Path], tmp_path: Path
) -> None:
    """The disk has damaged the wheel, not the server. So the same run downloads it again."""
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


def test_a_server_with_wrong_bytes_gets_only_one_more_request(wheels: list[Path], tmp_path: Path) -> None:
    """If the copies of cache and server are both wrong, the build fails and stores nothing."""
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
        "smuggled member",
        "bomb",
        "record with a wrong hash",
        "truncated in a stream",
        "two central directories",
    ],
)
@pytest.mark.parametrize("ranges", [True, False], ids=["arriving", "complete"])
def test_nothing_of_a_bad_wheel_is_stored(
    kind: str, wheels: list[Path], tmp_path: Path, *, ranges: bool
) -> None:
    """The wheel's hash matches the lock. The build names and refuses the wheel, and stores nothing."""
    valid = write_wheel(SPEC, tmp_path / "valid")
    bad = tmp_path / "bad" / valid.name
    bad.parent.mkdir()
    bad.write_bytes(KINDS[kind].make(valid))
    cache = tmp_path / "cache"
    cell = planned_cell([bad])

    with pytest.raises(BadWheel, match=f"^{valid.name}: .*({KINDS[kind].reason})"):
        build(cell, cache, tmp_path / "layout", FakeIndex([bad], ranges=ranges))

    assert [path for path in (cache / "wheels").rglob("*") if path.is_file()] == []
    assert leftovers(cache) == []
    assert blobs(cache) == 2  # base and overlay
    assert not (tmp_path / "layout").exists()


def test_wrong_bytes_of_a_wheel(wheels: list[Path], tmp_path: Path) -> None:
    """The server sends another valid wheel of the same size. The message shows both hashes."""
    (torch,) = (wheel for wheel in wheels if wheel.name.startswith("torch"))
    cell = planned_cell(wheels)
    index = FakeIndex(wheels)
    data = torch.read_bytes()
    index.files[torch.name] = data[:12] + bytes([data[12] ^ 1]) + data[13:]  # a time stamp, which is not read

    with pytest.raises(
        BadWheel,
        match=f"^{torch.name}: hash mismatch: the lock has sha256:[0-9a-f]{{64}},"
        " the downloaded file has sha256:[0-9a-f]{64}$",
    ):
        build(cell, tmp_path / "cache", tmp_path / "layout", index)
    assert list((tmp_path / "cache").glob("wheels/*/torch*")) == []
    build(cell, tmp_path / "cache", tmp_path / "layout", FakeIndex(wheels))


def test_a_layer_that_differs_from_the_recorded_one(wheels: list[Path], tmp_path: Path) -> None:
    """The build checks the recorded layers of a lock."""
    built = build(planned_cell(wheels), tmp_path / "cache", tmp_path / "layout", FakeIndex(wheels))
    recorded = built.image.layers
    empty_index = FakeIndex([])
    build(planned_cell(wheels, recorded), tmp_path / "cache", tmp_path / "layout2", empty_index)
    blob = replace(recorded[1].blob, digest=Digest("sha256:" + "0" * 64))
    wrong = (recorded[0], replace(recorded[1], blob=blob), *recorded[2:])
    with pytest.raises(BuildFailed, match=r"^layer 'torch 1.0': expected sha256:0{64} .*, got sha256:"):
        build(planned_cell(wheels, wrong), tmp_path / "cache", tmp_path / "layout3", empty_index)
    assert not (tmp_path / "layout3").exists()


def test_layers_do_not_conflict(wheels: list[Path], tmp_path: Path) -> None:
    """Two layers share only folders, which are identical."""
    cache = tmp_path / "cache"
    image = build(planned_cell(wheels), cache, tmp_path / "layout", FakeIndex(wheels)).image
    entries: dict[str, tuple[bytes, int]] = {}
    for layer in image.layers[:3]:
        with tarfile.open(Store(cache).blob(layer.blob.digest), "r:gz") as tar:
            for member in tar:
                kind = (member.type, member.mode)
                assert entries.setdefault(member.name, kind) == kind
