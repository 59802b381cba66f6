"""zizmor, actionlint and published schemas say nothing of our workflows, and something of planted faults."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.actionlint import NEW, OLD, Linter, actionlint
from tests.workflows import ACTION, FILES, GITHUB, GITLAB, loaded

Plant = Callable[[str], str]


def swap(old: str, new: str) -> Plant:
    """A fault: *old*, which must be there, as *new*."""

    def planted(text: str) -> str:
        assert old in text, old
        return text.replace(old, new, 1)

    return planted


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


def copied(folder: Path, file: str, plant: Plant) -> Path:
    """The workflows and the action in *folder*, with a fault in one."""
    shutil.copytree(GITHUB, folder / ".github")
    (victim,) = (folder / ".github").rglob(file)
    victim.write_text(plant(victim.read_text()))
    return victim


def test_zizmor_says_nothing() -> None:
    assert zizmor(GITHUB) == ""


def test_what_zizmor_is_told_to_ignore() -> None:
    """Three calls by ./: it would have $/, which the older actionlint takes for a mistake. Each says why."""
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


@pytest.mark.parametrize(
    ("file", "plant", "audit"),
    [
        ("ci.yml", lambda text: re.sub(r"@[0-9a-f]{40} # v[\d.]+", "@v7", text), "unpinned-uses"),
        ("ci.yml", swap("persist-credentials: false", "fetch-depth: 1"), "artipacked"),
        ("ci.yml", swap("permissions: {}", "permissions: write-all"), "excessive-permissions"),
        ("publish.yml", swap('"$TAG" --output', '"${{ github.head_ref }}" --output'), "template-injection"),
        (
            "action.yml",
            swap("'\"$GITHUB_ACTION_PATH/gate.sh\"'", "${{ inputs.script }}"),
            "template-injection",
        ),
        ("build.yml", swap("pull_request:", "pull_request_target:"), "dangerous-triggers"),
        (
            "publish.yml",
            swap("./.github/workflows/build.yml", "octo/cat/.github/workflows/b.yml@main"),
            "unpinned",
        ),
        ("nightly.yml", swap("    environment: nightly\n", ""), "secrets-outside-env"),
        ("publish.yml", swap("needs: build\n", "needs: build\n    secrets: inherit\n"), "secrets-inherit"),
    ],
)
def test_zizmor_sees(tmp_path: Path, file: str, plant: Plant, audit: str) -> None:
    copied(tmp_path, file, plant)
    assert audit in zizmor(tmp_path)


BOTH = pytest.mark.parametrize("linter", [OLD, NEW], ids=lambda linter: linter.package)


@BOTH
@pytest.mark.network  # once
def test_actionlint_says_nothing(linter: Linter) -> None:
    assert actionlint(linter, {file.name: file.read_text() for file in FILES}) == []


FAULTS: list[tuple[str, Plant, str]] = [
    ("build.yml", swap("needs: cells", "needs: cell"), 'needs job "cell" which does not exist'),
    ("build.yml", swap("timeout-minutes", "timeout-minute"), 'unexpected key "timeout-minute"'),
    ("build.yml", swap("matrix.lock", "matrx.lock"), 'undefined variable "matrx"'),
    (
        "build.yml",
        swap("steps.cells.outputs.matrix", "steps.cell.outputs.matrix"),
        '"cell" is not defined',
    ),
    ("publish.yml", swap("id-token: write", "id-tokens: write"), 'unknown permission scope "id-tokens"'),
    ("ci.yml", swap("ubuntu-latest", "ubuntu-newest"), 'label "ubuntu-newest" is unknown'),
    (
        "nightly.yml",
        swap("if: env.REPOSITORY", "if: secrets.TORCHKILN_REPOSITORY"),
        'context "secrets" is not',
    ),
    ("gate.yml", swap("inputs.ref", "inputs.rev"), 'property "rev" is not defined'),
    ("nightly.yml", swap("17 3 * * *", "17 25 * * *"), "invalid CRON"),
]
NEWER: list[tuple[str, Plant, str]] = [
    ("ci.yml", swap("ubuntu-latest", "ubuntu-24.04"), 'label "ubuntu-24.04" is unknown'),
    ("gate.yml", swap("uses: ./.torchkiln/", "uses: $/"), "in invalid format"),
    ("publish.yml", swap("uses: ./", "uses: $/"), "is not following the format"),
    ("publish.yml", swap("secrets.TORCHKILN_TR", "vars.TORCHKILN_TR"), 'undefined variable "vars"'),
]


@pytest.mark.parametrize(
    ("linter", "faults"), [(OLD, FAULTS), (NEW, FAULTS), (OLD, NEWER)], ids=["old", "new", "what is newer"]
)
@pytest.mark.network
def test_actionlint_sees(linter: Linter, faults: list[tuple[str, Plant, str]]) -> None:
    """All in one process: starting it takes seconds."""
    texts = {
        f"{number}/{file}": plant((GITHUB / "workflows" / file).read_text())
        for number, (file, plant, _) in enumerate(faults)
    }
    said = actionlint(linter, texts)
    assert [
        words
        for name, (_, _, words) in zip(texts, faults, strict=True)
        if not any(line.startswith(name) and words in line for line in said)
    ] == []


@pytest.mark.network
def test_the_newer_actionlint_minds_what_is_gone() -> None:
    """Node 16 runs no more: the older one knows nothing of that."""
    text = (GITHUB / "workflows/ci.yml").read_text()
    gone = re.sub(r"actions/checkout@\w+ # v[\d.]+", "actions/checkout@v3", text)
    assert actionlint(OLD, {"ci.yml": gone}) == []
    assert any("is too old to run" in fault for fault in actionlint(NEW, {"ci.yml": gone}))


def test_the_schemas_say_nothing() -> None:
    assert schema("github-workflows", *FILES) == ""
    assert schema("github-actions", ACTION) == ""
    assert schema("gitlab-ci", GITLAB) == ""


@pytest.mark.parametrize(
    ("kind", "file", "plant"),
    [
        ("github-workflows", GITHUB / "workflows/ci.yml", swap("runs-on", "run-on")),
        ("github-actions", ACTION, swap("using: composite", "using: composit")),
        ("gitlab-ci", GITLAB, swap("stage: test", "stag: test")),
        ("gitlab-ci", GITLAB, swap("- make check test", "- {make: test}")),
    ],
)
def test_the_schemas_see(tmp_path: Path, kind: str, file: Path, plant: Plant) -> None:
    (tmp_path / file.name).write_text(plant(file.read_text()))
    assert "errors were encountered" in schema(kind, tmp_path / file.name)


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
