"""Completion in a shell: commands, options and values, by the scripts that `completion` prints."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from tests.cells import build, planned_cell, small_wheels
from tests.needs import tool
from tests.programs import run_program
from tests.unpublished import FakeIndex
from torchkiln.cli import COMMANDS, torchkiln
from torchkiln.util.places import MATRIX, ROOT

#: Sources the script $1 and prints the completions of the other arguments, the words of a command line.
BASH = """
source "$1"; shift
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_torchkiln_completion "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module", name="shell")
def a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with an image, and torchkiln on PATH in `bin`."""
    folder = tmp_path_factory.mktemp("completion")
    shutil.copyfile(MATRIX, folder / "matrix.yaml")
    wheels = small_wheels(folder / "wheels")
    build(planned_cell(wheels), folder / "cache", folder / "dist", FakeIndex(wheels))
    program = folder / "bin/torchkiln"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom torchkiln.cli import main\nmain()\n")
    program.chmod(0o755)
    for name in ("bash", "zsh", "fish"):
        (folder / name).write_text(run(folder, str(program), "completion", name))
    return folder


def run(folder: Path, *argv: str, **environ: str) -> str:
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **environ}
    done = run_program(argv, cwd=folder, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def completed(folder: Path, *words: str) -> list[str]:
    """The words that bash offers after `torchkiln WORDS...`; the last word is incomplete."""
    return run(folder, "bash", "-c", BASH, "bash", "./bash", "torchkiln", *words).split()


def offered(folder: Path, *words: str) -> list[str]:
    """The words that click offers in this process for the same command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = ShellComplete(torchkiln, {}, "torchkiln", "_TORCHKILN_COMPLETE")
        return [item.value for item in found.get_completions([*words[:-1]], words[-1])]


def test_bash(shell: Path) -> None:
    assert completed(shell, "pl") == ["plan"]
    assert completed(shell, "lock", "--torch", "2.7.1,2.8") == ["2.7.1,2.8.0"]
    assert completed(shell, "run", "--output", "none", "") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("",), list(COMMANDS)),
        (("base", "bu"), ["build"]),
        (("smoke", "r"), ["read", "run"]),
        (("--ver",), ["--version"]),
        (("--to",), ["--torch"]),
        (("--torch", "2.7", "--dry"), ["--dry-run"]),
        (("lock", "--torch", "2.1"), ["2.1.2", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"]),
        (("build", "--cuda", "12"), ["12.1", "12.8"]),
        (("build", "--flavor", ""), ["runtime", "devel"]),
        (("list", "--os", "u"), ["ubuntu22.04", "ubuntu24.04"]),
        (("build", "--wi"), []),  # a removed option
        (("build", "--gpus", "9.0,12"), ["9.0,12.0"]),
        (("build", "--engine", ""), ["embedded", "docker"]),
        (("init", "--torch", "2.9"), ["2.9.1", "2.9.0"]),
        (("run", ""), ["2.7.1-cuda12.1-cudnn9-runtime"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("no-such-command", "--x"), []),
    ],
)
def test_values(shell: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(shell, *words) == expected


def test_an_invalid_matrix_completes_nothing_and_prints_nothing(shell: Path, tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text("torch: [")
    words = ("lock", "--matrix", str(tmp_path / "matrix.yaml"), "--torch", "")

    assert completed(shell, *words) == []


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_the_other_shells_accept_their_scripts(shell: Path, name: str) -> None:
    tool(name)
    run(shell, name, "-n", name)


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_answers_in_the_form_of_each_shell(shell: Path, name: str) -> None:
    words = {"COMP_WORDS": "torchkiln pla", "COMP_CWORD": "pla" if name == "fish" else "1"}
    answer = run(shell, "torchkiln", _TORCHKILN_COMPLETE=f"{name}_complete", **words)

    assert answer.split("\n")[0].split("\t")[0].split(",")[-1] in ("plan", "plain")
    assert "plan" in answer


def test_commands_are_completed_without_their_imports(shell: Path) -> None:
    code = (
        "import sys, atexit; atexit.register(lambda: print(*sys.modules)); "
        "from torchkiln.cli import main; main([])"
    )
    words = {"COMP_WORDS": "torchkiln p", "COMP_CWORD": "1", "_TORCHKILN_COMPLETE": "bash_complete"}
    *_, loaded = run(shell, sys.executable, "-c", code, **words).splitlines()

    assert {module for module, _ in COMMANDS.values()} & set(loaded.split()) == set()
