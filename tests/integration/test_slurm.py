"""deploy/slurm on Debian's Slurm, with two nodes on this machine, and with stubs for the image's programs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.deploy_page import blocks
from tests.engine.root import NoEngine
from tests.engine.slurm import Cluster, slurm_cluster
from tests.needs import give_up, nightly
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.proof, pytest.mark.network, nightly]  # may download Debian's packages

KIT = ROOT / "deploy/slurm"
# Prints its arguments and torchrun's variables in one line. Slurm's many variables are only counted, because
# srun cuts lines after 1024 bytes and mixes those of several nodes.
RECORD = """
import json, os, sys
kept = ("MASTER_ADDR", "MASTER_PORT", "NVIDIA_VISIBLE_DEVICES", "SLURMD_NODENAME")
argv = "\\0".join(sys.argv[1:])
slurm = [word for word in sys.argv if word.startswith("SLURM_")]
for word in slurm:
    argv = argv.replace(f"-e\\0{word}\\0", "")
record = {"argv": argv.split("\\0"), "slurm": len(slurm)} | {name: os.environ.get(name) for name in kept}
os.write(1, (json.dumps(record) + "\\n").encode())
sys.exit(int(os.environ.get("FAIL", "0")))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the kit, an empty squashfs file, and a bundle without an image."""
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
    """The records that the nodes' programs printed, in the order of the nodes."""
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda record: str(record["SLURMD_NODENAME"]))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_bundle_runs_torchrun_on_each_node(cluster: Cluster, nodes: int) -> None:
    """Each node has its rank and the common address. Variables with spaces are passed on."""
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
        assert record["slurm"] > 10
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
    """srun is a stub, because Debian has no Pyxis."""
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
    assert found["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert argv[:5] == [
        "--kill-on-bad-exit=1",
        "--container-image=/srv/image.sqsh",
        "--container-env=NVIDIA_VISIBLE_DEVICES",
        "--container-mounts=/srv:/workspace",
        "--container-workdir=/workspace",
    ]
    assert argv[-3:] == ["sh", "train.py", "-x"]
    # The command line that the container's shell runs on the second node, with four GPUs.
    environ = {
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_GPUS_ON_NODE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "PATH": "/usr/bin:/bin",
    }
    script = str(argv[7]).replace("/opt/venv/bin/torchrun", "echo")
    shown = subprocess.run(["sh", "-c", script, *argv[8:]], env=environ, capture_output=True, text=True)
    assert shown.stdout == (
        "--nnodes=2 --node-rank=1 --nproc-per-node=4 --master-addr=10.0.0.1 --master-port=29500 train.py -x\n"
    )


def test_a_failed_node_ends_the_job(cluster: Cluster) -> None:
    code, output = cluster.sbatch(
        "--gres=none", "--nodes=2", "--export=ALL,FAIL=3", "train.sbatch", "a bundle", "train.py"
    )

    assert (code != 0, "Exited with exit code 3" in output) == (True, True), output


def test_the_pages_commands(cluster: Cluster) -> None:
    """The page's lines with sbatch, on a cluster without GPUs, with a stub for the bundle."""
    (script, by_pyxis) = blocks("Slurm")
    folder = cluster.folder / "page"
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    shutil.copytree(cluster.folder / "a bundle", folder / "pytorch-2.7")
    assert re.findall(r"--bundle (\S+)", script) == ["pytorch-2.7"]
    lines = [line for line in script.splitlines() if not line.startswith("python build.py")]
    assert [line.split()[0] for line in lines] == ["cp", "sbatch", "sbatch"]
    for line in lines:
        line = line.replace("sbatch ", "sbatch --wait --output=%j.out --gres=none ", 1)
        done = cluster.run("sh", "-euc", line, cwd="/srv/page")
        assert done.returncode == 0, done.stderr
    found = [records(file.read_text()) for file in sorted(folder.glob("*.out"))]

    assert [[record["argv"][-1] for record in job] for job in found] == [["train.py"], ["500", "500"]]
    assert (folder / "train.py").exists()
    assert by_pyxis.splitlines()[1] == script.splitlines()[-1].replace(" --steps 500", "").replace(
        "pytorch-2.7", "pytorch-2.7.sqsh"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "IMAGE is required: a squashfs file, or the folder of a bundle"),
        (["a bundle"], "SCRIPT is required: a Python file in this folder"),
        (["nowhere", "train.py"], "nowhere: No such file or directory"),
    ],
)
def test_wrong_arguments_are_named(cluster: Cluster, arguments: list[str], words: str) -> None:
    code, output = cluster.sbatch("--gres=none", "train.sbatch", *arguments)

    assert code != 0
    assert words in output


def test_the_smoke_job_passes_its_options(cluster: Cluster) -> None:
    """docs/gpu-hosts/slurm.sbatch passes its options to the bundle."""
    script = cluster.folder / "smoke.sbatch"
    script.write_bytes((ROOT / "docs/gpu-hosts/slurm.sbatch").read_bytes())
    code, output = cluster.sbatch("--gres=none", "smoke.sbatch", "/srv/a bundle", "--tier", "1")

    assert code == 0, output
    assert records(output)[0]["argv"] == ["--report", "/srv/a bundle.report.json", "--tier", "1"]
