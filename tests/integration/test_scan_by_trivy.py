"""`torchkiln scan` by a real Trivy, where there is one on the PATH; its database is ours, so no network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import trivy_database
from tests.scans import by_trivy, two_images
from torchkiln.cli.scan import scan
from torchkiln.sbom.scanner_report import read

pytestmark = pytest.mark.skipif(not shutil.which("trivy"), reason="no trivy on the PATH: see docs/scan.md")


def test_a_real_trivy_says_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second of two images, with nothing left out by a file or a variable of the user's."""
    layout = two_images(tmp_path)
    trivy_database.write(tmp_path / "cache")
    monkeypatch.setenv("TRIVY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRIVY_SKIP_DB_UPDATE", "true")
    monkeypatch.setenv("TRIVY_SEVERITY", "LOW")
    monkeypatch.chdir(tmp_path)
    Path(".trivyignore").write_text("CVE-2024-6345\n")

    done = CliRunner().invoke(scan, [f"{layout.path}:b", "--json", "--fail-on", "unknown"])

    told = json.loads(done.stdout)
    told_of = {(one["id"], one["package"], one["installed"], one["fixed"]) for one in told["refused"]}
    image = layout.image("b")
    recorded = read(json.dumps(by_trivy(image)).encode(), where="recorded")
    assert told["digest"] == image.manifest
    assert (told["system"], told["database"]) == ("debian 12.9", "2026-11-22T06:00:00Z")
    assert told["version"]
    assert told_of == {(one.id, one.package, one.installed, one.fixed) for one in recorded.findings}
    assert [one["path"] for one in told["refused"]] == [one.path for one in recorded.findings]
    assert [one["severity"] for one in told["refused"]] == [one.severity.word for one in recorded.findings]
