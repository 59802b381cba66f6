"""The tools run by a stand-in that is as strict as they are: what they get to see, and how they may fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scans import DOCUMENTS, ask, calls, is_gone, stand_in, two_images
from torchkiln.errors import GateRefused, ToolMissing, VerificationFailed
from torchkiln.oci.layout import Layout

TOOLS = sorted(DOCUMENTS)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Only read."""
    return two_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tool of this machine's, and no list: a folder for either."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_looks_at_the_image_and_the_gate_refuses(layout: Layout, tool: str) -> None:
    """Exit 7 by its exception, each finding with package, versions and severity; stdout has a line each."""
    stand_in(Path("bin"), tool)

    done = ask(layout)

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


def test_the_hint_has_a_line_that_the_list_takes(layout: Layout) -> None:
    """But for the reason, which is its author's affair."""
    stand_in(Path("bin"), "trivy")

    line = ask(layout, "--ignore-unfixed").exception.hint.rpartition(": - ")[2]
    Path("vulnerabilities.yaml").write_text("- " + line)

    assert "package: setuptools" in line
    assert ask(layout, "--ignore-unfixed").exit_code == 0


@pytest.mark.parametrize("tool", TOOLS)
def test_the_tool_sees_one_image_and_no_settings_of_others(
    layout: Layout, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of ours that is gone afterwards; where its database is it may know."""
    stand_in(Path("bin"), tool)
    hidden = ("TRIVY_SEVERITY", "TRIVY_IGNOREFILE", "GRYPE_ONLY_FIXED", "TORCHKILN_KEY_PASSPHRASE")
    passed = ("TRIVY_CACHE_DIR", "TRIVY_SKIP_DB_UPDATE", "GRYPE_DB_CACHE_DIR", "HTTPS_PROXY")
    for name in (*hidden, *passed):
        monkeypatch.setenv(name, "x")

    done = ask(layout, target="b")

    assert done.exit_code == 1
    assert json.loads(ask(layout, "--json", target="b").stdout)["digest"] == layout.image("b").manifest
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


def test_the_first_of_both_is_taken_and_either_can_be_named(layout: Layout) -> None:
    for tool in TOOLS:
        stand_in(Path("bin"), tool)
    told = [json.loads(ask(layout, "--json", *more).stdout) for more in ((), ("--tool", "grype"))]

    assert [one["tool"] for one in told] == ["trivy", "grype"]
    assert [one["version"] for one in told] == ["0.59.1", "0.115.0"]
    assert [one["database"] for one in told] == ["2026-11-22T06:00:00Z"] * 2


def test_a_trivy_that_does_not_tell_its_version_will_do(layout: Layout) -> None:
    stand_in(Path("bin"), "trivy", "mute")

    done = ask(layout, "--fail-on", "critical", "--ignore-unfixed")

    assert done.exit_code == 0
    assert "trivy (unknown version), database of unknown date" in done.stderr


@pytest.mark.parametrize("more", [(), ("--tool", "grype")])
def test_without_a_tool_nothing_is_cleared(layout: Layout, more: tuple[str, ...]) -> None:
    """Exit 8, and what to do."""
    if more:
        stand_in(Path("bin"), "trivy")

    done = ask(layout, *more)

    assert isinstance(done.exception, ToolMissing)
    assert done.exception.message == f"{'grype' if more else 'trivy or grype'}: command not found"
    assert "--report FILE.json" in done.exception.hint


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_fails_is_told_with_its_last_words(layout: Layout, tool: str) -> None:
    """Without the login in an address that it names."""
    stand_in(Path("bin"), tool, "fail")

    found = ask(layout).exception

    assert isinstance(found, ToolMissing)
    assert found.message.startswith(f"{tool} failed with exit code 1\n  FATAL\tno database: ")
    assert "secret" not in found.message


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_hangs_is_ended_with_what_it_started(layout: Layout, tool: str) -> None:
    stand_in(Path("bin"), tool, "hang")

    found = ask(layout, "--timeout", "3").exception

    assert isinstance(found, ToolMissing)
    assert found.message == f"{tool} timed out after 3 seconds"
    assert not Path(calls()[0]["cwd"]).exists()
    assert is_gone(Path("bin/child").read_text())


@pytest.mark.parametrize("does", ["babble", "silent"])
def test_an_answer_that_is_none_clears_nothing(layout: Layout, does: str) -> None:
    stand_in(Path("bin"), "trivy", does)

    found = ask(layout).exception

    assert isinstance(found, VerificationFailed)
    assert found.message.startswith("output of trivy: line 1: not JSON")


def test_a_program_that_cannot_be_started_is_told(layout: Layout) -> None:
    Path("bin/trivy").write_text("#!/nowhere/at/all\n")
    Path("bin/trivy").chmod(0o755)

    assert isinstance(ask(layout).exception, ToolMissing)
