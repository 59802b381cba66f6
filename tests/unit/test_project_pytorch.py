"""`project lock` on a cell whose torch is on PyTorch's own index."""

from __future__ import annotations

import json
from pathlib import Path

import click
from click.testing import CliRunner

from tests.planned import MATRIX
from tests.servers.index_server import IndexServer
from tests.servers.two_indexes import DEFAULT, OLD, fill, pytorch
from torchkiln.cli.lock import lock as lock_command
from torchkiln.cli.project import lock as lock_project
from torchkiln.projects.file import load_project
from torchkiln.util.places import ROOT

PACKAGES = (*MATRIX.packages, "setuptools")


def test_a_project_on_a_cell_of_pytorchs_index(tmp_path: Path) -> None:
    """The image's four packages of PyTorch's index are kept, even if new packages depend on them."""
    base = tmp_path / "images" / "base-debian12" / "base.json"
    base.parent.mkdir(parents=True)
    base.write_bytes((ROOT / "images" / "base-debian12" / "base.json").read_bytes())
    project = tmp_path / "trial"
    project.mkdir()
    (project / "requirements.txt").write_text("trainer\ntorch==2.3.1+cu121\ntorchaudio\n")
    with IndexServer() as server:
        fill(server, "2.3.1", "cu118", "3.11", PACKAGES)
        server.add(DEFAULT, "trainer", "1.0", requires=["torch>=2", "triton", "torchvision"], date=OLD)
        environ = {
            "UV_DEFAULT_INDEX": server.url(DEFAULT),
            "TORCHKILN_INDEX_PYTORCH": server.url(pytorch("cu118")),
            "TORCHKILN_CACHE": str(tmp_path / "cache"),
            "PIP_CONFIG_FILE": "/dev/null",
        }

        def lock(*words: str, command: click.Command = lock_command) -> str:
            cell = ("--torch", "2.3.1", "--cuda", "11.8", "--images", str(tmp_path / "images"))
            result = CliRunner(env=environ).invoke(command, [*words, *cell], catch_exceptions=False)
            return result.stdout

        lock()
        moves = json.loads(lock(str(project), "--json", command=lock_project))["moves"]

    found = load_project(project)
    assert found is not None
    assert [wheel.name for wheel in found.wheels] == ["trainer"]
    assert [(move["name"], move["after"]) for move in moves] == [("trainer", "1.0"), ("torch", "2.3.1+cu118")]
