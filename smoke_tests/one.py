"""Run one check in this process: `python -I -B one.py SUITE WHEELS FILE::FUNCTION FACTS RESULT`.

pytest comes from the folder of its wheels, never from the image. The folder is *appended* to sys.path, and
the suite is loaded by path, so that they do not shadow other packages of the image.
"""

from __future__ import annotations

import importlib.util
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


def main(suite: str, wheels: str, node: str, facts: str, result: str) -> int:
    """Run the check; return pytest's exit code."""
    load_suite(Path(suite))
    from smoke_tests.isolation import add_packages, add_pytest

    add_packages()
    if wheels:
        add_pytest(wheels)
    import pytest

    arguments = ["-q", "-p", "no:junitxml", "-c", f"{suite}/pytest.ini", "--rootdir", suite]
    arguments += [f"--kiln-facts={facts}", f"--kiln-result={result}", f"{suite}/{node}"]
    return int(pytest.main(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
