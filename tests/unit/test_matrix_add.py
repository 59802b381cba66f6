"""`matrix add torch X` against an index on this machine, and the edit of matrix.yaml."""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.added_release import (
    CODE,
    COMPAT,
    CU12,
    OURS,
    Workspace,
    block_of,
    tag,
    workspace,
)
from tests.planned import FACTS, ROOT
from torchkiln.cli import matrix as command
from torchkiln.cli.matrix import matrix
from torchkiln.errors import ConfigError
from torchkiln.matrix.add_release.compat_block import block
from torchkiln.matrix.add_release.edit import with_block
from torchkiln.matrix.add_release.propose import Companion, ReleaseMetadata
from torchkiln.matrix.facts import parse

__all__ = ["workspace"]


def test_a_known_release_needs_only_lines_of_the_matrix(workspace: Workspace) -> None:
    error, out, err = workspace.run("torch", "2.9.1")

    assert (error, out) == (
        None,
        '# matrix.yaml, under beyond:\n  - {torch: "2.9.1", cuda: "12.8"}\n',
    )
    assert "nothing was written" in err
    assert workspace.file.read_text() == OURS


def test_write_changes_the_matrix_once(workspace: Workspace) -> None:
    workspace.file.chmod(0o640)
    error, _, err = workspace.run("torch", "2.9.1", "--write")
    text = workspace.file.read_text()

    assert error is None
    assert "next: torchkiln lock --torch 2.9.1" in err
    assert text == (ROOT / "matrix.yaml").read_text()
    assert workspace.file.stat().st_mode & 0o777 == 0o640
    error, out, err = workspace.run("torch", "2.9.1", "--write")
    assert (error, out) == (None, "")
    assert "has torch 2.9.1 already" in err
    assert workspace.file.read_text() == text


def test_with_its_cuda_in_the_matrix_it_is_a_row_of_the_grid(workspace: Workspace) -> None:
    workspace.file.write_text(OURS.replace('  - "12.1"\n', '  - "12.1"\n  - "12.8"\n', 1))
    error, out, _ = workspace.run("torch", "2.9.1", "--write")

    assert (error, out) == (None, '# matrix.yaml, under torch:\n  - "2.9.1"\n')
    assert '  - "2.8.0"\n  - "2.9.1"\n' in workspace.file.read_text()


def test_an_existing_release_needs_no_index(workspace: Workspace) -> None:
    workspace.run("torch", "2.8.0")

    assert workspace.server.requests == []


def test_newest_is_the_newest_release_of_the_index(workspace: Workspace) -> None:
    add = workspace.server.add
    add("default", "torch", "3.0.0", requires=CU12, tag=tag("cp310"), files=CODE)
    add("default", "torch", "3.1.0rc1", requires=CU12, tag=tag("cp310"), files=CODE)
    _, out, _ = workspace.run("torch", "newest")
    assert '\n  "3.0.0":\n' in out


def test_newest_adds_nothing_if_the_matrix_has_it(workspace: Workspace) -> None:
    """An outdated mirror has only older releases, and nothing is added either."""
    for source, project, name in list(workspace.server.files):
        if name.startswith("torch-2.99."):
            del workspace.server.files[source, project, name]
    error, out, err = workspace.run("torch", "newest", "--smoke")

    assert (error, out) == (None, "")
    assert re.search(r"matrix: .* has torch [0-9.]+, the newest release\n", err)
    assert workspace.file.read_text() == OURS


def test_an_unknown_release_is_proposed_with_its_facts(workspace: Workspace) -> None:
    """The printed block can be pasted into compat.yaml without changes."""
    _, out, _ = workspace.run("torch", "2.99.0")
    block = block_of(out)
    wheel = next(name for _, _, name in workspace.server.files if name.startswith("torch-2.99.0"))

    (proposal,) = yaml.safe_load(block).values()
    assert proposal["companions"] == {"torchvision": "0.99.0", "torchaudio": "2.99.0"}
    assert "# torchaudio 2.99.0 does not pin torch: it was chosen by its version number" in block
    assert "# no torchvision pins torch 2.99.0; 0.99.0 is the newest that allows it" in block
    default = proposal["default"]
    assert (default["variant"], default["pythons"], default["triton_below"]) == ("cu128", ["cp310"], "3.15")
    assert default["requires"] == ["filelock", "setuptools;python_version>='3.12'"]
    assert default["bytes_cp310"] == len(workspace.server.files["default", "torch", wheel])
    assert set(default["pins"]) == {"nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12"}
    text = COMPAT.read_text().replace('\n  "2.0.1":', f'\n{block}  "2.0.1":', 1)
    found = parse(text.encode())
    assert found.releases["2.99.0"].variant("cu128").nccl == "2.27.5"
    assert found.releases["2.99.0"].variant("cu128").archs == ("sm_75", "sm_90", "compute_90")
    assert found.releases["2.8.0"] == FACTS.releases["2.8.0"]


def test_companions_are_read_from_the_newest_to_the_first_too_old_one(workspace: Workspace) -> None:
    """torchvision and torchaudio have dozens of releases, and reading one costs up to two requests."""
    workspace.run("torch", "2.99.0")
    requested = {
        path.rpartition("/")[2].split("-cp")[0]
        for _, path, _ in workspace.server.requests
        if "/files/" in path
    }

    assert requested == {
        "torch-2.99.0",
        "torchvision-0.99.0",
        "torchvision-0.98.0",
        "torchaudio-2.99.0",
        "torchaudio-2.9.1",
    }


def test_names_without_a_cuda_ending_and_a_toolkit_that_the_facts_lack(workspace: Workspace) -> None:
    """The index has two builds (build tags) of torch's wheel; the last one is used."""
    _, out, _ = workspace.run("torch", "2.99.1")
    block = block_of(out)

    assert '# matrix.yaml, under beyond:\n  - {torch: "2.99.1", cuda: "13.3"}\n' in out
    assert "variant: cu133" in block
    assert '        cuda-toolkit: "13.3.1"\n        nvidia-cudnn-cu13: "9.26.0.51"\n' in block
    assert "toolkit: [cublas, cudart, nvrtc]" in block
    assert (
        'requires: ["cuda-bindings<14,>=13.0.3;python_version<\'3.15\'", "nvidia-cublas==13.1.0.3.*"]'
        in block
    )
    assert 'triton: "~=3.9.0"' in block
    assert "bytes_cp310" not in block
    assert "cu133: {archs: [TODO], source: wheel}" in block
    assert out.endswith(
        '"13.3": {ga: "TODO", full: "TODO"}   # TODO: the driver tables of NVIDIA\'s CUDA release notes\n'
    )
    ours = [
        data for (_, _, name), data in workspace.server.files.items() if name.startswith("torch-2.99.1-1-")
    ]
    assert hashlib.sha256(ours[0]).hexdigest() in block


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"__version__ = '2.99.5+cu128'\n", True),
        (b"__version__ = '2.99.5+cu130'\ngit_version = 'ab'\n", False),
        (b"__version__ = '2.99.5'\n", True),  # no CUDA version
        (b"__version__ = '2.99.5+cu13x'\n", True),  # no valid CUDA version
    ],
)
def test_torchaudio_of_another_cuda_is_left_out(workspace: Workspace, text: bytes, kept: bool) -> None:
    """It cannot be imported, because it compares its own CUDA version with torch's."""
    add = workspace.server.add
    add("default", "torch", "2.99.5", requires=CU12, tag=tag("cp311"), files=CODE)
    add("default", "torchaudio", "2.99.5", tag=tag("cp311"), files={"torchaudio/version.py": text})
    block = block_of(workspace.run("torch", "2.99.5")[1])
    (proposal,) = yaml.safe_load(block).values()

    assert proposal["companions"].get("torchaudio") == ("2.99.5" if kept else None)
    note = "    # torchaudio 2.99.5 is built for CUDA 13.0: its import fails with torch for CUDA 12.8\n"
    assert (note in block) is not kept


def test_the_block_of_a_complete_release_has_no_todo() -> None:
    """If a value is missing, the block has a TODO in its place, which the schema refuses."""
    default = FACTS.releases["2.9.1"].default
    found = Companion(version="1.0", pins=True)
    whole = ReleaseMetadata(
        version="2.99.1",
        cuda="12.8",
        torchvision=found,
        torchaudio=found,
        cudnn_major=9,
        default=default,
        archs=("sm_90",),
        bytes_cp310=None,
    )
    none = Companion(version=None, pins=False)
    partial = (
        replace(whole, torchvision=none),
        replace(whole, torchaudio=none),
        replace(whole, cudnn_major=0),
        replace(whole, default=replace(default, triton="")),
        replace(whole, archs=()),
    )

    assert (whole.is_complete, "TODO" in block(whole)) == (True, False)
    assert [each.is_complete for each in partial] == [False] * 5
    assert ["TODO" in block(each) for each in partial] == [True] * 5


def test_a_release_missing_in_the_facts_is_not_written_into_the_matrix(workspace: Workspace) -> None:
    """With such a matrix, every command would fail."""
    error = workspace.refused("torch", "2.99.1", "--write")

    assert isinstance(error, ConfigError)
    assert "compat.yaml has no facts for CUDA 13.3 and torch 2.99.1" in error.message


@pytest.fixture
def compat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the facts; --write changes the copy instead of torchkiln's own file."""
    copy = tmp_path / "compat.yaml"
    copy.write_bytes(COMPAT.read_bytes())
    monkeypatch.setattr(command, "_FACTS_FILE", copy)
    return copy


def test_write_inserts_the_facts_after_the_newest_older_release(workspace: Workspace, compat: Path) -> None:
    before = compat.read_text()
    error, out, err = workspace.run("torch", "2.99.0", "--write")
    after = compat.read_text()

    assert error is None
    assert "wrote torchkiln/data/compat.yaml" in err
    assert after.replace("\n" + block_of(out).rstrip() + "\n", "", 1) == before
    assert list(parse(after.encode()).releases)[-1] == "2.99.0"
    assert '{torch: "2.99.0", cuda: "12.8"}' in workspace.file.read_text()


def test_the_facts_of_a_release_are_inserted_between_others(compat: Path) -> None:
    text = with_block(compat.read_text(), "releases", "2.8.5", '  "2.8.5":\n    a: 1\n', name="x")

    assert '\n\n  "2.8.5":\n    a: 1\n\n  "2.9.1":\n' in text
    with pytest.raises(ConfigError, match=r"x: releases has no version before 1\.0"):
        with_block(text, "releases", "1.0", "", name="x")


def test_an_installed_package_does_not_change_its_facts(
    workspace: Workspace, compat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "INSTALLED", True)
    error = workspace.refused("torch", "2.99.0", "--write")

    assert isinstance(error, ConfigError)
    assert "is part of the installed package, and has no facts for torch 2.99.0" in error.message
    assert compat.read_bytes() == COMPAT.read_bytes()


@pytest.mark.parametrize(("locked", "expected", "count"), [(0, 10, 2), (4, 4, 1)])
def test_it_is_locked_and_built_with_the_new_facts(
    workspace: Workspace,
    compat: Path,
    monkeypatch: pytest.MonkeyPatch,
    locked: int,
    expected: int,
    count: int,
) -> None:
    """`lock` runs before `build`; if one fails, the command ends with its exit code."""
    ran: list[list[str]] = []

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        return subprocess.CompletedProcess(words, locked)

    def replaced(program: str, words: list[str]) -> None:
        ran.append(words)
        raise SystemExit(10)

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setattr(command.os, "execv", replaced)
    words = ["add", "torch", "2.99.0", "--smoke", "--matrix", str(workspace.file)]
    done = CliRunner(env=workspace.environ).invoke(matrix, words)
    cell = ["--torch", "2.99.0", "--cuda", "12.8", "--matrix", str(workspace.file)]

    assert done.exit_code == expected, done.output
    assert [one[3:] for one in ran] == [["lock", *cell], ["build", *cell, "--smoke"]][:count]
    assert "2.99.0" in compat.read_text()
