"""`list`, `explain` and `pick`: data goes to stdout; each error has its exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.planned import ROOT
from tests.reports import LOCKED
from torchkiln.cli.grid import explain, list_command, pick
from torchkiln.errors import ConfigError, NothingSelected
from torchkiln.locks.lock import save
from torchkiln.model.untrusted import USES

MATRIX = ["--matrix", str(ROOT / "matrix.yaml")]
CELLS = 2 * (108 + 4 * 7)  # nine torch, three CUDA, and seven more cells; two flavors, four systems
# The commands whose output is in a file of tests/golden.
OUTPUTS = {
    "list.txt": (list_command, ""),
    "list-cell.json": (list_command, "--torch 2.7 --cuda 12.1 --json"),
    "list-unavailable.json": (list_command, "--torch 2.0 --cuda 12.1 --json"),
    "explain.txt": (explain, "--torch 2.7 --cuda 12.1"),
    "explain-prefer.txt": (explain, "--torch 2.5 --cuda 12.1"),
    "pick.txt": (pick, "--driver 535 --gpu H100 --torch 2.4,2.0"),
    "pick-old-driver.txt": (pick, "--driver 470"),
}


def _out(command: click.Command, *args: str) -> str:
    result = CliRunner().invoke(command, [*MATRIX, *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def output(name: str) -> str:
    """What the command of the file *name* prints."""
    command, words = OUTPUTS[name]
    return _out(command, *words.split())


def _json(command: click.Command, *args: str) -> Any:
    return json.loads(_out(command, *args, "--json"))


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_output_is_as_committed(name: str):
    """If the change is intended, run `make golden` and review the diff."""
    assert output(name) == (ROOT / "tests/golden" / name).read_text()


def test_list_shows_flavor_and_system_if_there_are_several():
    lines = _out(list_command, "--all").splitlines()
    assert lines[0].split()[:4] == ["TORCH", "CUDA", "FLAVOR", "OS"]
    assert len(lines) == 1 + CELLS


def test_lockable_cells_are_those_of_the_default_index():
    rows = _json(list_command, "--all")
    lockable = [row["tag"] for row in rows if row["lockable"]]
    assert [row["tag"] for row in _json(list_command, "--all", "--lockable")] == lockable
    runtime = _json(list_command, "--lockable")
    assert {(row["flavor"], row["os"]) for row in runtime} == {("runtime", "debian12")}
    assert len(runtime) == 9 + 7


def test_explain_json_cites_every_note():
    expected = _json(explain, "--torch", "2.2", "--cuda", "12.1")
    resolution = expected["resolution"]
    for note in resolution["constraints"] + expected["limits"]:
        assert set(expected["facts"][note["fact"]]) <= set(expected["sources"])
    assert [note["requirement"] for note in resolution["constraints"]] == [
        "numpy<2",
        "nvidia-nvjitlink-cu12==12.1.105",
    ]
    assert expected["require_cuda"] == "cuda>=12.0"
    assert len(_json(explain, "--torch", "2.2")) == 3


@pytest.mark.parametrize("untrusted", [True, False])
def test_list_and_explain_show_that_the_lock_uses_an_untrusted_source(tmp_path: Path, untrusted: bool):
    save(tmp_path, replace(LOCKED, untrusted=untrusted))
    cell = ["--images", str(tmp_path), "--torch", "2.7", "--cuda", "12.1"]

    assert (f"lock       {USES}\n" in _out(explain, *cell)) is untrusted
    assert ("-runtime  (untrusted)\n" in _out(list_command, *cell)) is untrusted
    assert _json(explain, *cell).get("untrusted", False) is untrusted


def test_pick_json():
    expected = _json(pick, "--driver", "535", "--gpu", "H100")
    assert expected["runs"][0]["tag"] == "2.10.0-cuda12.8-cudnn9-runtime"
    assert all(offer["against"] for offer in expected["fails"])
    assert len(expected["runs"]) + len(expected["fails"]) == 34


def test_pick_without_a_match_exits_with_3_and_a_reason():
    result = CliRunner().invoke(pick, [*MATRIX, "--driver", "535", "--gpu", "B200"])
    assert isinstance(result.exception, NothingSelected)
    assert "driver 535 does not support B200" in result.stdout
    assert "driver 535 does not support B200" in result.exception.hint


def test_pick_reports_all_errors_at_once():
    result = CliRunner().invoke(pick, [*MATRIX, "--driver", "x", "--gpu", "H1000,B200", "--torch", "2.16"])
    assert isinstance(result.exception, ConfigError)
    assert [line.split(":")[0] for line in result.exception.message.splitlines()] == [
        "--driver x",
        "--gpu H1000",
        "--torch 2.16",
    ]
