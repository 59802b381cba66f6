"""Debian's docker-registry, from the root of the test engine; one for each process of a test run.

It runs in a separate mount namespace, and is killed when its parent ends for any reason.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.engine.root import NoEngine, ensure, home
from tests.needs import give_up

_TIMEOUT = 300.0  # seconds until it must respond
_LOOK = 0.05
_CONFIG = """\
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: /srv/data}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}", secret: torchkiln-tests}}
"""
# The mounts of the new root are visible only in this namespace, not to other processes.
_INSIDE = """\
mount --bind "$2" "$1/srv" &&
exec chroot "$1" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root OTEL_TRACES_EXPORTER=none \
  /usr/bin/docker-registry serve /srv/config.yml
"""


_Running = TypeVar("_Running", bound="RunningRegistry")


@dataclass(frozen=True, kw_only=True)
class RunningRegistry:
    """A registry that runs on this machine, with its data in `folder`."""

    host: str  # "127.0.0.1:40123"
    folder: Path
    pid: int
    separate_repositories: bool = True  # whether a repository cannot read the blobs of others

    def blob(self, digest: str) -> Path:
        """The path of the blob."""
        hexa = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / hexa[:2] / hexa / "data"

    def content(self, repository: str, digest: str) -> bytes:
        """The content of the blob or manifest; b"" if it is missing."""
        path = self.blob(digest)
        return path.read_bytes() if path.is_file() else b""

    def tags(self, repository: str) -> list[str]:
        """The tags of images in *repository*, from its files."""
        folder = self.folder / "data/docker/registry/v2/repositories" / repository / "_manifests/tags"
        return sorted(path.name for path in folder.glob("*") if not _lists(path.name))


def _lists(tag: str) -> bool:
    """Whether *tag* is `sha256-…`, a referrers tag: it lists an image's attachments."""
    return tag.startswith("sha256-")


@contextmanager
def docker_registry(folder: Path) -> Iterator[RunningRegistry]:
    """A registry with its data in *folder*, while the context lasts.

    :raises NoEngine: none is available on this machine.
    """
    root = ensure(home())
    port = free_port()
    (folder / "data").mkdir(parents=True)
    (folder / "config.yml").write_text(_CONFIG.format(port=port))
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]
    host = f"127.0.0.1:{port}"
    with serving([*argv, "sh", "-c", _INSIDE, "sh", str(root), str(folder)], host, folder / "log") as pid:
        yield RunningRegistry(host=host, folder=folder, pid=pid)


@contextmanager
def serving(argv: Sequence[str], host: str, log: Path) -> Iterator[int]:
    """Run *argv*, a registry at *host*, while the context lasts; yields its process id. *log*: its output.

    :raises NoEngine: the registry does not respond; the message has the end of its output.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        _await(process, host, log)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _await(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{host}/v2/", timeout=5).close()
        except OSError:
            time.sleep(_LOOK)
        else:
            return
    raise NoEngine(f"the registry did not start: {log.read_text(errors='replace')[-1200:]}")


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    """A real registry on 127.0.0.1, empty at first, for all tests of this process."""
    yield from available(docker_registry(tmp_path_factory.mktemp("registry") / "its"))


def available(context: AbstractContextManager[_Running]) -> Iterator[_Running]:
    """For fixtures: yield the value of *context*. If it raises NoEngine, tests skip, or fail in `.ci/run`."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(context)
        except (NoEngine, OSError) as error:
            give_up(f"no registry: {error}")
        yield running
