"""crane (go-containerregistry): a registry client, and a registry that shares no code with docker-registry.

The package comes from Debian testing (15 MB), because Debian 12 and 13 do not have it.
"""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.registry import RunningRegistry, available, free_port, serving
from tests.engine.root import home, made, runnable
from tests.programs import run_program

SUITE = "forky"
# apt accepts an outdated mirror, but still checks Debian's signature.
OLD_TOO = '--aptopt=Acquire::Check-Valid-Until "false"'


@dataclass(frozen=True, kw_only=True)
class RunningCrane(RunningRegistry):
    """A crane registry, which stores manifests and tags in memory."""

    program: Path
    separate_repositories: bool = False

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def content(self, repository: str, digest: str) -> bytes:
        """The content of the blob or manifest. It is read by HTTP, because manifests are in memory only."""
        with contextlib.suppress(urllib.error.HTTPError):
            url = f"http://{self.host}/v2/{repository}/manifests/{digest}"
            return bytes(urllib.request.urlopen(url, timeout=300).read())
        return RunningRegistry.content(self, repository, digest)

    def tags(self, repository: str) -> list[str]:
        """The tags, as listed by its client."""
        argv = [self.program, "ls", f"{self.host}/{repository}"]
        done = run_program(argv)
        assert done.returncode == 0 or "NAME_UNKNOWN" in done.stderr, done.stderr
        return sorted(tag for tag in done.stdout.split() if not tag.startswith("sha256-"))


@contextmanager
def crane_registry(folder: Path) -> Iterator[RunningCrane]:
    """A registry with its blobs in *folder*, while the context lasts.

    :raises NoEngine: it is not available on this machine.
    """
    # Each process copies the program file, because a running file cannot be overwritten.
    root = made(home() / "crane", SUITE, ["crane"], "--variant=extract", OLD_TOO)
    program, host = runnable(root, "usr/bin/crane", folder / "crane"), f"127.0.0.1:{free_port()}"
    (folder / "blobs").mkdir()
    argv = ["setpriv", "--pdeathsig", "KILL", str(program), "registry", "serve", "--address", host]
    with serving([*argv, "--disk", str(folder / "blobs")], host, folder / "log") as pid:
        yield RunningCrane(host=host, folder=folder, pid=pid, program=program)


@pytest.fixture(scope="session")
def crane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCrane]:
    """A second registry on 127.0.0.1, empty at first, for all tests of this process."""
    yield from available(crane_registry(tmp_path_factory.mktemp("crane") / "its"))


@pytest.fixture(name="registry", params=["docker-registry", pytest.param("crane", marks=pytest.mark.proof)])
def each_registry(
    request: pytest.FixtureRequest, registry: RunningRegistry, crane: RunningCrane
) -> RunningRegistry:
    """In a file that imports this fixture, `registry` is each registry; crane only in `make proof`."""
    return crane if request.param == "crane" else registry


#: For a test in which the two registries behave differently: crane also in `make test`.
both_registries = pytest.mark.parametrize("registry", ["docker-registry", "crane"], indirect=True)
