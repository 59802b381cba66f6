"""`matrix add torch X` against an index on this machine, and the edit of matrix.yaml."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.planned import FACTS, ROOT
from tests.servers.index_server import IndexServer
from torchkiln.cli import matrix as command
from torchkiln.cli.matrix import matrix
from torchkiln.errors import BuildFailed, ConfigError, KilnError, Unresolvable
from torchkiln.matrix.add_release import propose
from torchkiln.matrix.add_release.compat_block import block
from torchkiln.matrix.add_release.edit import with_block
from torchkiln.matrix.add_release.propose import Companion, ReleaseMetadata
from torchkiln.matrix.facts import parse

LIBRARY = "torch/lib/libtorch_python.so"
CODE = {LIBRARY: b"\x7fELF\0sm_75 sm_90 compute_90\0sm_75\0"}
OURS = (ROOT / "matrix.yaml").read_text().replace('  - {torch: "2.9.1", cuda: "12.8"}\n', "")
COMPAT = ROOT / "torchkiln" / "data" / "compat.yaml"
LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'
CU12 = [
    "filelock",
    'setuptools; python_version >= "3.12"',
    f"nvidia-cuda-runtime-cu12==12.8.90; {LINUX}",
    f"nvidia-cudnn-cu12==9.10.2.21; {LINUX}",
    f"nvidia-nccl-cu12==2.27.5; {LINUX}",
    f'triton==3.5.1; {LINUX} and python_version < "3.15"',
    'pywin32; platform_system == "Windows"',
    'opt-einsum>=3.3; extra == "opt-einsum"',
]
CU13 = [
    'cuda-toolkit[nvrtc,cublas,cudart]==13.3.1; platform_system == "Linux"',
    'nvidia-cublas==13.1.0.3.*; platform_system == "Linux"',
    'cuda-bindings<14,>=13.0.3; platform_system == "Linux" and python_version < "3.15"',
    'nvidia-cudnn-cu13==9.26.0.51; platform_system == "Linux"',
    'triton~=3.9.0; platform_system == "Linux"',
]


def tag(python: str, abi: str = "", platform: str = "manylinux_2_28_x86_64") -> str:
    return f"{python}-{abi or python}-{platform}"


class Workspace:
    """An index with two made-up releases, and the command before it."""

    def __init__(self, server: IndexServer, folder: Path) -> None:
        self.server, self.file = server, folder / "matrix.yaml"
        self.file.write_text(OURS)
        self.environ = {
            "TORCHKILN_CACHE": str(folder / "cache"),
            "UV_DEFAULT_INDEX": server.url("default"),
            "PIP_CONFIG_FILE": "/dev/null",
        }

    def run(self, *words: str) -> tuple[KilnError | None, str, str]:
        """The error of `matrix add` with *words*, its stdout and its stderr."""
        done = CliRunner(env=self.environ).invoke(matrix, ["add", *words, "--matrix", str(self.file)])
        assert done.exception is None or isinstance(done.exception, KilnError), done.exception
        return done.exception, done.stdout, done.stderr

    def refused(self, *words: str) -> KilnError:
        """The error that it must end in, with the matrix as it was."""
        error, _, _ = self.run(*words)
        assert error is not None
        assert self.file.read_text() == OURS
        return error


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with IndexServer() as server:
        add = server.add
        for python in ("cp310", "cp311"):
            add("default", "torch", "2.9.1", requires=CU12, tag=tag(python))
        add("default", "torch", "2.9.1", requires=CU12, tag=tag("cp313", "cp313t"), payload=b"t")
        add("default", "torch", "2.9.1", tag=tag("cp311", platform="manylinux_2_28_aarch64"))
        add("default", "torch", "2.9.1", tag=tag("cp311", platform="win_amd64"))
        add("default", "torch", "2.99.0", requires=CU12, tag=tag("cp310"), files=CODE)
        add("default", "torch", "2.99.1", requires=CU13, tag=tag("cp311"))
        add("default", "torch", "2.99.1", requires=CU13, tag="1-" + tag("cp311"), payload=b"second build")
        add("default", "torch", "2.99.2", requires=["filelock"], tag=tag("cp311"))
        add("default", "torch", "2.99.3", tag=tag("cp311", platform="macosx_11_0_arm64"))
        for version, torch in (("0.23.0", "2.8.0"), ("0.24.1", "2.9.1"), ("0.98.0", "2.98.0")):
            add("default", "torchvision", version, requires=[f"torch (=={torch})"], tag=tag("cp311"))
        add("default", "torchvision", "0.99.0", requires=["torch>=2.99.0"], tag=tag("cp311"))
        add("default", "torchvision", "0.100.0rc1", requires=["torch==2.99.0"], tag=tag("cp311"))
        add("default", "torchaudio", "2.9.1", requires=["torch==2.9.1"], tag=tag("cp311"))
        add("default", "torchaudio", "2.99.0", tag=tag("cp311"))
        yield Workspace(server, tmp_path)


def block_of(stdout: str) -> str:
    """The proposed block for compat.yaml's releases."""
    return stdout.split("compat.yaml, under releases:\n")[1].split("\n# ")[0] + "\n"


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


def test_an_unknown_release_is_proposed_with_its_facts(workspace: Workspace) -> None:
    """The facts accept the block as it is."""
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
    """Each costs a request or two, and there are dozens."""
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
    """Of two builds of a wheel the last counts."""
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


def test_the_block_of_a_complete_release_has_no_todo() -> None:
    """And that of a release that lacks a value has one, so that the schema refuses it."""
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
    """Every command would refuse it."""
    error = workspace.refused("torch", "2.99.1", "--write")

    assert isinstance(error, ConfigError)
    assert "compat.yaml has no facts for CUDA 13.3 and torch 2.99.1" in error.message


@pytest.fixture
def compat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the facts, which --write changes in place of torchkiln's own."""
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


def test_of_a_release_between_others(compat: Path) -> None:
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
    """In this order; a failure ends it with its exit code."""
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


@pytest.mark.parametrize(
    "library", [b"", b"sm_75 sm_90", b"\0sm_75 sm_90\0sm_75 sm_80\0", b"\0sm_90\0", b"\0sm_7x sm_90\0"]
)
def test_a_library_that_does_not_name_its_gpu_code(workspace: Workspace, library: bytes) -> None:
    workspace.server.add(
        "default", "torch", "2.99.4", requires=CU12, tag=tag("cp311"), files={LIBRARY: library}
    )

    assert "{archs: [TODO], source: wheel}" in block_of(workspace.run("torch", "2.99.4")[1])


def test_a_library_that_is_too_large(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(propose, "_LIBRARY_BYTES", 10)
    error = workspace.refused("torch", "2.99.0")

    assert isinstance(error, BuildFailed)
    assert "invalid wheel: libtorch_python.so has more than 10 bytes" in error.message


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2.9", "not found on the index; nearest: 2.9.1, "),
        ("2.98.7", "not found on the index; nearest: 2.99.0, 2.99.1, "),
        ("two", "not found on the index; nearest: 2.99.3, 2.99.2, "),
        ("2.99.2", "requires neither a CUDA runtime nor cuda-toolkit"),
        ("2.99.3", "no wheel for Linux x86_64"),
    ],
)
def test_an_impossible_request_is_refused_with_the_available_ones(
    workspace: Workspace, version: str, why: str
) -> None:
    error = workspace.refused("torch", version)

    assert isinstance(error, ConfigError)
    assert why in error.message
    assert error.hint


def test_an_index_that_does_not_respond(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    workspace.server.faults.page_errors = [503] * 6

    assert isinstance(workspace.refused("torch", "2.9.1"), BuildFailed)


def test_an_index_without_torch(workspace: Workspace) -> None:
    workspace.environ["UV_DEFAULT_INDEX"] = workspace.server.url("empty")

    assert isinstance(workspace.refused("torch", "2.9.1"), Unresolvable)


@pytest.mark.parametrize(
    ("fault", "value", "why"),
    [
        ("no_ranges", True, "no support for range requests"),
        ("deleted", True, "HTTP 404"),
        ("extra", b"x" * 70_000, "invalid wheel"),
        ("short", [0, 10] * 20, "another range than requested|connection (closed before|broke off)"),
    ],
)
def test_a_file_that_cannot_be_read(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str, value: object, why: str
) -> None:
    """With its name or place, and without the index's address in full."""
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    setattr(workspace.server.faults, fault, value)
    error = workspace.refused("torch", "2.9.1")

    assert isinstance(error, BuildFailed)
    assert re.search(why, error.message)
    assert "/files/" not in error.message


@pytest.mark.parametrize(
    ("details", "why"),
    [
        ({"requires": ["!"]}, "invalid requirement '!'"),
        ({"requires": CU12, "python": '>=3.10"\x1b[2J'}, "invalid Requires-Python"),
    ],
)
def test_invalid_metadata_is_refused(workspace: Workspace, details: dict[str, Any], why: str) -> None:
    """It would be printed, and written into our file."""
    workspace.server.add("default", "torch", "2.99.9", tag=tag("cp311"), **details)
    error = workspace.refused("torch", "2.99.9")

    assert why in error.message
    assert "\x1b" not in error.message


def test_a_wheel_for_an_unknown_python_is_ignored(workspace: Workspace) -> None:
    workspace.server.add("default", "torch", "2.99.0", tag=tag("cp3x"))

    assert "pythons: [cp310]" in block_of(workspace.run("torch", "2.99.0")[1])


def test_only_the_end_of_a_large_wheel_is_downloaded(workspace: Workspace) -> None:
    workspace.server.add("default", "torch", "2.9.2", requires=CU12, tag=tag("cp311"))
    name = next(name for _, _, name in workspace.server.files if name.startswith("torch-2.9.2"))
    data = workspace.server.files["default", "torch", name]
    workspace.server.files["default", "torch", name] = bytes(9 << 20) + data  # a zip may begin anywhere
    error, _, _ = workspace.run("torch", "2.9.2")

    assert error is None
    assert sum(sent.count for sent in workspace.server.sent if name in sent.path) < 2 << 20
