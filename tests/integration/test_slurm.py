"""deploy/slurm by Debian's Slurm, two nodes on this machine, with programs in the place of an image's."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.engine.root import NoEngine
from tests.engine.slurm import Cluster, slurm_cluster
from tests.needs import give_up
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.network  # Debian's packages, where the root is missing

KIT = ROOT / "deploy/slurm"
# Prints its arguments, and what torchrun would need, as one line.
RECORD = """
import json, os, sys
kept = ("MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
line = json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd()} | {name: os.environ.get(name) for name in kept})
os.write(1, (line + "\\n").encode())
sys.exit(int(os.environ.get("FAIL", "0")))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the kit, a squashfs file, and a bundle; neither has an image."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "train.sbatch").write_bytes((KIT / "train.sbatch").read_bytes())
    (folder / "a bundle").mkdir()
    (folder / "a bundle/run.py").write_text(RECORD)
    (folder / "image.sqsh").touch()
    (folder / "bin").mkdir()
    (folder / "bin/srun").write_text(f"#!/usr/bin/python3{RECORD}")
    (folder / "bin/srun").chmod(0o755)
    try:
        with slurm_cluster(folder) as found:
            yield found
    except NoEngine as error:
        give_up(str(error))


def records(output: str) -> list[dict[str, str | list[str]]]:
    """What each node's program got, by the number of the node."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda record: str(record["SLURMD_NODENAME"]))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_bundle_runs_torchrun_on_each_node(cluster: Cluster, nodes: int) -> None:
    """With its rank and the same address; variables are passed on, also with spaces."""
    options = ("--gres=none", f"--nodes={nodes}", "--export=ALL,NCCL_DEBUG=a b,OTHER=1")
    code, output = cluster.sbatch(*options, "train.sbatch", "a bundle", "train.py", "--note", "two words")
    found = records(output)

    assert code == 0, output
    assert [record["SLURMD_NODENAME"] for record in found] == ["n1", "n2"][:nodes]
    for rank, record in enumerate(found):
        argv = record["argv"]
        assert argv[:7] == ["run", "--shm-size", "8g", "--bind", "/srv:/workspace", "--workdir", "/workspace"]
        at = argv.index("--")
        assert "NCCL_DEBUG=a b" in argv[:at]
        assert not any(word.startswith("OTHER=") for word in argv)
        assert argv[at + 1 :] == [
            "/opt/venv/bin/torchrun",
            f"--nnodes={nodes}",
            f"--node-rank={rank}",
            "--nproc-per-node=1",
            f"--master-addr={found[0]['MASTER_ADDR']}",
            f"--master-port={found[0]['MASTER_PORT']}",
            "train.py",
            "--note",
            "two words",
        ]
    assert re.fullmatch(r"[\d.]+", str(found[0]["MASTER_ADDR"]))


def test_a_squashfs_file_is_started_by_pyxis(cluster: Cluster) -> None:
    """srun is replaced: Debian has no Pyxis."""
    code, output = cluster.sbatch(
        "--gres=none",
        "--export=ALL,PATH=/srv/bin:/usr/bin:/bin",
        "train.sbatch",
        "image.sqsh",
        "train.py",
        "-x",
    )
    (found,) = records(output)
    argv = found["argv"]

    assert code == 0, output
    assert argv[:4] == [
        "--kill-on-bad-exit=1",
        "--container-image=/srv/image.sqsh",
        "--container-mounts=/srv:/workspace",
        "--container-workdir=/workspace",
    ]
    assert argv[-3:] == ["sh", "train.py", "-x"]
    # What the container's shell makes of it, on the second node, with four GPUs.
    environ = {
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_GPUS_ON_NODE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "PATH": "/usr/bin:/bin",
    }
    script = str(argv[6]).replace("/opt/venv/bin/torchrun", "echo")
    shown = subprocess.run(["sh", "-c", script, *argv[7:]], env=environ, capture_output=True, text=True)
    assert shown.stdout == (
        "--nnodes=2 --node-rank=1 --nproc-per-node=4 --master-addr=10.0.0.1 --master-port=29500 train.py -x\n"
    )


def test_a_failed_node_ends_the_job(cluster: Cluster) -> None:
    code, output = cluster.sbatch(
        "--gres=none", "--nodes=2", "--export=ALL,FAIL=3", "train.sbatch", "a bundle", "train.py"
    )

    assert (code != 0, "Exited with exit code 3" in output) == (True, True), output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "IMAGE: name a squashfs file, or the folder of a bundle"),
        (["a bundle"], "SCRIPT: name a Python file in this folder"),
        (["nowhere", "train.py"], "nowhere: No such file or directory"),
    ],
)
def test_wrong_arguments_are_named(cluster: Cluster, arguments: list[str], words: str) -> None:
    code, output = cluster.sbatch("--gres=none", "train.sbatch", *arguments)

    assert code != 0
    assert words in output


def test_the_smoke_job_passes_its_options(cluster: Cluster) -> None:
    """docs/gpu-hosts/slurm.sbatch."""
    script = cluster.folder / "smoke.sbatch"
    script.write_bytes((ROOT / "docs/gpu-hosts/slurm.sbatch").read_bytes())
    code, output = cluster.sbatch("--gres=none", "smoke.sbatch", "/srv/a bundle", "--tier", "1")

    assert code == 0, output
    assert records(output)[0]["argv"] == ["--report", "/srv/a bundle.report.json", "--tier", "1"]
