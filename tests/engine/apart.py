"""Container engines of other versions and kinds, each in its own namespaces, for one test process.

They run in a Debian root file system. Unlike the engine of keeper.py, they make no bridge, because their
containers need no network. The daemons use the host's network, to reach registries on 127.0.0.1.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engine.crane import OLD_TOO, SUITE
from tests.engine.keeper import DOCKERD
from tests.engine.podman import SETTINGS
from tests.engine.root import NoEngine, first_process, home, made, start, stop

_ENGINES = ("docker.io", "containerd", "podman", "runc", "iptables", "ca-certificates", "tini")
_CONTAINERD = ("containerd", "--root", "/srv/data", "--state", "/run/containerd", "-a", "/srv/sock/ctrd.sock")


def old_engines() -> Path:
    """The engines of Debian 12: Docker 20.10, containerd 1.6, Podman 4.3 (25 seconds, 550 MB on the disk).

    :raises NoEngine: this user or this machine cannot make the root.
    """
    return made(home() / "bookworm", "bookworm", _ENGINES, "--variant=minbase")


def new_engines() -> Path:
    """The current engines of Debian testing (in November 2026 Docker 28.5, containerd 2.1, Podman 5.8).

    :raises NoEngine: this user or this machine cannot make the root.
    """
    return made(home() / SUITE, SUITE, (*_ENGINES, "docker-cli", "netavark"), "--variant=minbase", OLD_TOO)


@dataclass(frozen=True, kw_only=True)
class ClientSyntax:
    """The command-line syntax of an engine's client."""

    client: tuple[str, ...]
    pull: tuple[str, ...]
    run: tuple[str, ...]
    name: tuple[str, ...] = ()  # the name of a new container, if the client requires one


@dataclass(frozen=True, kw_only=True)
class SeparateEngine:
    """A running engine; its client runs in the same namespaces."""

    pid: int  # the first process of the namespaces
    words: ClientSyntax

    def pull(self, image: str) -> subprocess.CompletedProcess[str]:
        """Pull *image* from a registry without TLS."""
        return self.client(*self.words.pull, image)

    def run(self, image: str) -> subprocess.CompletedProcess[str]:
        """Run the image's default command in a container."""
        return self.client(*self.words.run, image, *self.words.name)

    def client(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the engine's client with *arguments*."""
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root", "--wd"]
        argv = [*inside, *self.words.client, *arguments]
        environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=300, check=False)


@contextmanager
def dockerd(root: Path, place: Path, **features: bool) -> Iterator[SeparateEngine]:
    """The Docker engine of *root*, with its data in *place*, while the context lasts.

    :raises NoEngine: it does not start.
    """
    settings = {
        "features": {name.replace("_", "-"): on for name, on in features.items()},
        "data-root": "/srv/data",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{_cgroup(place)}",
        **dict.fromkeys(("iptables", "ip6tables", "ip-forward", "ip-masq"), False),
        "bridge": "none",
    }
    words = ClientSyntax(
        client=("docker", "-H", "unix:///srv/sock/docker.sock"),
        pull=("pull",),
        run=("run", "--rm", "--network=none"),
    )
    with _daemon(root, place, settings, DOCKERD, words) as found:
        yield found


@contextmanager
def containerd(root: Path, place: Path) -> Iterator[SeparateEngine]:
    """Like `dockerd`: the containerd of *root*, with its client `ctr`.

    :raises NoEngine: it does not start.
    """
    words = ClientSyntax(
        client=("ctr", "--address", "/srv/sock/ctrd.sock"),
        pull=("images", "pull", "--plain-http"),
        run=("run", "--rm", "--cgroup="),
        name=("once",),
    )
    with _daemon(root, place, {}, _CONTAINERD, words) as found:
        yield found


@contextmanager
def podman(root: Path, place: Path) -> Iterator[SeparateEngine]:
    """Like `dockerd`: the Podman of *root*, which needs no daemon.

    :raises NoEngine: it does not start.
    """
    storage = ("--root", "/srv/data", "--runroot", "/run/podman", "--storage-driver", "vfs")
    words = ClientSyntax(
        client=("env", "CONTAINERS_CONF=/srv/settings", "podman", *storage),
        pull=("pull", "--tls-verify=false"),
        run=("run", "--rm", "--network=none", f"--cgroup-parent=/{_cgroup(place)}"),
    )
    with _daemon(root, place, {}, ("sleep", "infinity"), words) as found:
        yield found


@contextmanager
def _daemon(
    root: Path, place: Path, settings: object, daemon: Sequence[str], words: ClientSyntax
) -> Iterator[SeparateEngine]:
    if os.geteuid():
        raise NoEngine(f"{daemon[0]} requires root")
    for folder in ("data", "sock"):
        (place / folder).mkdir(parents=True)
    (place / "daemon.json").write_text(json.dumps(settings))
    (place / "settings").write_text(SETTINGS)  # Podman's
    process = start(root, place, daemon)
    try:
        yield _wait_for(process, words, place)
    finally:
        stop(process, _cgroup(place))


def _wait_for(process: subprocess.Popen[bytes], words: ClientSyntax, place: Path) -> SeparateEngine:
    def ready(pid: int) -> SeparateEngine | None:
        engine = SeparateEngine(pid=pid, words=words)
        return None if engine.client("version").returncode else engine

    if found := first_process(process, ready):
        return found
    raise NoEngine(f"the engine did not start: {(place / 'log').read_text(errors='replace')[-1200:]}")


def _cgroup(place: Path) -> str:
    return f"torchkiln-{os.getpid()}-{place.name}"
