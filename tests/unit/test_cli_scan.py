"""`torchkiln scan`: reports, the threshold, the list of allowed vulnerabilities, errors and warnings."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scans import (
    DOCUMENTS,
    allow,
    by_grype,
    by_trivy,
    entry,
    fake_program,
    reported,
    scan_command,
    today,
    two_images,
)
from torchkiln.errors import ConfigError, GateRefused, VerificationFailed
from torchkiln.oci.archive import link_image
from torchkiln.oci.layout import ImageOnDisk, Layout
from torchkiln.util.places import ROOT

TOOLS = sorted(DOCUMENTS)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A layout with two images; tests only read it."""
    return two_images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def image(layout: Layout) -> ImageOnDisk:
    return layout.image("a")


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is empty, so it has no list, and PATH contains no scanners."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)


# --- an existing report -----------------------------------------------------------------------


def test_a_report_of_this_image_is_checked_without_a_tool(layout: Layout, image: ImageOnDisk) -> None:
    for scan_report in (by_trivy(image), by_grype(image)):
        done = scan_command(layout, *reported(scan_report), target=f"{layout.path}:a")
        assert isinstance(done.exception, GateRefused)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_report_of_another_image_is_refused(layout: Layout, tool: str) -> None:
    """The exit code is 12, although the report has findings: they are of another image."""
    done = scan_command(layout, *reported(DOCUMENTS[tool](layout.image("b"))))

    assert isinstance(done.exception, VerificationFailed)
    assert "is of another image" in done.exception.message


def test_an_unreadable_report_is_an_error(layout: Layout) -> None:
    Path("scan.json").write_text("all is well")
    assert isinstance(scan_command(layout, "--report", "scan.json").exception, VerificationFailed)
    assert scan_command(layout, "--report", "nowhere.json").exit_code == 2
    assert scan_command(layout, "--report", "scan.json", "--tool", "trivy").exit_code == 2


def test_an_unknown_image_is_an_error(layout: Layout) -> None:
    for target in ("c", f"{layout.path}:c"):
        assert isinstance(scan_command(layout, target=target).exception, ConfigError)


# --- threshold and list ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ((), ["zlib1g", "setuptools"]),
        (("--fail-on", "critical"), ["zlib1g"]),
        (("--fail-on", "medium"), ["zlib1g", "setuptools", "jinja2", "libssl3"]),
        (("--ignore-unfixed",), ["setuptools"]),
        (("--fail-on", "critical", "--ignore-unfixed"), []),
    ],
)
def test_the_threshold(layout: Layout, image: ImageOnDisk, more: tuple[str, ...], refused: list[str]) -> None:
    done = scan_command(layout, "--json", *reported(by_trivy(image)), *more)

    assert [item["package"] for item in json.loads(done.stdout)["refused"]] == refused
    assert done.exit_code == int(bool(refused))  # the runner's exit code for an exception


def test_many_findings_are_abbreviated_but_complete_on_stdout(layout: Layout, image: ImageOnDisk) -> None:
    scan_report = by_trivy(image)
    one = scan_report["Results"][0]["Vulnerabilities"][0]
    scan_report["Results"][0]["Vulnerabilities"] = [
        {**one, "VulnerabilityID": f"CVE-1-{n}"} for n in range(30)
    ]

    done = scan_command(layout, *reported(scan_report))

    assert len(done.stdout.splitlines()) == 31
    assert done.exception.message.splitlines()[-1] == "  and: 11 more, all on stdout"


@pytest.mark.parametrize("name", ["zlib\u202e1g", "zlib\x9b2J1g"])
def test_control_characters_are_escaped(layout: Layout, image: ImageOnDisk, name: str) -> None:
    """Bidirectional overrides and 8-bit control characters are escaped, too."""
    scan_report = by_trivy(image)
    scan_report["Results"][0]["Vulnerabilities"][0]["PkgName"] = name

    done = scan_command(layout, *reported(scan_report))

    assert name not in done.stdout + done.exception.message + done.exception.hint
    assert len(done.stdout.splitlines()) == 2


def test_allowed_findings_pass_and_are_listed(layout: Layout, image: ImageOnDisk) -> None:
    """The list is in the current folder or named by an option. Reason and end date are printed."""
    report = reported(by_grype(image))
    entries = entry("CVE-2023-45853", package="zlib1g"), entry("CVE-2024-6345")
    allow(*entries, name="other.yaml")

    assert isinstance(scan_command(layout, *report).exception, GateRefused)
    assert scan_command(layout, *report, "--allow", "other.yaml").exit_code == 0
    allow(*entries)
    done = scan_command(layout, *report)

    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["CVE-2023-45853", "GHSA-cx63-2mw6-8hw5"]
    assert all(f"allowed until {entries[0]['until']}: not reachable" in line for line in lines)


def test_an_entry_that_expired_yesterday_allows_nothing(layout: Layout, image: ImageOnDisk) -> None:
    """On its last day, an entry is still valid."""
    report = reported(by_trivy(image))
    allow(entry("CVE-2023-45853", 0), entry("CVE-2024-6345", 0))
    assert scan_command(layout, *report).exit_code == 0

    allow(entry("CVE-2023-45853", 0), entry("CVE-2024-6345", -1))
    done = scan_command(layout, *report)

    assert "1 vulnerability is high or worse" in done.exception.message
    assert f"vulnerabilities.yaml:1: CVE-2024-6345 expired on {today() - timedelta(days=1)}" in done.stderr


def test_an_entry_that_matches_nothing_is_reported(layout: Layout, image: ImageOnDisk) -> None:
    """Such an entry is no error; the report helps users to keep the list short."""
    allow(entry("CVE-1-1"))
    done = scan_command(layout, *reported(by_trivy(image)), "--fail-on", "critical", "--ignore-unfixed")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "vulnerabilities.yaml:1: CVE-1-1 was not found; remove it" in done.stderr


def test_an_invalid_list_stops_before_the_scan(layout: Layout) -> None:
    fake_program(Path("bin"), "trivy")
    allow({"id": "CVE-1-1", "until": "2026-01-01"})

    assert isinstance(scan_command(layout).exception, ConfigError)
    assert isinstance(scan_command(layout, "--allow", "nowhere.yaml").exception, ConfigError)
    assert not Path("bin/calls.jsonl").exists()


def test_warnings_are_shown(layout: Layout, image: ImageOnDisk) -> None:
    scan_report = by_grype(
        image,
        ignoredMatches=[{}],
        alertsByPackage=[{"package": {}, "alerts": [{"type": "distro-eol", "message": "old"}]}],
    )
    done = scan_command(layout, *reported(scan_report))

    assert "grype omitted 1 findings by its own rules" in done.stderr
    assert "debian 12 is no longer supported" in done.stderr


def test_the_json_form_is_stable(layout: Layout, image: ImageOnDisk) -> None:
    allow(entry("CVE-2023-45853"), entry("CVE-1-1", -1), entry("CVE-1-2"))
    done = scan_command(layout, "--json", *reported(by_trivy(image)))

    scan_report = json.loads(done.stdout)
    assert scan_report.pop("allowed") == [
        {
            "id": "CVE-2023-45853",
            "aliases": [],
            "package": "zlib1g",
            "installed": "1:1.2.13.dfsg-1",
            "fixed": None,
            "severity": "critical",
            "kind": "debian",
            "path": "",
            "reason": "not reachable",
            "until": str(today() + timedelta(days=30)),
            "where": "vulnerabilities.yaml:1",
        }
    ]
    lists = {name: [item["id"] for item in scan_report.pop(name)] for name in ("refused", "expired", "idle")}
    assert lists == {"refused": ["CVE-2024-6345"], "expired": ["CVE-1-1"], "idle": ["CVE-1-2"]}
    assert scan_report == {
        "image": "a",
        "digest": image.manifest,
        "tool": "trivy",
        "version": None,
        "database": None,
        "system": "debian 12.9",
        "supported": True,
        "hidden": 0,
        "day": str(today()),
        "fail_on": "high",
        "unfixed": "count",
        "passed_over": {"medium": 2},
    }


# --- docs/scan.md ---------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "scan.md").read_text()


def _block(kind: str) -> str:
    return PAGE.split(f"```{kind}\n")[1].split("```")[0]


def test_the_page_shows_the_real_output(
    layout: Layout, image: ImageOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/scan.md shows the output for the list in it, on the day on which the page was written."""
    day = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
    monkeypatch.setattr("torchkiln.cli.scan.datetime", SimpleNamespace(now=lambda _: day))
    Path("vulnerabilities.yaml").write_text(_block("yaml"))
    reported(by_trivy(image))
    command, _, scan_report = _block("console").partition("\n")

    done = scan_command(layout, *command.split()[4:])

    assert command.split()[:4] == ["$", "torchkiln", "scan", "a"]
    assert isinstance(done.exception, GateRefused)
    assert (
        f"{done.stdout}{done.stderr}error: {done.exception.message}\nhint: {done.exception.hint}\n"
        == scan_report
    )


@pytest.mark.parametrize("line", _block("sh").splitlines())
def test_the_pages_commands_of_scanners_are_valid(layout: Layout, line: str, tmp_path: Path) -> None:
    """A fake scanner accepts the commands of docs/scan.md and prints a report of the image."""
    link_image(layout.image("a"), tmp_path / "LAYOUT")
    argv, _, _ = line.partition(" >")
    tool, *rest = argv.split()
    fake_program(Path("bin"), tool)

    written = subprocess.run([f"bin/{tool}", *rest], capture_output=True, check=True).stdout

    Path("scan.json").write_bytes(written)
    assert isinstance(scan_command(layout, "--report", "scan.json").exception, GateRefused)
