"""Scanners, replaced by a strict fake program: what they get as input, and how they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scans import DOCUMENTS, calls, fake_program, has_ended, scan_command, two_images
from torchkiln.errors import GateRefused, ToolMissing, VerificationFailed
from torchkiln.oci.layout import Layout

TOOLS = sorted(DOCUMENTS)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A layout with two images; tests only read it."""
    return two_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is empty, so it has no list, and PATH contains no scanners."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_scanner_finds_vulnerabilities_and_the_image_is_refused(layout: Layout, tool: str) -> None:
    """The exit code is 7. Message and stdout have each finding with package, versions and severity."""
    fake_program(Path("bin"), tool)

    done = scan_command(layout)

    setuptools = {"trivy": "CVE-2024-6345", "grype": "GHSA-cx63-2mw6-8hw5"}[tool]
    assert isinstance(done.exception, GateRefused), done.exception
    assert done.exception.message.splitlines() == [
        "a: 2 vulnerabilities are high or worse and not allowed",
        "  CVE-2023-45853: critical, zlib1g 1:1.2.13.dfsg-1, no fix yet",
        f"  {setuptools}: high, setuptools 65.5.0, fixed in 70.0.0",
    ]
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["critical", "CVE-2023-45853", "zlib1g", "1:1.2.13.dfsg-1", "no", "fix", "refused"],
        ["high", setuptools, "setuptools", "65.5.0", "->", "70.0.0", "refused"],
    ]
    assert "2 refused, 0 allowed, not counted: 2 medium" in done.stderr


def test_the_hint_has_a_valid_line_for_the_list(layout: Layout) -> None:
    """The user must only write the reason into the line."""
    fake_program(Path("bin"), "trivy")

    line = scan_command(layout, "--ignore-unfixed").exception.hint.rpartition(": - ")[2]
    Path("vulnerabilities.yaml").write_text("- " + line)

    assert "package: setuptools" in line
    assert scan_command(layout, "--ignore-unfixed").exit_code == 0


@pytest.mark.parametrize("tool", TOOLS)
def test_the_scanner_sees_only_the_image_and_no_other_settings(
    layout: Layout, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a temporary folder. Only variables for its database and the proxy are passed on."""
    fake_program(Path("bin"), tool)
    hidden = ("TRIVY_SEVERITY", "TRIVY_IGNOREFILE", "GRYPE_ONLY_FIXED", "TORCHKILN_KEY_PASSPHRASE")
    passed = ("TRIVY_CACHE_DIR", "TRIVY_SKIP_DB_UPDATE", "GRYPE_DB_CACHE_DIR", "HTTPS_PROXY")
    for name in (*hidden, *passed):
        monkeypatch.setenv(name, "x")

    done = scan_command(layout, target="b")

    assert done.exit_code == 1
    assert (
        json.loads(scan_command(layout, "--json", target="b").stdout)["digest"] == layout.image("b").manifest
    )
    first = calls()[0]
    assert set(first["env"]) & {*hidden, *passed} == set(passed)
    assert (
        " ".join(first["argv"])
        == {
            "trivy": "image --input image --format json --scanners vuln --no-progress --timeout 900s",
            "grype": "oci-dir:image -o json --config grype.yaml",
        }[tool]
    )
    assert not Path(first["cwd"]).exists()


def test_the_first_scanner_is_used_and_either_can_be_selected(layout: Layout) -> None:
    for tool in TOOLS:
        fake_program(Path("bin"), tool)
    results = [json.loads(scan_command(layout, "--json", *more).stdout) for more in ((), ("--tool", "grype"))]

    assert [result["tool"] for result in results] == ["trivy", "grype"]
    assert [result["version"] for result in results] == ["0.59.1", "0.115.0"]
    assert [result["database"] for result in results] == ["2026-11-22T06:00:00Z"] * 2


def test_a_trivy_without_a_version_works(layout: Layout) -> None:
    fake_program(Path("bin"), "trivy", "mute")

    done = scan_command(layout, "--fail-on", "critical", "--ignore-unfixed")

    assert done.exit_code == 0
    assert "trivy (unknown version), database of unknown date" in done.stderr


@pytest.mark.parametrize("more", [(), ("--tool", "grype")])
def test_without_a_scanner_nothing_is_cleared(layout: Layout, more: tuple[str, ...]) -> None:
    """The exit code is 8. The hint names --report, for a report that was made elsewhere."""
    if more:
        fake_program(Path("bin"), "trivy")

    done = scan_command(layout, *more)

    assert isinstance(done.exception, ToolMissing)
    assert done.exception.message == f"{'grype' if more else 'trivy or grype'}: command not found"
    assert "--report FILE.json" in done.exception.hint


@pytest.mark.parametrize("tool", TOOLS)
def test_a_failing_scanner_is_reported_with_its_last_output(layout: Layout, tool: str) -> None:
    """Credentials in URLs are removed from the output."""
    fake_program(Path("bin"), tool, "fail")

    found = scan_command(layout).exception

    assert isinstance(found, ToolMissing)
    assert found.message.startswith(f"{tool} failed with exit code 1\n  FATAL\tno database: ")
    assert "secret" not in found.message


def test_a_hanging_scanner_is_killed_with_its_children(layout: Layout) -> None:
    tool = "trivy"
    fake_program(Path("bin"), tool, "hang")

    found = scan_command(layout, "--timeout", "3").exception

    assert isinstance(found, ToolMissing)
    assert found.message == f"{tool} timed out after 3 seconds"
    assert not Path(calls()[0]["cwd"]).exists()
    assert has_ended(Path("bin/child").read_text())


@pytest.mark.parametrize("does", ["babble", "silent"])
def test_invalid_output_clears_nothing(layout: Layout, does: str) -> None:
    fake_program(Path("bin"), "trivy", does)

    found = scan_command(layout).exception

    assert isinstance(found, VerificationFailed)
    assert found.message.startswith("output of trivy: line 1: not JSON")


def test_a_program_that_cannot_be_started_is_reported(layout: Layout) -> None:
    Path("bin/trivy").write_text("#!/nowhere/at/all\n")
    Path("bin/trivy").chmod(0o755)

    assert isinstance(scan_command(layout).exception, ToolMissing)
