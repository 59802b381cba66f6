"""The lines of a report about the host, runs without an image, and the output of hostile images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.document_strategies import VALUES, json_bytes, mutated
from tests.reports import SUITE, TIERS, WHEN, found, gpu, host, json_lines, report
from tests.smoke_suites import run_suite, suite_with
from torchkiln.cli.smoke import smoke
from torchkiln.errors import ConfigError, SmokeFailed, SmokeInconclusive
from torchkiln.model.report import SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke import report as forms
from torchkiln.smoke import run as smoke_run
from torchkiln.smoke.run import of_environment, parse_output
from torchkiln.smoke.suite import SuiteCheck, suite_digest


def event(name: str, outcome: str = "passed", **other: Any) -> dict[str, Any]:
    """A finding, as the runner prints it."""
    event = {"event": "finding", "id": name, "tier": TIERS[name], "seconds": 1.5, "outcome": outcome}
    values = {"message": "", "measured": {"x": 1}, "threshold": {"x": {"equals": 1}}}
    return event | values | other


def run(*names: str, of: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The events of a run in which the checks *names* passed, without the event that ends a run."""
    events: list[dict[str, Any]] = [{"event": "host", **(of or host(gpu(), gpu()))}]
    for name in names:
        events += [{"event": "start", "id": name}, event(name)]
    return events


# --- the host ---------------------------------------------------------------------------------------


def test_a_host_has_three_lines() -> None:
    assert hosts.lines(host(gpu(), gpu())) == [
        "host     Linux 6.1, 32 cores, 256 GiB, /dev/shm 64 GiB",
        "GPUs     2 × NVIDIA H200 (9.0, 141 GiB); driver 570.124.06, CUDA 12.8",
        "links    NVLinks per GPU: 18; NVLINK between 1 of 1 pairs; peer access in 2 of 2 directions",
    ]


@pytest.mark.parametrize(
    ("driver", "gpus"),
    [
        ({"gpus": [], "libcuda": "cannot open libcuda", "driver": None}, "none (cannot open libcuda)"),
        ({"gpus": [], "fault": "probe driver was killed"}, "none (probe driver was killed)"),
        ({"gpus": [], "driver": "535.1", "cuda": "12.2"}, "none (driver 535.1, CUDA 12.2)"),
        ({"gpus": []}, "none"),
        (
            {"gpus": [gpu(), gpu("NVIDIA H100 80GB HBM3")], "driver": "570", "cuda": "12.8"},
            "NVIDIA H200 (9.0, 141 GiB), NVIDIA H100 80GB HBM3 (9.0, 141 GiB); driver 570, CUDA 12.8",
        ),
    ],
)
def test_the_line_of_the_gpus(driver: dict[str, Any], gpus: str) -> None:
    assert hosts.lines({"driver": driver})[0] == f"GPUs     {gpus}"


def test_a_host_without_gpu_facts_has_no_line_for_gpus() -> None:
    assert hosts.lines({}) == hosts.lines({"something": "else"}) == []
    assert hosts.lines({"kernel": "6.1"}) == ["host     Linux 6.1"]
    assert (hosts.gpus({}), hosts.capability({})) == ([], None)
    assert hosts.capability(host(gpu(), gpu("A100", (8, 0)))) == (8, 0)


@given(facts=VALUES | st.fixed_dictionaries({"driver": VALUES}) | mutated(host(gpu(), gpu())))
def test_any_host_facts_are_printable_or_omitted(facts: Any) -> None:
    if hosts.fits(facts):
        hosts.lines(facts)
        hosts.capability(facts)
        hosts.kinds(facts)


def test_malformed_host_facts_are_ignored() -> None:
    """Otherwise the report could not be read, or would contain a GPU that does not exist."""
    events = [{"event": "host", "driver": {"gpus": [{"name": 1}]}}, {"event": "start", "id": "import"}]

    assert parse_output(json_lines(*events)).host == {}


# --- output of an image -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b'{"event": "finding", "id": "import", "tier": 0, "seconds": NaN, "outcome": "passed", "message": "",'
        b' "measured": {}, "threshold": {}}',
        json.dumps(event("import", measured={"x": "\ud800"})).encode(),
        json.dumps(event("import", outcome="xfailed")).encode(),
        json.dumps(event("import", tier=7)).encode(),
        json.dumps(event("import", seconds=-1)).encode(),
        json.dumps(event("import", threshold={"x": {"roughly": 1}})).encode(),
        json.dumps(event("import", measured=json.loads("[" * 36 + "]" * 36))).encode(),
        json.dumps(event("import", measured={"x": json.loads("[" * 36 + "]" * 36)})).encode(),
    ],
)
def test_an_invalid_finding_is_ignored(line: bytes) -> None:
    """The check counts as failed, with the reason, and the report can be read."""
    output = parse_output(json_lines({"event": "start", "id": "import"}) + line + b"\n")
    smoke_report = of_environment(json_lines({"event": "start", "id": "import"}) + line, SUITE, when=WHEN)

    assert output.findings == {}
    assert len(output.invalid) == 1
    assert [(finding.id, finding.outcome) for finding in smoke_report.findings if finding.id == "import"] == [
        ("import", "failed")
    ]
    assert "a line of its output is invalid: " in smoke_report.findings[0].message
    assert forms.from_json(forms.to_json(smoke_report)) == smoke_report


LINES = st.sampled_from(run("import", "cuda")).flatmap(mutated)


@given(lines=st.lists((LINES | VALUES).map(json_bytes) | st.binary(max_size=20)))
def test_any_output_of_the_runner_gives_a_valid_report(lines: list[bytes]) -> None:
    started = json_lines({"event": "start", "id": "import"})
    try:
        smoke_report = of_environment(started + b"\n".join(lines), SUITE, when=None)
    except ConfigError:  # a check that is not in the suite
        return

    assert forms.from_json(forms.to_json(smoke_report)) == smoke_report


# --- runs without an image --------------------------------------------------------------------------


def environment(*events: dict[str, Any], ended: bool = True) -> SmokeReport:
    """The report of a run without an image; one check of the suite works only in images."""
    checks = (*SUITE.checks, SuiteCheck(id="lock", tier=0, of_image=True))
    end = [{"event": "end"}] * ended
    return of_environment(json_lines(*events, *end), replace(SUITE, checks=checks), when=WHEN)


def test_a_run_without_an_image_is_a_report_of_an_environment() -> None:
    smoke_report = environment(*run(*TIERS))

    assert (smoke_report.image, smoke_report.tag, smoke_report.runtime, smoke_report.nonce) == (
        None,
        None,
        "environment",
        None,
    )
    assert (smoke_report.suite, smoke_report.when, smoke_report.verdict) == (SUITE.digest, WHEN, "pass")
    assert [finding.id for finding in smoke_report.findings] == list(TIERS)
    assert forms.from_json(forms.to_json(smoke_report)) == smoke_report


def test_deselected_checks_are_not_in_the_report() -> None:
    assert [finding.id for finding in environment(*run("cuda")).findings] == ["cuda"]


def test_in_an_interrupted_run_the_remaining_checks_fail() -> None:
    """They are the remaining checks of tiers that had begun, except for checks that need an image."""
    smoke_report = environment(*run("import", "compile-cpu"), {"event": "start", "id": "cuda"}, ended=False)

    assert [(finding.id, finding.outcome) for finding in smoke_report.findings] == [
        ("import", "passed"),
        ("compile-cpu", "passed"),
        ("cuda", "failed"),
        ("bf16", "failed"),
    ]
    assert smoke_report.findings[2].message == "no result: the runner wrote no more output during this check"
    assert smoke_report.findings[3].message == "no result: the runner wrote no more output before this check"
    assert smoke_report.verdict == "fail"


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (b"", "not the output of runner.py"),
        (b"Traceback (most recent call last):\n", "not the output of runner.py"),
        (json_lines({"event": "start", "id": "made-up"}), "another suite ran: unknown checks: made-up"),
        (
            json_lines({"event": "host", "suite": f"sha256:{'1' * 64}"}, {"event": "start", "id": "import"}),
            "another suite ran: sha256:1+, not sha256:",
        ),
    ],
)
def test_invalid_output_is_reported(stdout: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        of_environment(stdout, SUITE, when=None)


def test_output_formats_of_a_report_without_an_image() -> None:
    smoke_report = environment(*run(*TIERS))
    xml = ElementTree.fromstring(forms.to_junit(smoke_report))
    properties = {item.get("name"): item.get("value") for item in xml.iter("property")}

    assert properties.keys() == {"suite", "runtime", "tool", "when", "verdict", "gpus"}
    assert properties["gpus"] == "2 × NVIDIA H200"
    assert xml.get("name") == "smoke this environment"
    assert "### this environment: pass" in forms.to_markdown(smoke_report)
    assert "runtime environment, 2 × NVIDIA H200" in forms.to_markdown(smoke_report)
    assert forms.to_lines(smoke_report)[0] == "this environment"
    assert not any("None" in line for line in forms.to_lines(smoke_report))


def test_a_reason_is_shown_with_its_sentence() -> None:
    left_out = event("bf16", "not-applicable", message="bf16-needs-8.0")
    smoke_report = environment(*run("import"), {"event": "start", "id": "bf16"}, left_out)

    assert "    bf16-needs-8.0" in forms.to_lines(smoke_report)
    assert "    bf16-needs-8.0: too old" in forms.to_lines(smoke_report, {"bf16-needs-8.0": "too old"})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": None}, "image and tag must both be set, or both be null"),
        ({"tag": None}, "image and tag must both be set, or both be null"),
        ({"when": "yesterday"}, "when: 'yesterday' is not a time in UTC"),
        ({"nonce": "short"}, "nonce: 'short' is not 8 to 128 of the characters"),
        ({"nonce": "request\n0001"}, "nonce: "),
        ({"schema": 1}, "schema: must be 2, not 1"),
        ({"image": None, "tag": None, "root": "mounted"}, "root is set, but there is no image"),
        ({"root": "copied"}, "root: 'copied' is not valid; valid: mounted, unpacked"),
    ],
)
def test_the_format_of_each_field_is_checked(change: dict[str, Any], why: str) -> None:
    smoke_report = forms.document(report()) | change

    with pytest.raises(ConfigError, match=why):
        forms.from_json(json.dumps(smoke_report).encode())


def test_a_duplicate_check_is_refused() -> None:
    smoke_report = forms.document(report())
    smoke_report["checks"].append(smoke_report["checks"][0])

    with pytest.raises(ConfigError, match=r"checks\[6\].id: duplicate 'import'"):
        forms.from_json(json.dumps(smoke_report).encode())


def test_endless_output_of_the_runner_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoke_run, "_MOST", 3)
    starts = [{"event": "start", "id": f"check-{number}"} for number in range(9)]
    output = parse_output(json_lines(*starts) + b'{"event": "finding"}x\n' * 9)
    assert tuple(output.started) == ("check-0", "check-1", "check-2")
    assert len(output.invalid) == 3


# --- through the command line -----------------------------------------------------------------------


BODIES = """
VALUES = {"easy": {"x": {"equals": 1}}, "hard": {"x": {"equals": 1}}}

@pytest.mark.tier(0)
def test_easy(measure):
    measure("x", 1)

@pytest.mark.tier(0)
def test_hard(measure):
    measure("x", 2)
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A suite of two checks, and the events that the real runner prints for it."""
    folder = tmp_path_factory.mktemp("real")
    suite = suite_with(folder / "suite", {"test_two.py": BODIES})
    return suite, run_suite(suite, folder)


def smoke_read(folder: Path, suite: Path, events: list[dict[str, Any]], *more: str) -> Any:
    (folder / "run.jsonl").write_bytes(json_lines(*events))
    argv = [
        "read",
        str(folder / "run.jsonl"),
        "--suite",
        str(suite),
        "--report",
        str(folder / "r.json"),
        *more,
    ]
    return CliRunner().invoke(smoke, argv)


def test_smoke_read_makes_a_report_of_the_runners_output(real: Any, tmp_path: Path) -> None:
    """Exit codes and output formats are those of `smoke`."""
    suite, events = real
    done = smoke_read(tmp_path, suite, events, "--when", WHEN, "--junit", str(tmp_path / "r.xml"))
    smoke_report = forms.from_json((tmp_path / "r.json").read_bytes())

    assert isinstance(done.exception, SmokeFailed)
    assert "this environment: fail: hard" in done.exception.message
    assert done.stdout == "fail\n"
    assert [(finding.id, finding.outcome) for finding in smoke_report.findings] == [
        ("easy", "passed"),
        ("hard", "failed"),
    ]
    assert (smoke_report.suite, smoke_report.when) == (suite_digest(suite), WHEN)
    assert json.loads(smoke_report.host)["kernel"]
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("failures") == "1"

    shown = CliRunner().invoke(smoke, ["show", str(tmp_path / "r.json")])
    assert isinstance(shown.exception, SmokeFailed)
    assert shown.stdout.splitlines()[0] == "this environment"
    assert shown.stdout.splitlines()[-2:] == ["unsigned", "fail"]


def test_smoke_read_of_some_checks(real: Any, tmp_path: Path) -> None:
    suite, events = real
    passed = [item for item in events if item.get("id") != "hard"]
    assert smoke_read(tmp_path, suite, passed).stdout == "pass\n"
    assert "easy" in smoke_read(tmp_path, suite, passed, "--json").stdout
    skipped = [item | ({"outcome": "skipped"} if item["event"] == "finding" else {}) for item in passed]
    assert isinstance(smoke_read(tmp_path, suite, skipped).exception, SmokeInconclusive)
    assert "--when: 'now' is not a time in UTC" in str(
        smoke_read(tmp_path, suite, passed, "--when", "now").exception
    )


SKIPPED = found("cuda", "skipped", "host: no NVIDIA driver here", measured="{}", threshold="{}")


@pytest.mark.parametrize("runtime", ["rootfs", "crun", "runc", "environment", "docker", "podman"])
def test_the_hint_depends_on_the_runtime(runtime: str) -> None:
    """It names an engine only if an engine ran the checks."""
    bare = json.dumps({"kernel": "6.1"})
    smoke_report = report(SKIPPED, runtime=runtime, verdict="inconclusive", host=bare)
    with pytest.raises(SmokeInconclusive) as raised:
        forms.demand_pass(smoke_report)

    engine = runtime in ("docker", "podman")
    assert ("--gpus all" in raised.value.hint) == engine
    assert ("docs/gpu-hosts" in raised.value.hint) != engine
    if not engine:
        assert "docker" not in f"{raised.value.message} {raised.value.hint}".lower()


def test_only_failures_of_printed_checks_are_repeated() -> None:
    """A failure has all its lines and values. Checks that were not printed follow, and then the counts."""
    failed = found("cuda", "failed", "first line\nsecond line")
    smoke_report = report(failed)
    printed = {finding for finding in smoke_report.findings if finding.id != "busbw"}
    lines = forms.to_lines(smoke_report, {}, printed)

    rows = [line.split()[:2] for line in lines if line.startswith(("passed ", "failed "))]
    assert rows == [["failed", "cuda"], ["passed", "busbw"]]
    assert "    second line" in lines
    assert lines[-1] == f"{len(smoke_report.findings) - 1} passed, 1 failed"


def test_the_line_of_a_check_is_one_printable_line() -> None:
    hostile = found("cuda", "failed", "\x1b]0;title\x07" + "x" * 500 + "\nsecond")
    line = forms.to_line(hostile, 14, {})

    assert line.startswith("failed         cuda")
    assert "\\x1b]0;title\\x07xxx" in line
    assert line.endswith("…")
    assert line.isprintable()
    left_out = found("bf16", "not-applicable", "bf16-needs-8.0")
    assert forms.to_line(left_out, 14, {"bf16-needs-8.0": "why"}).endswith("s  bf16-needs-8.0: why")
