"""`plan --as slurm` and `build --on slurm` on Debian's Slurm, with two nodes on this machine."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.engine.root import NoEngine
from tests.engine.slurm import Cluster, slurm_cluster
from tests.many_scene import LAYERS, Scene, a_scene, digests, made, needs_base
from tests.needs import give_up, nightly
from torchkiln.util.places import ROOT

__all__ = ["a_scene"]
pytestmark = [pytest.mark.proof, nightly, needs_base]
SEED = int(os.environ.get("TORCHKILN_SEED", "20261201"))
# Each node has its own cache.
_PROGRAM = """\
#!/bin/sh
export TORCHKILN_CACHE="/srv/machines/$CLUSTER-${SLURMD_NODENAME:-login}"
exec python3 -m torchkiln "$@" --json
"""


@pytest.fixture(scope="module", name="cluster")
def a_cluster(many: Scene) -> Iterator[Cluster]:
    """A cluster in the folder of the scene, with this environment's packages, by hard links."""
    for name in ("torchkiln", "rootfs", "templates"):
        shutil.copytree(ROOT / name, many.folder / "site" / name)
    packages = [sysconfig.get_paths()["purelib"], *os.environ.get("PYTHONPATH", "").split(":")[1:]]
    for folder in packages:
        subprocess.run(["cp", "-aln", f"{folder}/.", many.folder / "site"], check=False, capture_output=True)
    (many.folder / "program").write_text(_PROGRAM)
    (many.folder / "program").chmod(0o755)
    try:
        with slurm_cluster(many.folder) as found:
            yield found
    except NoEngine as error:
        give_up(str(error))


def environ(many: Scene, name: str) -> list[str]:
    """Words of env(1): the environment of a user of the cluster *name*, a word in the names of caches."""
    words = [
        "PYTHONPATH=/srv/site",
        "TORCHKILN_VAULT=/srv/vault",
        "TORCHKILN=/srv/program",
        f"CLUSTER={name}",
    ]
    return ["env", *words, "PYTHONDONTWRITEBYTECODE=1", f"UV_INDEX_URL={many.server.url('simple')}"]


def submitted(many: Scene, cluster: Cluster, name: str) -> list[str]:
    """Submit the jobs of all cells, which share a cache; returns the ids of the arrays."""
    (many.folder / f"{name}.sh").write_text(
        many.plan("slurm", "--cache-from", f"/srv/shared-{name}", "--cache-to", f"/srv/shared-{name}")
    )
    done = cluster.run(*environ(many, name), "sh", f"{name}.sh", f"--output=/srv/{name}-%A-%a.out")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def wait_for(many: Scene, cluster: Cluster, name: str) -> str:
    """Wait until the queue is empty; returns what the jobs printed."""
    end = time.monotonic() + 300
    while cluster.run("squeue", "--noheader").stdout.strip():
        assert time.monotonic() < end, cluster.run("squeue").stdout
        time.sleep(0.5)
    return "".join(path.read_text() for path in sorted(many.folder.glob(f"{name}-*.out")))


def test_arrays_build_what_one_machine_builds(many: Scene, cluster: Cluster) -> None:
    """Three arrays, each after the one before; a second run makes no layer."""
    assert len(submitted(many, cluster, "calm")) == 3
    output = wait_for(many, cluster, "calm")
    assert (digests(output), made(output)) == (many.digests, {"made": LAYERS}), output
    for path in many.folder.glob("calm-*.out"):
        path.unlink()

    submitted(many, cluster, "calm")
    output = wait_for(many, cluster, "calm")
    assert (digests(output), made(output)) == (many.digests, {"there": LAYERS}), output


def test_a_killed_job_and_a_drained_node_lose_nothing(many: Scene, cluster: Cluster) -> None:
    """A job is killed and requeued in the middle of a layer, while the other node is drained for a time."""
    draw, name = random.Random(SEED), "killed"
    many.server.faults.pace = 100_000
    try:
        submitted(many, cluster, name)
        end, instant = time.monotonic() + 100, draw.uniform(0.0, 2.0)
        squeue = ("squeue", "--noheader", "--states=R", "--format=%A %N")
        while not (running := cluster.run(*squeue).stdout.split()):
            assert time.monotonic() < end
            time.sleep(0.1)
        time.sleep(instant)
        job, node = running[:2]
        sys.stderr.write(f"seed {SEED}: job {job} on {node} killed after {instant:.3f} s\n")
        other = "n2" if node == "n1" else "n1"
        drain = ("scontrol", "update", f"nodename={other}", "state=drain", "reason=test")
        assert cluster.run(*drain).returncode == 0
        assert cluster.run("scontrol", "requeue", job).returncode == 0
        time.sleep(draw.uniform(2.0, 6.0))
        cluster.run("scontrol", "update", f"nodename={other}", "state=resume")
    finally:
        many.server.faults.pace = 0.0
    output = wait_for(many, cluster, name)
    assert digests(output) == many.digests, output


def test_a_build_on_slurm(many: Scene, cluster: Cluster) -> None:
    """submitit submits the jobs; the nodes share one cache, which the first second of each job waits for."""
    if not find_spec("submitit"):
        pytest.skip("no submitit: pip install 'torchkiln[slurm]'")
    words = ["python3", "-m", "torchkiln", "build", "--all", "--on", "slurm", "--json"]
    done = cluster.run(*environ(many, "one"), "TORCHKILN_CACHE=/srv/machines/submitit", *words)

    assert done.returncode == 0, done.stderr
    assert digests(done.stdout) == many.digests
    assert done.stderr.count(": made (") == LAYERS
