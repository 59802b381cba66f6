"""`build --all --on dask://…`: a scheduler and three workers as processes, of which one is killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.many_scene import LAYERS, Scene, a_scene, digests, needs_base

__all__ = ["a_scene"]
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(not find_spec("distributed"), reason="no dask: pip install 'torchkiln[dask]'"),
    needs_base,
]

SEED = int(os.environ.get("TORCHKILN_SEED", "20261201"))
_START = 60.0  # seconds


@dataclass
class Cluster:
    """A scheduler and workers, each a session of its own with its own cache."""

    many: Scene
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, module: str, *words: str) -> None:
        argv = [sys.executable, "-m", f"distributed.cli.{module}", *words]
        with (self.many.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                argv,
                env=self.many.environ(name),
                cwd=self.many.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def worker(self, name: str) -> None:
        options = ("--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--no-dashboard")
        self.start(name, "dask_worker", f"tcp://127.0.0.1:{self.port}", "--name", name, *options)

    def scheduler(self) -> None:
        self.start("scheduler", "dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        _wait_for(self.port)

    def kill(self, name: str) -> None:
        """SIGKILL a worker and the processes that it started, as if its machine had lost its power."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def is_busy(self, name: str) -> bool:
        """Whether a worker has started a process of torchkiln."""
        pid = self.processes[name].pid
        children = Path(f"/proc/{pid}/task").glob("*/children")
        return any(path.read_text().split() for path in children)

    def build(self, cache: Path, output: str) -> subprocess.Popen[str]:
        words = (
            "--on",
            f"dask://127.0.0.1:{self.port}",
            "--cache-from",
            str(cache),
            "--cache-to",
            str(cache),
        )
        return subprocess.Popen(
            self.many.argv("build", "--all", "--json", *words, "--output", output),
            env=self.many.environ("driver"),
            cwd=self.many.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _wait_for(port: int) -> None:
    end = time.monotonic() + _START
    while time.monotonic() < end:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the scheduler did not start")


@contextmanager
def cluster(many: Scene, prefix: str) -> Iterator[Cluster]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = Cluster(many=many, port=port)
    try:
        found.scheduler()
        for number in range(3):
            found.worker(f"{prefix}-{number}")
        yield found
    finally:
        for name in list(found.processes):
            found.kill(name)


def ended(build: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = build.communicate(timeout=300)
    assert build.returncode == 0, err
    return out, err


def made(err: str) -> int:
    return err.count(": made (")


def test_dask_builds_what_one_machine_builds(many: Scene, tmp_path: Path) -> None:
    with cluster(many, "calm") as found:
        out, err = ended(found.build(tmp_path / "shared", "calm"))
        assert (digests(out), made(err)) == (many.digests, LAYERS)
        out, err = ended(found.build(tmp_path / "shared", "calm"))
        assert (digests(out), made(err)) == (many.digests, 0)
        assert err.count(": there (") == LAYERS


@pytest.mark.parametrize("round", range(3))
def test_a_killed_worker_loses_nothing(many: Scene, tmp_path: Path, round: int) -> None:
    """The worker is killed while it makes a layer. The others make what it did not finish."""
    draw = random.Random(f"{SEED} {round}")
    many.server.faults.pace = 100_000
    try:
        with cluster(many, f"killed-{round}") as found:
            victim, instant = f"killed-{round}-{draw.randrange(3)}", draw.uniform(0.0, 2.5)
            build = found.build(tmp_path / "shared", f"killed-{round}")
            while not found.is_busy(victim):
                assert build.poll() is None, build.communicate()
                time.sleep(0.05)
            time.sleep(instant)
            sys.stderr.write(f"seed {SEED}, round {round}: {victim} killed after {instant:.3f} s\n")
            found.kill(victim)
            out, err = ended(build)
            assert digests(out) == many.digests
            assert LAYERS <= made(err) <= LAYERS + 1
            out, err = ended(found.build(tmp_path / "shared", f"killed-{round}"))
            assert (digests(out), made(err)) == (many.digests, 0)
    finally:
        many.server.faults.pace = 0.0


def test_a_restarted_scheduler(many: Scene, tmp_path: Path) -> None:
    """Its workers end with it. What they made stays in the cache; new workers make the rest."""
    many.server.faults.pace = 100_000
    try:
        with cluster(many, "lost") as found:
            build = found.build(tmp_path / "shared", "lost")
            while len(list((tmp_path / "shared").glob("blobs/sha256/[0-9a-f]*"))) < 3:
                assert build.poll() is None, build.communicate()
                time.sleep(0.05)
            for name in list(found.processes):
                found.kill(name)
            found.scheduler()
            for number in range(3):
                found.worker(f"lost-{number}")
            assert digests(ended(build)[0]) == many.digests
    finally:
        many.server.faults.pace = 0.0
