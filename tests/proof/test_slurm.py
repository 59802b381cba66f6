"""deploy/slurm with the real image: two ranks on two nodes of Debian's Slurm, on the CPU."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.root import NoEngine
from tests.engine.slurm import Cluster, slurm_cluster
from tests.needs import give_up, nightly
from tests.programs import run_program
from tests.proof.headline import TAG
from torchkiln.util.places import ROOT

pytestmark = [pytest.mark.proof, nightly]


@pytest.fixture(scope="module")
def cluster(image: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the bundle of the real image; 13 GB while the module runs."""
    folder = tmp_path_factory.mktemp("slurm")
    argv = [sys.executable, str(ROOT / "build.py"), "smoke", TAG, "--output", image["layout"]]
    done = run_program([*argv, "--bundle", str(folder / "bundle")], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for file in ("slurm/train.sbatch", "train/train.py"):
        shutil.copy(ROOT / "deploy" / file, folder)
    try:
        with slurm_cluster(folder) as found:
            yield found
    except NoEngine as error:
        give_up(str(error))
    finally:
        shutil.rmtree(folder / "bundle", ignore_errors=True)


@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_trains_in_the_image(cluster: Cluster, nodes: int) -> None:
    """The ranks use gloo. Both nodes start at the same time, but the image is unpacked only once."""
    code, output = cluster.sbatch("--gres=none", f"--nodes={nodes}", "train.sbatch", "bundle", "train.py")
    found = re.search(rf"^{nodes} processes on {nodes} nodes, cpu: loss ([\d.]+) -> ([\d.]+)$", output, re.M)

    assert code == 0, output
    assert found, output
    assert float(found[2]) < float(found[1]) / 100


def test_a_script_that_fails_fails_the_job(cluster: Cluster) -> None:
    (cluster.folder / "fail.py").write_text("raise SystemExit(3)\n")
    code, output = cluster.sbatch("--gres=none", "--nodes=2", "train.sbatch", "bundle", "fail.py")

    assert code != 0
    assert "exitcode  : 3" in output
