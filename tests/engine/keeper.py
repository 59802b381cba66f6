"""Start the engine, and stop it when its owner ends for any reason.

`python -m tests.engine.keeper OWNER PLACE`: OWNER is the process id of the engine's user. When it is ready,
PLACE/ready contains the environment of clients (JSON); if it fails, PLACE/failed contains the reason.
It is a separate process, so that a killed test run leaves no daemon, bridge, mount or cgroup behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.engine.network import Network, network, sweep
from tests.engine.root import NoEngine, client, ensure, home, start, stop

DOCKERD = (
    *("dockerd", "--config-file", "/srv/daemon.json"),
    *("-H", "unix:///srv/sock/docker.sock", "--pidfile", "/run/docker.pid"),
)
_TIMEOUT = 300.0  # seconds until dockerd must respond
_LOOK = 0.2
_CGROUP = f"torchkiln-engine-{os.getpid()}"


def main(owner: int, place: Path) -> None:
    """Keep an engine for *owner* in *place*, which is deleted afterwards."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit())
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        stack.callback(place.with_name(f"starts-{place.name}").unlink, missing_ok=True)
        try:
            environ = stack.enter_context(engine(place))
        except (NoEngine, OSError) as error:
            _write(place / "failed", str(error))
        except BaseException:  # also SystemExit by SIGTERM: clients wait for one of the two files
            _write(place / "failed", traceback.format_exc())
            raise
        else:
            _write(place / "ready", json.dumps(environ))
        while Path("/proc", str(owner)).exists():
            time.sleep(_LOOK)


@contextmanager
def engine(place: Path) -> Iterator[dict[str, str]]:
    """Run dockerd while the context lasts; yields the environment of clients.

    :raises NoEngine: it does not start.
    :raises OSError: network or namespaces cannot be created.
    """
    root = ensure(home())
    program = client(root, place)
    sweep(root)
    with network(root) as net:
        _arrange(place, net)
        daemon = start(root, place, DOCKERD)
        environ = {
            "DOCKER_HOST": f"unix://{place}/sock/docker.sock",
            "DOCKER_CONFIG": str(place / "config"),
            "PATH": f"{program.parent}:{os.environ['PATH']}",
        }
        try:
            _await(daemon, environ, place)
            yield environ
        finally:
            stop(daemon, _CGROUP)


def _arrange(place: Path, net: Network) -> None:
    """Write the daemon's /srv, and the files of its /etc that come from this host."""
    for folder in ("data", "sock", "etc/ssl/certs"):
        (place / folder).mkdir(parents=True)
    (place / "sock").chmod(0o700)
    settings = {
        "features": {"containerd-snapshotter": True, "cdi": True},
        "cdi-spec-dirs": [f"/dev/shm/torchkiln-cdi-{place.name}"],  # the engine sees the host's /dev
        "data-root": "/srv/data",
        "exec-root": "/run/docker2",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": f"/{_CGROUP}",
        "group": "root",
        "shutdown-timeout": 5,
        **dict.fromkeys(("iptables", "ip6tables", "ip-forward", "ip-masq"), False),
        "bridge": net.bridge,
        "mtu": net.mtu,
        "default-network-opts": {"bridge": {"com.docker.network.driver.mtu": str(net.mtu)}},
        "default-address-pools": [{"base": net.pool, "size": 24}],
    }
    (place / "daemon.json").write_text(json.dumps(settings))
    for file in ("resolv.conf", "hosts"):
        shutil.copyfile(f"/etc/{file}", place / "etc" / file)
    bundle = os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt"
    shutil.copyfile(bundle, place / "etc/ssl/certs/ca-certificates.crt")


def _await(daemon: subprocess.Popen[bytes], environ: dict[str, str], place: Path) -> None:
    end = time.monotonic() + _TIMEOUT
    while time.monotonic() < end and daemon.poll() is None:
        if _docker(environ, "version").returncode == 0:
            return
        time.sleep(_LOOK)
    last = (place / "log").read_text(errors="replace")[-1200:]
    raise NoEngine(f"dockerd did not start: {last}")


def _docker(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DOCKER_CONTEXT"} | environ
    return subprocess.run(
        ["docker", *arguments], env=environment, capture_output=True, text=True, timeout=300
    )


def _write(file: Path, text: str) -> None:
    new = file.with_name(file.name + ".new")
    file.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(text)
    new.rename(file)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
