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

GOLDEN = ROOT / "tests" / "golden" / "list.txt"
MATRIX = ["--matrix", str(ROOT / "matrix.yaml")]
CELLS = 2 * (108 + 4 * 7)  # nine torch, three CUDA, and seven more cells; two flavors, four systems


def _out(command: click.Command, *args: str) -> str:
    result = CliRunner().invoke(command, [*MATRIX, *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def _json(command: click.Command, *args: str) -> Any:
    return json.loads(_out(command, *args, "--json"))


def test_list_as_text():
    assert _out(list_command) == GOLDEN.read_text()


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


def test_list_json_keeps_its_documented_form():
    rows = _json(list_command, "--all")
    assert len(rows) == CELLS
    promised = [
        "torch",
        "cuda",
        "flavor",
        "os",
        "python",
        "tag",
        "status",
        "reason",
        "wheel_cuda",
        "source",
        "min_driver",
        "archs",
        "nearest",
        "lockable",
    ]
    assert all(set(promised) <= set(row) for row in rows)
    (row,) = _json(list_command, "--torch", "2.7", "--cuda", "12.1")
    expected = {
        "torch": "2.7.1",
        "cuda": "12.1",
        "flavor": "runtime",
        "os": "debian12",
        "python": "3.11",
        "tag": "2.7.1-cuda12.1-cudnn9-runtime",
        "status": "minor-compat",
        "wheel_cuda": "12.6",
        "source": "default-index",
        "min_driver": "525.60.13",
        "archs": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
        "nearest": [],
        "lockable": True,
    }
    assert {key: row[key] for key in expected} == expected
    assert "9.0" in row["capabilities"]


def test_list_json_of_an_unavailable_cell():
    (row,) = _json(list_command, "--torch", "2.0", "--cuda", "12.1")
    assert (row["status"], row["tag"], row["archs"], row["min_driver"]) == ("unavailable", None, [], None)
    assert row["nearest"] == [{"torch": "2.0.1", "cuda": "11.8"}, {"torch": "2.1.2", "cuda": "12.1"}]


def test_explain_shows_the_complete_reasoning():
    text = _out(explain, "--torch", "2.7", "--cuda", "12.1")
    for expected in (
        "minor-compat: no wheel is built with CUDA 12.1; 2.7.1+cu126 from the default index",
        "525.60.13 or newer (cuda>=12.0)",
        "560.35.05 or newer",
        "9.0  H100, H800, H200, H20",
        "2.7.1+cu128, from PyTorch's own index",
        "torch==2.7.1 torchvision==0.22.1 torchaudio==2.7.1",
        "[rules.no-ptx]",
        "cudarn (official)",
    ):
        assert expected in text
    assert "prefer" not in text


def test_explain_shows_both_choices_if_prefer_decides():
    text = _out(explain, "--torch", "2.5", "--cuda", "12.1")
    assert "default-index (this matrix): minor-compat, 2.5.1+cu124, from the default index" in text
    assert "native: native, 2.5.1+cu121, from PyTorch's own index" in text


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


def test_pick_as_text():
    lines = _out(pick, "--driver", "535", "--gpu", "H100", "--torch", "2.4,2.0").splitlines()
    assert lines[0] == " 1. 2.4.1-cuda12.1-cudnn9-runtime"
    assert any(
        line.startswith("    2.0.1-cuda11.7-cudnn8-runtime: 2.0.1+cu117 has no code for H100")
        for line in lines
    )


def test_pick_says_once_what_several_images_share():
    text = _out(pick, "--driver", "470")
    assert text.startswith(" 1. 2.7.1-cuda11.8-cudnn9-runtime  (a; b)\n")
    assert "  a: in CUDA's compatibility mode, because the driver is older than 520.61.05\n  b: needs" in text
    assert text.count("older than 520.61.05") == text.count("TORCHKILN_INDEX_PYTORCH") == 1
    assert text.count("older than 525.60.13, the minimum for CUDA 12: ") == 1


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
