"""Run one check in this process: `python -I -B one.py SUITE WHEELS FILE::FUNCTION FACTS RESULT [TURN]`.

TURN is a file descriptor: the check starts when it has a byte.

pytest comes from the folder of its wheels, never from the image. The folder is *appended* to sys.path, and
the suite is loaded by path, so that they do not shadow other packages of the image.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path


def load_suite(folder: Path) -> None:
    """Make *folder* importable as smoke_tests, without an entry on sys.path."""
    spec = importlib.util.spec_from_file_location(
        "smoke_tests", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["smoke_tests"] = module
    spec.loader.exec_module(module)


def await_turn(descriptor: int, check: Path) -> None:
    """Import torch if *check* does, and return when its turn comes.

    If the import fails, this program starts again without TURN, so that the check meets the failure itself.
    """
    failed = False
    try:
        if "import torch" in check.read_text("utf-8"):
            importlib.import_module("torch")
    except BaseException:  # a broken torch can raise anything, SystemExit too
        failed = True
    if not os.read(descriptor, 1):
        os._exit(1)  # runner.py has ended
    os.close(descriptor)
    if failed:
        os.execv(sys.executable, sys.orig_argv[:-1])


def main(suite: str, wheels: str, node: str, facts: str, result: str, turn: str = "") -> int:
    """Run the check; return pytest's exit code."""
    load_suite(Path(suite))
    from smoke_tests.isolation import add_packages, add_pytest

    add_packages()
    if wheels:
        add_pytest(wheels)
    import pytest

    if turn:
        await_turn(int(turn), Path(suite, node.partition("::")[0]))
    arguments = ["-q", "-p", "no:junitxml", "-c", f"{suite}/pytest.ini", "--rootdir", suite]
    arguments += [f"--kiln-facts={facts}", f"--kiln-result={result}", f"{suite}/{node}"]
    return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
