"""Start-up code of an environment that writes a passing result for a check that fails.

The checks of an image run without the image's start-up code and with the host's pytest. The host finds such
files before it starts a check: see tests/unit/test_outside.py.
"""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs_gcc
from tests.smoke_mutants.mutant import pytest_folder
from tests.smoke_suites import FACTS, findings, run_suite, suite_with

# A check that fails, and reports its process's variables and paths.
FAILING_CHECK = """
import json, os, sys

@pytest.mark.tier(0)
def test_fails(measure):
    names = ("LD_", "PYTEST_PLUGINS", "PYTEST_ADDOPTS")
    seen = {
        "variables": sorted(name for name in os.environ if name.startswith(names)),
        "pytest": pytest.__file__,
        "packages": [path for path in sys.path if path.endswith("site-packages")],
        "prefix": sys.prefix,
    }
    raise AssertionError(json.dumps(seen))
"""
FALSE_PASS = """
import json, os, sys
argv = sys.orig_argv
if any(word.endswith("one.py") for word in argv):
    with open(argv[-1], "w") as file:
        json.dump({"outcome": "passed", "message": "", "ran": True,
                   "measured": {"one": 2}, "threshold": {"one": {"equals": 2}}}, file)
    os._exit(0)
"""
C_FALSE_PASS = """
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void place(int argc, char **argv) {
    for (int at = 0; at < argc; at++) {
        size_t length = strlen(argv[at]);
        if (length > 6 && !strcmp(argv[at] + length - 6, "one.py")) {
            FILE *file = fopen(argv[argc - 1], "w");
            fputs("{\\"outcome\\": \\"passed\\", \\"message\\": \\"\\", \\"ran\\": true,"
                  "\\"measured\\": {\\"one\\": 2},"
                  "\\"threshold\\": {\\"one\\": {\\"equals\\": 2}}}", file);
            fclose(file);
            _exit(0);
        }
    }
}
"""


def in_pth(site: Path) -> Mapping[str, str]:
    (site / "hostile.py").write_text(FALSE_PASS)
    (site / "hostile.pth").write_text("import hostile\n")
    return {}


def in_sitecustomize(site: Path) -> Mapping[str, str]:
    (site / "sitecustomize.py").write_text(FALSE_PASS)
    return {}


def in_pytest(site: Path) -> Mapping[str, str]:
    (site / "pytest.py").write_text(f"def main(_):\n{_indented(FALSE_PASS)}    return 0\n")
    return {}


def in_plugin(site: Path) -> Mapping[str, str]:
    (site / "hostile.py").write_text(FALSE_PASS)
    return {"PYTEST_PLUGINS": "hostile"}


def in_options(site: Path) -> Mapping[str, str]:
    (site / "hostile.py").write_text(FALSE_PASS)
    return {"PYTEST_ADDOPTS": "-p hostile"}


def in_library(site: Path) -> Mapping[str, str]:
    (site / "hostile.c").write_text(C_FALSE_PASS)
    library = site / "hostile.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, site / "hostile.c"], check=True)
    return {"LD_PRELOAD": str(library)}


PLACES = [
    in_pth,
    in_sitecustomize,
    in_pytest,
    in_plugin,
    in_options,
    pytest.param(in_library, marks=needs_gcc),
]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """site-packages of a fresh virtual environment."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    return next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"


def finding(site: Path, tmp_path: Path, env: Mapping[str, str]) -> Mapping[str, Any]:
    """The finding of the failing check in that environment."""
    suite = suite_with(tmp_path / "suite", {"test_fails.py": FAILING_CHECK})
    python = site.parents[2] / "bin" / "python"
    facts = FACTS | {"env": {"LD_LIBRARY_PATH": "/opt/expected"}}
    wheels = Path(pytest_folder())
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/opt/expected", **env}
    return findings(run_suite(suite, tmp_path, python=str(python), facts=facts, env=env, wheels=wheels))[
        "fails"
    ]


@pytest.mark.parametrize("place", PLACES)
def test_a_check_that_fails_is_reported_as_failed(
    place: Callable[[Path], Mapping[str, str]], site: Path, tmp_path: Path
) -> None:
    found = finding(site, tmp_path, place(site))
    assert found["outcome"] == "failed"
    assert json.loads(found["message"]) == {
        "variables": ["LD_LIBRARY_PATH"],
        "pytest": f"{pytest_folder()}/pytest/__init__.py",
        "packages": [path for path in (str(site), pytest_folder()) if path.endswith("site-packages")],
        "prefix": str(site.parents[2]),
    }


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
