"""The packages that a bundle carries are those that `smoke` imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from torchkiln.util.places import ROOT

REQUIREMENTS = ROOT / "torchkiln/smoke/bundle/requirements.txt"

IMPORTED = """
import sys, torchkiln.cli.smoke, torchkiln.smoke.session
print("\\n".join({name.partition(".")[0] for name in sys.modules}))
"""


def pinned() -> set[str]:
    lines = REQUIREMENTS.read_text().splitlines()
    names = (line.rstrip(" \\") for line in lines if line and not line.startswith((" ", "#")))
    return {Requirement(name).name for name in names}


def test_every_package_that_smoke_imports_is_carried() -> None:
    """A bundle runs on a machine without packages: one that is missing there stops it at its first line."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, cwd=Path(ROOT)
    )
    known = packages_distributions()
    imported = {
        known[name][0].lower().replace("_", "-").replace(".", "-")
        for name in ran.stdout.split()
        if name in known
    }
    assert {"click", "msgspec"} <= imported
    assert imported - {"torchkiln", "setuptools"} <= pinned()  # setuptools loads itself, from a .pth file
