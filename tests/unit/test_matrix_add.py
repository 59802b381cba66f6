"""`matrix add torch X` against an index on this machine, and the edit of matrix.yaml."""

from __future__ import annotations

import hashlib
import re
import subprocess
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.added_release import CODE, CU12, OURS, Workspace, tag, workspace
from tests.planned import FACTS, ROOT
from torchkiln.cli import matrix as command
from torchkiln.cli.matrix import matrix
from torchkiln.errors import ConfigError
from torchkiln.matrix import facts
from torchkiln.matrix import matrix as grid

__all__ = ["workspace"]


PAIR = '  - {torch: "2.9.1", cuda: "12.8"}\n'


def facts_of(stdout: str) -> str:
    """The text of facts.yaml that `matrix add` prints."""
    return stdout.split("# facts.yaml, beside it:\n")[1]


def proposed(stdout: str) -> Any:
    """The facts of the release that `matrix add` prints."""
    (proposal,) = yaml.safe_load(facts_of(stdout))["releases"].values()
    return proposal


def test_a_known_release_needs_only_lines_of_the_matrix(workspace: Workspace) -> None:
    error, out, err = workspace.run("torch", "2.9.1")

    assert (error, out) == (None, '# matrix.yaml, under beyond:\n  - {torch: "2.9.1", cuda: "12.8"}\n')
    assert "nothing was written" in err
    assert workspace.file.read_text() == OURS


def test_write_changes_the_matrix_once(workspace: Workspace) -> None:
    workspace.file.chmod(0o640)
    error, _, err = workspace.run("torch", "2.9.1", "--write")
    text = workspace.file.read_text()

    assert error is None
    assert "next: torchkiln lock --torch 2.9.1" in err
    assert text.replace(PAIR, "") == OURS
    assert grid.read(workspace.file, FACTS) == grid.read(ROOT / "matrix.yaml", FACTS)
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
    assert "\n  3.0.0:\n" in out


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
    """The printed facts can be saved as facts.yaml without changes."""
    _, out, _ = workspace.run("torch", "2.99.0")
    proposal = proposed(out)

    assert proposal["companions"] == {"torchvision": "0.99.0", "torchaudio": "2.99.0"}
    assert "# torchaudio 2.99.0 does not pin torch: it was chosen by its version number\n" in out
    assert "# no torchvision pins torch 2.99.0; 0.99.0 is the newest that allows it\n" in out
    default = proposal["default"]
    assert (default["variant"], default["pythons"], default["triton_below"]) == ("cu128", ["cp310"], "3.15")
    assert default["requires"] == ["filelock", 'setuptools; python_version >= "3.12"']
    assert set(default["pins"]) == {"nvidia-cuda-runtime-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12"}
    (workspace.file.parent / "facts.yaml").write_text(facts_of(out))
    found = facts.load(workspace.file)
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
    proposal = proposed(out)
    default = proposal["default"]

    assert '# matrix.yaml, under beyond:\n  - {torch: "2.99.1", cuda: "13.3"}\n' in out
    assert default["variant"] == "cu133"
    assert default["pins"] == {"cuda-toolkit": "13.3.1", "nvidia-cudnn-cu13": "9.26.0.51"}
    assert default["toolkit"] == ["cublas", "cudart", "nvrtc"]
    assert [text.partition(";")[0] for text in default["requires"]] == [
        *("cuda-bindings<14,>=13.0.3", "nvidia-cublas==13.1.0.3.*")
    ]
    assert default["triton"] == "~=3.9.0"
    assert proposal["variants"] == {"cu133": {"archs": ["TODO"], "source": "wheel"}}
    assert yaml.safe_load(facts_of(out))["cuda"] == {"13.3": {"ga": "TODO", "full": "TODO"}}
    ours = [
        data for (_, _, name), data in workspace.server.files.items() if name.startswith("torch-2.99.1-1-")
    ]
    assert default["sha256"] == {"cp311": hashlib.sha256(ours[0]).hexdigest()}


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
    _, out, _ = workspace.run("torch", "2.99.5")

    assert proposed(out)["companions"].get("torchaudio") == ("2.99.5" if kept else None)
    note = "# torchaudio 2.99.5 is built for CUDA 13.0: its import fails with torch for CUDA 12.8\n"
    assert (note in out) is not kept


@pytest.mark.parametrize(
    ("lacking", "place"),
    [("torchvision", "companions"), ("nvidia-cudnn", "cudnn_major"), ("triton", "default"), ("", "variants")],
)
def test_a_fact_that_the_index_lacks_is_a_todo(workspace: Workspace, lacking: str, place: str) -> None:
    """The facts with a TODO are not written, and are refused in facts.yaml."""
    server = workspace.server
    requires = [text for text in CU12 if not lacking or not text.startswith(lacking)]
    files = CODE if lacking else {}
    server.add(
        "default", "torch", "2.98.0", requires=requires, tag=tag("cp310"), files=files, python=">=3.10"
    )
    server.add("default", "torchaudio", "2.98.0", requires=["torch==2.98.0"], tag=tag("cp310"))
    if lacking == "torchvision":
        for key in [key for key in server.files if key[1] == "torchvision"]:
            del server.files[key]
        server.add("default", "torchvision", "0.1.0", requires=["torch==2.0.1"], tag=tag("cp310"))
    error = workspace.refused("torch", "2.98.0", "--write")
    _, out, _ = workspace.run("torch", "2.98.0")

    assert "the index does not have all facts of torch 2.98.0; nothing was written" in error.message
    assert [key for key, value in proposed(out).items() if "TODO" in str(value)] == [place]
    beside = workspace.file.parent / "facts.yaml"
    assert str(beside) in error.hint
    beside.write_text(facts_of(out))
    with pytest.raises(ConfigError, match=rf"facts\.yaml: releases\.2\.98\.0\.{place}"):
        facts.load(workspace.file)


def test_facts_of_a_release_and_its_cuda_may_be_completed_by_hand(workspace: Workspace) -> None:
    _, out, _ = workspace.run("torch", "2.99.1")
    text = facts_of(out).replace("archs: [TODO]", "archs: [sm_90]")
    (workspace.file.parent / "facts.yaml").write_text(text.replace("TODO", "590.44.01"))
    error, out, _ = workspace.run("torch", "2.99.1", "--write")

    assert error is None
    assert out == '# matrix.yaml, under beyond:\n  - {torch: "2.99.1", cuda: "13.3"}\n'
    found = facts.load(workspace.file)
    assert ("2.99.1", "13.3") in grid.read(workspace.file, found).pairs
    assert found.cuda["13.3"].ga == "590.44.01"


def test_write_adds_the_facts_to_those_beside_the_matrix(workspace: Workspace) -> None:
    """The facts in torchkiln's own folder do not change: it may be an installed package."""
    workspace.server.add(
        "default", "torch", "2.99.7", requires=CU12, tag=tag("cp310"), files=CODE, python=">=3.10"
    )
    before, beside = facts.own(), workspace.file.parent / "facts.yaml"
    error, out, err = workspace.run("torch", "2.99.0", "--write")

    assert error is None
    assert f"wrote {beside}" in err
    assert yaml.safe_load(beside.read_text()) == yaml.safe_load(facts_of(out))
    assert workspace.run("torch", "2.99.7", "--write")[0] is None
    found = facts.load(workspace.file)
    assert [*found.releases] == [*before.releases, "2.99.0", "2.99.7"]
    assert grid.read(workspace.file, found).pairs[-2:] == (("2.99.0", "12.8"), ("2.99.7", "12.8"))
    assert facts.parse((ROOT / "torchkiln/data/compat.yaml").read_bytes()) == before


def test_facts_beside_a_matrix_do_not_replace_those_of_torchkiln(workspace: Workspace) -> None:
    raw = yaml.safe_load((ROOT / "torchkiln/data/compat.yaml").read_text())
    cuda = {"12.8": {"ga": "100.0", "full": "100.0"}}
    changed = {**raw["releases"]["2.9.1"], "cudnn_major": 99}
    beside = workspace.file.parent / "facts.yaml"
    beside.write_text(yaml.safe_dump({"cuda": cuda, "releases": {"2.9.1": changed}}))

    assert facts.load(workspace.file) == facts.own()
    for text, why in (
        ("traps: {}", "only `releases` and `cuda`"),
        ("{", "facts.yaml:2: not valid YAML"),
        ("- 1", "only "),
    ):
        beside.write_text(text)
        assert why in workspace.refused("torch", "2.9.1").message


@pytest.mark.parametrize(("locked", "expected", "count"), [(0, 10, 2), (4, 4, 1)])
def test_it_is_locked_and_built_with_the_new_facts(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, locked: int, expected: int, count: int
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
    assert "2.99.0" in (workspace.file.parent / "facts.yaml").read_text()
