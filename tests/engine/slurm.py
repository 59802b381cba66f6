"""A Slurm cluster of two nodes on this machine, from Debian's packages, in separate namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.engine.registry import free_port
from tests.engine.root import NoEngine, first_process, home, made, start, stop

_SUITE = "bookworm"  # Slurm 22.05
_PACKAGES = ("slurm-wlm", "munge", "tini", "python3", "squashfs-tools")
NODES = ("n1", "n2")
_ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "SLURM_CONF": "/srv/slurm.conf"}

# Two slurmd run on one machine with different ports and folders. Both may use all cores.
_CONF = """
ClusterName=kit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/srv/state
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdSpoolDir=/srv/spool-%n
SlurmctldLogFile=/srv/slurmctld.log
SlurmdLogFile=/srv/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
{nodes}
PartitionName=main Nodes=ALL Default=YES State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=64 RealMemory=262144\n"
# The last daemon stays in the foreground.
_DAEMONS = """
set -eu
mkdir -p /run/munge /srv/state /srv/spool-n1 /srv/spool-n2
head -c 1024 /dev/urandom > /srv/munge.key
chmod 400 /srv/munge.key
munged --force --key-file=/srv/munge.key --socket=/run/munge/munge.socket.2 \\
    --seed-file=/run/munge/seed --log-file=/run/munge/log --pid-file=/run/munge/pid
export SLURM_CONF=/srv/slurm.conf
slurmctld
slurmd -N n1
slurmd -N n2
exec sleep infinity
"""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A running cluster. Its nodes see *folder* as /srv, and the host's /dev."""

    pid: int  # the first process of its namespaces
    folder: Path

    def run(self, *argv: str, cwd: str = "/srv") -> subprocess.CompletedProcess[str]:
        """Run a command in the cluster's namespaces, in its folder *cwd*."""
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root", f"--wdns={cwd}"]
        return subprocess.run([*inside, *argv], env=_ENVIRON, capture_output=True, text=True, check=False)

    def sbatch(self, *arguments: str) -> tuple[int, str]:
        """Submit a job and wait for its end; returns its exit code and output."""
        output = f"job-{time.monotonic_ns()}.out"
        done = self.run("sbatch", "--wait", "--parsable", f"--output=/srv/{output}", *arguments)
        place = self.folder / output
        return done.returncode, (place.read_text() if place.exists() else "") + done.stderr


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster with its files in *folder*, while the context lasts.

    :raises NoEngine: this user or this machine cannot make it.
    """
    if os.geteuid():
        raise NoEngine("a Slurm cluster requires root")
    root = made(home() / "slurm", _SUITE, _PACKAGES, "--variant=minbase")
    host = socket.gethostname().partition(".")[0]
    nodes = "".join(_NODE.format(name=name, host=host, port=free_port()) for name in NODES)
    (folder / "slurm.conf").write_text(_CONF.format(host=host, port=free_port(), nodes=nodes))
    (root / "etc/hosts").touch()  # a mount point
    (folder / "etc").mkdir()
    (folder / "etc/hosts").write_text(f"127.0.0.1 localhost {host}\n")
    process = start(root, folder, ["sh", "-c", _DAEMONS])
    try:
        yield _wait_for(process, folder)
    finally:
        stop(process, f"torchkiln-slurm-{os.getpid()}")


def _wait_for(process: subprocess.Popen[bytes], folder: Path) -> Cluster:
    """Wait until both nodes are idle."""

    def ready(pid: int) -> Cluster | None:
        cluster = Cluster(pid=pid, folder=folder)
        return cluster if _states(cluster) == ["idle"] * len(NODES) else None

    if found := first_process(process, ready):
        return found
    raise NoEngine(f"Slurm did not start: {''.join(_logs(folder))}")


def _states(cluster: Cluster) -> Sequence[str]:
    return cluster.run("sinfo", "--noheader", "--Node", "--format=%t").stdout.split()


def _logs(folder: Path) -> Iterator[str]:
    for log in (folder / "log", *sorted(folder.glob("slurm*.log"))):
        if log.exists():
            yield f"\n{log.name}: {log.read_text(errors='replace')[-1200:]}"
