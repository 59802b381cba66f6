"""One matrix on several machines: make as the reference, caches that lie or are lost, two jobs at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.campaign.host import can_mount
from tests.layers import sha256
from tests.many_scene import LAYERS, Scene, a_scene, digests, made, needs_base, objects
from tests.servers.registry_server import RegistryServer
from torchkiln.jobs.graph import Job
from torchkiln.jobs.run import Outcome, run
from torchkiln.locks.lock import load_locked, save

__all__ = ["a_scene"]
pytestmark = needs_base


@pytest.fixture(autouse=True)
def no_fetched_wheels(many: Scene) -> None:
    many.server.sent.clear()


@pytest.fixture(params=["folder", pytest.param("registry", marks=pytest.mark.proof)], name="cache")
def a_cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "shared")
        return
    with RegistryServer() as server:
        yield f"oci://{server.host}/team/cache"


def both(cache: str) -> tuple[str, ...]:
    return ("--cache-from", cache, "--cache-to", cache)


def make(many: Scene, machine: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the Makefile of all cells on *machine*; jobs print JSON."""
    file = many.folder / f"{machine}.mk"
    file.write_text(many.plan("make", *words))
    program = " ".join(many.argv())
    argv = ["make", "-j2", "--keep-going", "-f", str(file), f"TORCHKILN=sh -c '{program} \"$$@\" --json' -"]
    return subprocess.run(argv, env=many.environ(machine), cwd=many.folder, capture_output=True, text=True)


def test_make_builds_what_one_machine_builds(many: Scene) -> None:
    """Each layer is made once, by the first image that needs it; a second run makes none."""
    first, second = make(many, "make"), make(many, "make")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert digests(first.stdout) == digests(second.stdout) == many.digests
    assert made(first.stdout) == {"made": LAYERS}
    assert made(second.stdout) == {"reused": LAYERS}
    assert max(Counter(many.fetched()).values()) == 1


def test_a_machine_takes_the_layers_of_others_from_a_cache(many: Scene, cache: str, tmp_path: Path) -> None:
    """The second machine downloads no wheel; the third finds all layers there, and copies none."""
    name = tmp_path.name
    assert made(make(many, f"{name}-a", *both(cache)).stdout) == {"made": LAYERS}
    many.server.sent.clear()

    for tag in many.tags:
        done = many.build(f"{name}-b", tag, "--cache-from", cache)
        assert digests(done.stdout) == {tag: many.digests[tag]}, done.stderr
    third = make(many, f"{name}-c", *both(cache))
    assert (made(third.stdout), digests(third.stdout)) == ({"there": LAYERS}, many.digests)
    assert many.fetched() == []


@pytest.mark.parametrize("fault", ["a flipped byte", "a link", "cut off"])
def test_a_lying_cache_is_named_and_not_used(many: Scene, tmp_path: Path, fault: str) -> None:
    """The layer is made again from its wheel; the image is the same."""
    cache, (tag, *_) = tmp_path / "shared", many.tags
    assert many.build("liar", tag, "--cache-to", str(cache)).returncode == 0
    (job,) = (job for job in many.jobs() if job["title"].startswith("torch ") and tag in job["arguments"])
    blob = cache / "blobs/sha256" / job["digest"].removeprefix("sha256:")
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.unlink()
    if fault == "a link":
        (tmp_path / "other").write_bytes(data)
        blob.symlink_to(tmp_path / "other")
    else:
        blob.write_bytes(data if fault == "a flipped byte" else data[:-1])
    many.server.sent.clear()

    done = many.build(tmp_path.name, tag, "--cache-from", str(cache))
    assert digests(done.stdout) == {tag: many.digests[tag]}, done.stderr
    assert [name.partition("-")[0] for name in many.fetched()] == ["torch"]
    warned = f"{cache}: {job['digest'][:19]}: checksum mismatch" in done.stderr
    assert warned == (fault != "a link"), done.stderr


def test_nothing_of_a_cache_is_believed_without_a_record(many: Scene, tmp_path: Path) -> None:
    """A lock without recorded layers: every layer is made here, whatever a cache names as its image."""
    cache, (tag, *_) = tmp_path / "shared", many.tags
    assert many.build("liar", tag, "--cache-to", str(cache)).returncode == 0
    images = shutil.copytree(many.images, tmp_path / "images")
    save(images, replace(load_locked(images, tag), layers=()))
    many.server.sent.clear()

    done = many.build(tmp_path.name, tag, "--cache-from", str(cache), "--images", str(images))
    assert digests(done.stdout) == {tag: many.digests[tag]}, done.stderr
    assert len(many.fetched()) == 6
    planned = many.jobs("--images", str(images), *both(str(cache)))
    assert len(planned) == LAYERS - 2 + 3  # torch and triton of this cell are made by its image's job


@pytest.mark.proof  # waits for retries
def test_a_lost_registry_is_named_and_the_layers_are_made(many: Scene, tmp_path: Path) -> None:
    with RegistryServer() as server:
        cache = f"oci://{server.host}/team/cache"
    tag = many.tags[0]

    done = many.build(tmp_path.name, tag, "--cache-from", cache)
    assert digests(done.stdout) == {tag: many.digests[tag]}, done.stderr
    assert "the layer is made here" in done.stderr
    assert many.build(tmp_path.name, tag, "--cache-to", cache).returncode == 9


def test_two_machines_with_the_same_key_at_once(many: Scene, cache: str, tmp_path: Path) -> None:
    """Both make the layer, and the cache has it once; two processes of one machine make it once."""
    (job,) = (job for job in many.jobs() if job["title"].startswith("dependencies"))
    command = (*job["arguments"], "--json", "--cache-to", cache)
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda machine: many.run(machine, *command), ("left", "right")))
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    assert {each["digest"] for one in done for each in objects(one.stdout)} == {job["digest"]}

    many.server.sent.clear()
    with ThreadPoolExecutor() as threads:
        done = list(threads.map(lambda _: many.run(tmp_path.name, *job["arguments"], "--json"), range(2)))
    assert sum((made(each.stdout) for each in done), Counter()) == {"made": 1, "reused": 1}
    assert max(Counter(many.fetched()).values()) == 1
    if not cache.startswith("oci:"):
        blobs = [path for path in Path(cache, "blobs/sha256").iterdir() if not path.name.startswith(".")]
        assert [sha256(path) for path in blobs] == [path.name for path in blobs]


# --- engines ----------------------------------------------------------------------------------------


def test_a_build_on_processes(many: Scene, tmp_path: Path) -> None:
    done = many.build(tmp_path.name, "--all", "--on", "processes:2")

    assert done.returncode == 0, done.stderr
    assert digests(done.stdout) == many.digests
    assert list(digests(done.stdout)) == list(many.tags)
    assert done.stderr.count(": made (") == LAYERS


def _become(environs: list[dict[str, str]], taken: object) -> None:
    """Make this worker process one of the machines, and work in the folder of the locks."""
    with taken.get_lock():  # type: ignore[attr-defined]
        number, taken.value = taken.value, taken.value + 1  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environs[number])
    os.chdir(environs[number]["SCENE"])


@pytest.mark.proof
@pytest.mark.skipif(not can_mount(), reason="a full disk is a mount, which requires root")
def test_a_worker_with_a_full_disk_loses_nothing(many: Scene, tmp_path: Path) -> None:
    """Three machines of a plain `Executor`; the disk of one has no room for a layer."""
    names = [f"{tmp_path.name}-{number}" for number in range(3)]
    environs = [many.environ(name) | {"SCENE": str(many.folder)} for name in names]
    full = Path(environs[0]["TORCHKILN_CACHE"])
    full.mkdir(mode=0o700)
    spawn = get_context("spawn")
    outcomes: dict[str, Outcome] = {}
    jobs = [
        Job(**{**job, "arguments": tuple(job["arguments"]), "needs": tuple(job["needs"])})
        for job in many.jobs(*both(str(tmp_path / "shared")))
    ]
    with ExitStack() as stack:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k,mode=700", "many", full], check=True)
        stack.callback(subprocess.run, ["umount", "--lazy", full], check=True)
        engine = ProcessPoolExecutor(3, spawn, initializer=_become, initargs=(environs, spawn.Value("i", 0)))
        stack.enter_context(engine)
        list(engine.map(time.sleep, [3.0] * 3))  # starts all processes
        run(jobs, engine, lambda job, outcome: outcomes.update({job.name: outcome}), pauses=(0.0,))

    assert {name: outcome.error for name, outcome in outcomes.items() if outcome.code} == {}
    assert {tag: outcomes[tag].digest for tag in many.tags} == many.digests
    assert sum(outcome.how == "made" for outcome in outcomes.values()) == LAYERS


@pytest.mark.proof
def test_a_registry_that_is_down_for_a_time(many: Scene, tmp_path: Path) -> None:
    """Jobs fail, and are run again with pauses until it is there."""
    with RegistryServer() as server:
        port = server.host
    words = ("--all", "--on", "processes:2", *both(f"oci://{port}/team/cache"))
    with ThreadPoolExecutor() as threads:
        pending = threads.submit(many.build, tmp_path.name, *words)
        time.sleep(8)
        with RegistryServer(port=int(port.rpartition(":")[2])) as server:
            done = pending.result()
            tags = server.repository("team/cache").tags

    assert done.returncode == 0, done.stderr
    assert digests(done.stdout) == many.digests
    assert tags == sorted(f"unproven-{tag}" for tag in many.tags)
