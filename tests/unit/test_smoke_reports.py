"""A report's host for people, runs without an image, and what an image may not talk its way into."""

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
from tests.keys import ED, pem
from tests.reports import SUITE, TIERS, WHEN, gpu, host, report, said
from tests.smoke_suites import run_suite, suite_with
from torchkiln.cli.smoke import smoke
from torchkiln.errors import ConfigError, SmokeFailed, SmokeInconclusive
from torchkiln.model.report import SmokeReport
from torchkiln.smoke import hosts
from torchkiln.smoke import report as forms
from torchkiln.smoke.run import of_environment, parse_output
from torchkiln.smoke.suite import SuiteCheck, suite_digest


def event(name: str, outcome: str = "passed", **other: Any) -> dict[str, Any]:
    """A finding as the runner tells it."""
    told = {"event": "finding", "id": name, "tier": TIERS[name], "seconds": 1.5, "outcome": outcome}
    values = {"message": "", "measured": {"x": 1}, "threshold": {"x": {"equals": 1}}}
    return told | values | other


def run(*names: str, of: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """A run in which *names* passed; without its end."""
    told: list[dict[str, Any]] = [{"event": "host", **(of or host(gpu(), gpu()))}]
    for name in names:
        told += [{"event": "start", "id": name}, event(name)]
    return told


# --- the host ---------------------------------------------------------------------------------------


def test_a_host_is_told_in_three_lines() -> None:
    assert hosts.lines(host(gpu(), gpu())) == [
        "host     Linux 6.1, 32 cores, 256 GiB, /dev/shm 64 GiB",
        "GPUs     2 × NVIDIA H200 (9.0, 141 GiB); driver 570.124.06, CUDA 12.8",
        "links    NVLinks a GPU: 18; NVLINK between 1 of 1 pairs; peer access in 2 of 2 directions",
    ]


@pytest.mark.parametrize(
    ("driver", "told"),
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
def test_a_host_s_gpus(driver: dict[str, Any], told: str) -> None:
    assert hosts.lines({"driver": driver})[0] == f"GPUs     {told}"


def test_a_host_without_a_word_on_gpus_has_no_line_of_them() -> None:
    assert hosts.lines({}) == hosts.lines({"something": "else"}) == []
    assert hosts.lines({"kernel": "6.1"}) == ["host     Linux 6.1"]
    assert (hosts.gpus({}), hosts.capability({})) == ([], None)
    assert hosts.capability(host(gpu(), gpu("A100", (8, 0)))) == (8, 0)


@given(told=VALUES | st.fixed_dictionaries({"driver": VALUES}) | mutated(host(gpu(), gpu())))
def test_whatever_an_image_tells_of_its_host_can_be_printed_or_is_left_out(told: Any) -> None:
    if hosts.fits(told):
        hosts.lines(told)
        hosts.capability(told)
        hosts.kinds(told)


def test_a_malformed_host_is_none() -> None:
    """Else the report could not be read again, or a GPU could be lied into it."""
    told = [{"event": "host", "driver": {"gpus": [{"name": 1}]}}, {"event": "start", "id": "import"}]

    assert parse_output(said(*told)).host == {}


# --- what an image says -----------------------------------------------------------------------------


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
def test_a_finding_that_no_report_could_hold_is_none(line: bytes) -> None:
    """What is kept can be read again; what is not is missed, with the reason."""
    output = parse_output(said({"event": "start", "id": "import"}) + line + b"\n")
    told = of_environment(said({"event": "start", "id": "import"}) + line, SUITE, when=WHEN)

    assert output.findings == {}
    assert len(output.invalid) == 1
    assert [(one.id, one.outcome) for one in told.findings if one.id == "import"] == [("import", "failed")]
    assert "a line of its output is invalid: " in told.findings[0].message
    assert forms.from_json(forms.to_json(told)) == told


LINES = st.sampled_from(run("import", "cuda")).flatmap(mutated)


@given(lines=st.lists((LINES | VALUES).map(json_bytes) | st.binary(max_size=20)))
def test_whatever_a_runner_prints_gives_a_report_that_can_be_read_again(lines: list[bytes]) -> None:
    started = said({"event": "start", "id": "import"})
    try:
        told = of_environment(started + b"\n".join(lines), SUITE, when=None)
    except ConfigError:  # of a check that is not in the suite
        return

    assert forms.from_json(forms.to_json(told)) == told


# --- runs without an image --------------------------------------------------------------------------


def environment(*events: dict[str, Any], ended: bool = True) -> SmokeReport:
    """The report of such a run, in a suite of which one check is for images only."""
    checks = (*SUITE.checks, SuiteCheck(id="lock", tier=0, of_image=True))
    end = [{"event": "end"}] * ended
    return of_environment(said(*events, *end), replace(SUITE, checks=checks), when=WHEN)


def test_a_run_without_an_image_is_a_report_of_an_environment() -> None:
    told = environment(*run(*TIERS))

    assert (told.image, told.tag, told.runtime, told.nonce) == (None, None, "environment", None)
    assert (told.suite, told.when, told.verdict) == (SUITE.digest, WHEN, "pass")
    assert [one.id for one in told.findings] == list(TIERS)
    assert forms.from_json(forms.to_json(told)) == told


def test_what_was_not_asked_for_is_not_told_of() -> None:
    assert [one.id for one in environment(*run("cuda")).findings] == ["cuda"]


def test_a_run_that_was_cut_short_failed_what_had_not_had_its_turn() -> None:
    """Of the tiers that it had come to; a check of images is never among them."""
    told = environment(*run("import", "compile-cpu"), {"event": "start", "id": "cuda"}, ended=False)

    assert [(one.id, one.outcome) for one in told.findings] == [
        ("import", "passed"),
        ("compile-cpu", "passed"),
        ("cuda", "failed"),
        ("bf16", "failed"),
    ]
    assert told.findings[2].message == "no result: the runner wrote no more output during this check"
    assert told.findings[3].message == "no result: the runner wrote no more output before this check"
    assert told.verdict == "fail"


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (b"", "not the output of runner.py"),
        (b"Traceback (most recent call last):\n", "not the output of runner.py"),
        (said({"event": "start", "id": "made-up"}), "another suite ran: unknown checks: made-up"),
        (
            said({"event": "host", "suite": f"sha256:{'1' * 64}"}, {"event": "start", "id": "import"}),
            "another suite ran: sha256:1+, not sha256:",
        ),
    ],
)
def test_what_is_no_run_is_told(stdout: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        of_environment(stdout, SUITE, when=None)


def test_the_forms_of_a_report_without_an_image() -> None:
    told = environment(*run(*TIERS))
    xml = ElementTree.fromstring(forms.to_junit(told))
    properties = {one.get("name"): one.get("value") for one in xml.iter("property")}

    assert properties.keys() == {"suite", "runtime", "tool", "when", "verdict", "gpus"}
    assert properties["gpus"] == "2 × NVIDIA H200"
    assert xml.get("name") == "smoke this environment"
    assert "### this environment: pass" in forms.to_markdown(told)
    assert "runtime environment, 2 × NVIDIA H200" in forms.to_markdown(told)
    assert forms.to_lines(told)[0] == "this environment"
    assert not any("None" in line for line in forms.to_lines(told))


def test_a_reason_is_shown_with_its_words() -> None:
    left_out = event("bf16", "not-applicable", message="bf16-needs-8.0")
    told = environment(*run("import"), {"event": "start", "id": "bf16"}, left_out)

    assert "    bf16-needs-8.0" in forms.to_lines(told)
    assert "    bf16-needs-8.0: too old" in forms.to_lines(told, {"bf16-needs-8.0": "too old"})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": None}, "image and tag must both be set, or both be null"),
        ({"tag": None}, "image and tag must both be set, or both be null"),
        ({"when": "yesterday"}, "when: 'yesterday' is not a time in UTC"),
        ({"nonce": "short"}, "nonce: 'short' is not 8 to 128 of"),
        ({"nonce": "request\n0001"}, "nonce: "),
        ({"schema": 1}, "schema: must be 2, not 1"),
    ],
)
def test_a_report_says_each_thing_in_its_form(change: dict[str, Any], why: str) -> None:
    told = forms.document(report()) | change

    with pytest.raises(ConfigError, match=why):
        forms.from_json(json.dumps(told).encode())


def test_a_check_that_stands_twice_is_refused() -> None:
    told = forms.document(report())
    told["checks"].append(told["checks"][0])

    with pytest.raises(ConfigError, match=r"checks\[6\].id: duplicate 'import'"):
        forms.from_json(json.dumps(told).encode())


# --- through the command line -----------------------------------------------------------------------


BODIES = """
@pytest.mark.tier(0)
def test_easy(measure):
    measure("x", 1, equals=1)

@pytest.mark.tier(0)
def test_hard(measure):
    measure("x", 2, equals=1)
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A suite of two checks, and what the real runner said of it."""
    folder = tmp_path_factory.mktemp("real")
    suite = suite_with(folder / "suite", {"test_two.py": BODIES})
    return suite, run_suite(suite, folder)


def asked(folder: Path, suite: Path, events: list[dict[str, Any]], *more: str) -> Any:
    """`smoke read` of these lines."""
    (folder / "run.jsonl").write_bytes(said(*events))
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


def test_smoke_read_makes_a_report_of_a_real_runner_s_lines(real: Any, tmp_path: Path) -> None:
    """Exit codes and forms are those of `smoke run`."""
    suite, events = real
    done = asked(tmp_path, suite, events, "--when", WHEN, "--junit", str(tmp_path / "r.xml"))
    told = forms.from_json((tmp_path / "r.json").read_bytes())

    assert isinstance(done.exception, SmokeFailed)
    assert "this environment: fail: hard" in done.exception.message
    assert done.stdout == "fail\n"
    assert [(one.id, one.outcome) for one in told.findings] == [("easy", "passed"), ("hard", "failed")]
    assert (told.suite, told.when) == (suite_digest(suite), WHEN)
    assert json.loads(told.host)["kernel"]
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("failures") == "1"

    shown = CliRunner().invoke(smoke, ["show", str(tmp_path / "r.json")])
    assert isinstance(shown.exception, SmokeFailed)
    assert shown.stdout.splitlines()[0] == "this environment"
    assert shown.stdout.splitlines()[-2:] == ["unsigned", "fail"]


def test_smoke_read_of_less(real: Any, tmp_path: Path) -> None:
    suite, events = real
    passed = [one for one in events if one.get("id") != "hard"]
    assert asked(tmp_path, suite, passed).stdout == "pass\n"
    assert "easy" in asked(tmp_path, suite, passed, "--json").stdout
    skipped = [one | ({"outcome": "skipped"} if one["event"] == "finding" else {}) for one in passed]
    assert isinstance(asked(tmp_path, suite, skipped).exception, SmokeInconclusive)
    assert "--when: 'now' is not a time in UTC" in str(
        asked(tmp_path, suite, passed, "--when", "now").exception
    )


def test_a_nonce_that_no_report_could_bear_is_told_before_anything_runs() -> None:
    done = CliRunner().invoke(smoke, ["run", "no-such-tag", "--nonce", "short"])

    assert "--nonce: 'short' is not 8 to 128 of" in str(done.exception)


def test_a_key_without_a_report_to_sign_is_told(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(pem(ED))
    done = CliRunner().invoke(smoke, ["run", "no-such-tag", "--key", str(tmp_path / "key.pem")])

    assert "--key needs --report" in str(done.exception)
