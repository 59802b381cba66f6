"""crane, of go-containerregistry: a registry that shares no code with docker-registry, and a client of any.

From Debian's next release, for Debian 12 and 13 have none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.registry import RunningRegistry, answered, free_port
from tests.engine.root import NoEngine, home, runnable

_SUITE = "forky"
# A mirror may be a week behind: what is asked here is whether Debian signed it.
_OLD_TOO = 'Acquire::Check-Valid-Until "false"'


@dataclass(frozen=True, kw_only=True)
class RunningCrane(RunningRegistry):
    """The same, where manifests and tags are held in memory."""

    program: Path
    apart: bool = False

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def content(self, repository: str, digest: str) -> bytes:
        """Manifests are in memory too, so they are asked for."""
        with contextlib.suppress(urllib.error.HTTPError):
            url = f"http://{self.host}/v2/{repository}/manifests/{digest}"
            return bytes(urllib.request.urlopen(url, timeout=30).read())
        return RunningRegistry.content(self, repository, digest)

    def tags(self, repository: str) -> list[str]:
        """As its own client lists them."""
        argv = [self.program, "ls", f"{self.host}/{repository}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "NAME_UNKNOWN" in done.stderr, done.stderr
        return sorted(done.stdout.split())


@contextmanager
def crane_registry(folder: Path) -> Iterator[RunningCrane]:
    """One with its blobs in *folder*, while the context lasts.

    :raises NoEngine: it cannot be had on this machine.
    """
    # A program of its own for each process: a file that runs cannot be written.
    program, port = runnable(_root(), "usr/bin/crane", folder / "crane"), free_port()
    (folder / "blobs").mkdir()
    argv = ["setpriv", "--pdeathsig", "KILL", program, "registry", "serve"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--address", f"127.0.0.1:{port}", "--disk", str(folder / "blobs")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        host = f"127.0.0.1:{port}"
        answered(process, host, folder / "log")
        yield RunningCrane(host=host, folder=folder, pid=process.pid, program=program)
    finally:
        process.kill()
        process.wait()


def _root() -> Path:
    """What Debian's package holds, and the C library; fetched if it is not there (15 MB)."""
    root = home() / "crane"
    home().mkdir(parents=True, exist_ok=True)
    with (home() / "crane-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.is_dir():
            _fetch(root)
    return root


def _fetch(root: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        raise NoEngine("crane is fetched by mmdebstrap, as root")
    new = root.with_name("crane.new")
    shutil.rmtree(new, ignore_errors=True)  # of a run that was cut
    argv = ["mmdebstrap", "--variant=extract", "--mode=root", "--include=crane", f"--aptopt={_OLD_TOO}"]
    made = subprocess.run([*argv, _SUITE, str(new)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if made.returncode:
        raise NoEngine(f"mmdebstrap could not fetch crane: {made.stderr[-600:]}")
    new.rename(root)


@pytest.fixture(scope="session")
def crane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCrane]:
    """A second registry on 127.0.0.1, empty at first, for all tests of this process."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(crane_registry(tmp_path_factory.mktemp("crane") / "its"))
        except (NoEngine, OSError) as error:
            give_up = pytest.fail if os.environ.get("TORCHKILN_NEEDS_ENGINE") else pytest.skip
            give_up(f"no second registry: {error}")
        yield running


@pytest.fixture(name="registry", params=["docker-registry", "crane"])
def each_registry(
    request: pytest.FixtureRequest, registry: RunningRegistry, crane: RunningCrane
) -> RunningRegistry:
    """In a module that imports it: `registry` is the one, then the other."""
    return crane if request.param == "crane" else registry
