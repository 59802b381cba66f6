"""The package as a program, as the entrypoint starts it; and that Python alone is enough for it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inside import PACKAGE

MODULES = sorted(PACKAGE.glob("*.py"))


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """It run, with nothing but *environ*."""
    argv = [sys.executable, "-IB", str(PACKAGE), *words]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)


def test_wrong_settings_start_nothing() -> None:
    """All of them are told, a line each, and how to learn the right ones; the token is not."""
    token = "two words that are nobody's business"
    done = command("services", JUPYTER_PORT="http", SSH="perhaps", JUPYTER_TOKEN=token)
    lines = done.stderr.splitlines()

    assert (done.returncode, done.stdout) == (2, "")
    for number, name in enumerate(("JUPYTER_TOKEN", "JUPYTER_PORT", "SSH")):
        assert lines[number].startswith(f"torchkiln: {name}")
    assert "help" in lines[-1]
    assert len(lines) == 4
    assert "business" not in done.stderr


def test_without_a_word_it_is_services() -> None:
    assert command(SSH="perhaps").stderr == command("services", SSH="perhaps").stderr


@pytest.mark.parametrize("word", ["", "servces", "--help"])
def test_a_word_that_is_no_command(word: str) -> None:
    done = command(word)

    assert (done.returncode, done.stdout) == (2, "")
    assert repr(word) in done.stderr
    assert "help" in done.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_it_needs_nothing_but_python(module: Path) -> None:
    """The base's, not the venv's: it says what is wrong with that one."""
    tree = ast.parse(module.read_text())
    named = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    named |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in named} <= {*sys.stdlib_module_names, "workplace"}
