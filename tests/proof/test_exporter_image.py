"""deploy/monitoring is a project: the commands of docs/deploy.md build an image with the exporter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy_page import blocks
from tests.needs import needs_namespaces, nightly
from torchkiln.util.places import ROOT

pytestmark = [
    pytest.mark.proof,
    nightly,
    pytest.mark.network,
    pytest.mark.usefixtures("free_rootfs"),
    needs_namespaces,
]


def test_the_exporter_runs_in_the_image(image: dict[str, Any], tmp_path: Path) -> None:
    kit = tmp_path / "deploy/monitoring"
    shutil.copytree(ROOT / "deploy/monitoring", kit)
    _, block = blocks("Prometheus")
    outputs = []
    for line in block.splitlines():
        words = line.partition("#")[0].split()
        assert words[:2] == ["python", "build.py"]
        words = [str(kit) if word == "deploy/monitoring" else word for word in words[2:]]
        layout = ["--output", image["layout"]] if words[0] in ("build", "run", "smoke") else []
        argv = [sys.executable, str(ROOT / "build.py"), words[0], *layout, *words[1:]]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        outputs.append(done.stdout)

    assert re.search(r"^torchkiln_nvml_up [01]$", outputs[2], re.MULTILINE)
    assert "pass" in outputs[3]
