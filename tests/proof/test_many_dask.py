"""`build --all --on dask://…`: a scheduler and three workers as processes, of which some are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.engine.registry import free_port
from tests.many_scene import LAYERS, Scene, a_scene, digests, needs_base

__all__ = ["a_scene"]
no_dask = pytest.mark.skipif(not find_spec("distributed"), reason="no dask: pip install 'torchkiln[dask]'")
pytestmark = [pytest.mark.proof, no_dask, needs_base]
SEED = int(os.environ.get("TORCHKILN_SEED", "20261201"))
SLOW = 100_000  # bytes of a wheel in a second: a layer takes four seconds


class Cluster:
    """A scheduler and three workers, each a session of its own with its own cache."""

    def __init__(self, many: Scene, cache: Path) -> None:
        self.many, self.cache, self.port = many, str(cache), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start()

    def start(self) -> None:
        self._start("scheduler", "scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        options = ("--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--no-dashboard")
        for number in range(3):
            self._start(f"{self.port}-{number}", "worker", f"tcp://127.0.0.1:{self.port}", *options)

    def _start(self, name: str, what: str, *words: str) -> None:
        argv = [sys.executable, "-m", f"distributed.cli.dask_{what}", *words]
        with (self.many.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                argv, env=self.many.environ(name), cwd=self.many.folder, stderr=log, start_new_session=True
            )

    def kill(self, *names: str) -> None:
        """SIGKILL processes and those that they started, as if their machines had lost their power."""
        for name in names:
            os.killpg(self.processes[name].pid, signal.SIGKILL)
            self.processes.pop(name).wait()

    def is_busy(self, name: str) -> bool:
        """Whether a worker has started a process of torchkiln."""
        children = Path(f"/proc/{self.processes[name].pid}/task").glob("*/children")
        return any(path.read_text().split() for path in children)

    def build(self) -> subprocess.Popen[str]:
        words = (
            "--on",
            f"dask://127.0.0.1:{self.port}",
            "--cache-from",
            self.cache,
            "--cache-to",
            self.cache,
        )
        argv = self.many.argv("build", "--all", "--json", *words, "--output", f"{self.port}")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environ = self.many.environ("driver")
        return subprocess.Popen(argv, env=environ, cwd=self.many.folder, text=True, **pipes)

    def ended(self, build: subprocess.Popen[str]) -> tuple[int, int]:
        """Check the digests of the images; returns the numbers of layers that were made, and found."""
        out, err = build.communicate(timeout=300)
        assert build.returncode == 0, err
        assert digests(out) == self.many.digests
        return err.count(": made ("), err.count(": there (")


@contextmanager
def cluster(many: Scene, cache: Path, pace: float = 0.0) -> Iterator[Cluster]:
    found, many.server.faults.pace = Cluster(many, cache), pace
    try:
        yield found
    finally:
        many.server.faults.pace = 0.0
        found.kill(*found.processes)


def test_dask_builds_what_one_machine_builds(many: Scene, tmp_path: Path) -> None:
    with cluster(many, tmp_path) as found:
        assert found.ended(found.build()) == (LAYERS, 0)
        assert found.ended(found.build()) == (0, LAYERS)


@pytest.mark.parametrize("round", range(3))
def test_a_killed_worker_loses_nothing(many: Scene, tmp_path: Path, round: int) -> None:
    """The worker is killed while it makes a layer. The others make what it did not finish."""
    draw = random.Random(f"{SEED} {round}")
    with cluster(many, tmp_path, SLOW) as found:
        victim, instant = f"{found.port}-{draw.randrange(3)}", draw.uniform(0.0, 2.5)
        build = found.build()
        while not found.is_busy(victim):
            assert build.poll() is None, build.communicate()
            time.sleep(0.05)
        time.sleep(instant)
        sys.stderr.write(f"seed {SEED}, round {round}: {victim} killed after {instant:.3f} s\n")
        found.kill(victim)
        assert LAYERS <= found.ended(build)[0] <= LAYERS + 1
        assert found.ended(found.build()) == (0, LAYERS)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_lost_scheduler(many: Scene, tmp_path: Path, restarted: bool) -> None:
    """Its workers end with it. What they made stays in the cache; new workers make the rest."""
    with cluster(many, tmp_path, SLOW) as found:
        build = found.build()
        while len(list(tmp_path.glob("blobs/sha256/[0-9a-f]*"))) < 3:
            assert build.poll() is None, build.communicate()
            time.sleep(0.05)
        found.kill(*list(found.processes))
        if restarted:
            found.start()
            assert found.ended(build)[0] >= LAYERS - 3
        else:
            _, err = build.communicate(timeout=120)
            assert (build.returncode, "the scheduler does not answer" in err) == (6, True), err
