"""Each `run:` line of the workflows runs with stub programs; commands and results are checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkouts import git
from tests.commands import demand_parses
from tests.workflow_scene import REGISTRY, TAG, Scene, gate, scene
from tests.workflows import ACTION, GITHUB, GITLAB, Ran, Values, evaluate, filled, jobs, loaded

pytestmark = pytest.mark.proof  # running the lines takes a minute

IDENTITY = "https://github.example/octo/kiln/.github/workflows/publish.yml@refs/heads/main"
SIGNERS = ("--identity", f"publisher={IDENTITY}", "--key", "laboratory=trusted.pem")
# `run:` lines that no scenario runs, each with the reason.
NOT_RUN: dict[str, str] = {}


def matrix() -> dict[str, str]:
    """The cell whose lock the last commit added, as values of the expressions `matrix.*`."""
    cell = {"tag": TAG, "torch": "2.7.1", "cuda": "12.1", "flavor": "runtime", "os": "debian12"}
    return {f"matrix.{key}": value for key, value in {**cell, "lock": "sha256:1"}.items()}


COMMON = {
    "github.event_name": "push",
    "github.workspace": ".",
    "github.token": "gh-token",
    "github.run_id": "17",
    "github.server_url": "https://github.example",
    "github.repository": "octo/kiln",
    "github.sha": "1a2b",
    "inputs.run-id": "",
    "inputs.runtime": "bundle",
    "needs.cells.outputs.count": "1",
    "secrets.TORCHKILN_TRUSTED": "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----",
    "secrets.TORCHKILN_REPOSITORY": REGISTRY,
    "secrets.TORCHKILN_KEY_PASSPHRASE": "word",
    "secrets.TORCHKILN_REGISTRY_TOKEN": "",
    "secrets.TORCHKILN_RELOCK_TOKEN": "relock-token",
}
# The variables in the .env file of a GPU runner.
PROVER = {"TORCHKILN_KEY_FILE": "/secret/kiln.pem"}


@dataclass(frozen=True)
class Played:
    """The scene after all scenarios, and for each job the results of its lines."""

    scene: Scene
    ran: dict[tuple[str, str, str], list[Ran]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run the workflows for a lock, from the pull request to the registry, and the nightly run."""
    place = scene(tmp_path_factory.mktemp("workflows"))
    place.remember("newer")
    ran = {}

    def play(file: str, job: str, scenario: str = "", where: Scene = place, **values: str) -> None:
        dotted = {key.replace("__", "."): value for key, value in values.items()}
        environ = PROVER if file == "gpu-proof.yml" else {}
        ran[file, job, scenario] = where.job(file, job, {**COMMON, **matrix(), **dotted}, **environ)

    since = {"inputs__since": "", "github__event.pull_request.base.sha": place.first}
    play("ci.yml", "test")
    play("build.yml", "cells", **since)
    play("build.yml", "cells", "nothing", **{**since, "inputs__since": place.last})
    play("build.yml", "cells", "first push", **{**since, "inputs__since": "0" * 40})
    play("build.yml", "build")
    play("gpu-proof.yml", "prove")
    (place.folder / f"artifacts/proof-{TAG}").rename(place.folder / "artifacts/kept")
    play("gpu-proof.yml", "prove", "docker", inputs__runtime="docker")
    play("publish.yml", "publish")
    play("nightly.yml", "cells")
    play("nightly.yml", "rebuild")
    play("nightly.yml", "vault", secrets__TORCHKILN_VAULT="oci://registry.example/team/vault")
    play("nightly.yml", "refresh")
    play("nightly.yml", "relock")
    play("nightly.yml", "release")
    play("docs.yml", "build")
    others = scene(tmp_path_factory.mktemp("examples"))  # these scenarios do not build the locked images
    play("examples.yml", "matrix", where=others)
    play("examples.yml", "dockerfile", where=others)
    ran["gate.yml", "gate", ""] = gate(place, keys="our keys/a.pem\nb.pem\n")
    return Played(place, ran)


def test_every_line_runs_and_none_fails(played: Played) -> None:
    assert [(key, line) for key, lines in played.ran.items() for line in lines if line.code] == []


def test_no_line_is_omitted(played: Played) -> None:
    """Every `run:` line of every workflow runs, except for the lines in NOT_RUN."""
    written = {
        step["run"]
        for file, job in jobs()
        for step in (
            loaded(ACTION)["runs"]["steps"]
            if file == "action.yml"
            else loaded(GITHUB / "workflows" / file)["jobs"][job]["steps"]
        )
        if "run" in step
    }
    assert written - {line.line for lines in played.ran.values() for line in lines} == set(NOT_RUN)
    assert len(written) > 20


def test_every_torchkiln_line_parses(played: Played) -> None:
    for words in played.scene.calls("torchkiln"):
        demand_parses(words)


@pytest.mark.parametrize(
    ("since", "tags"),
    [
        ("first", [TAG]),
        ("last", []),
        ("zeros", [TAG, "2.8.0-cuda12.1-cudnn9-runtime"]),
        ("none", [TAG, "2.8.0-cuda12.1-cudnn9-runtime"]),
    ],
)
def test_cells_are_those_with_a_changed_lock(played: Played, since: str, tags: list[str]) -> None:
    """If the matrix is empty, the count has the value that `if` of the next job compares."""
    commits = {"first": played.scene.first, "last": played.scene.last, "zeros": "0" * 40, "none": ""}
    runner = played.scene.runner()
    inputs = {"inputs.since": commits[since], "github.event.pull_request.base.sha": ""}
    runner.job("build.yml", "cells", {**COMMON, **inputs})
    outputs = {key.rpartition(".")[2]: value for key, value in runner.outputs.items()}

    assert [row["tag"] for row in json.loads(outputs["matrix"])["include"]] == tags
    assert outputs["count"] == str(len(tags))
    condition = loaded(GITHUB / "workflows/build.yml")["jobs"]["build"]["if"]
    assert evaluate(condition, {"needs.cells.outputs.count": outputs["count"]}) is bool(tags)
    later = loaded(GITHUB / "workflows/publish.yml")["jobs"]["publish"]["if"][3:-2]
    assert evaluate(later, {"needs.build.outputs.count": outputs["count"]}) is bool(tags)


@pytest.mark.parametrize("file", ["publish.yml", "build.yml", "gpu-proof.yml"])
def test_publications_do_not_cancel_each_other(file: str) -> None:
    """In one concurrency group, a third run would cancel the waiting second run: each has a group."""
    group = loaded(GITHUB / "workflows" / file)["concurrency"]["group"]
    push = {"github.event_name": "push", "github.ref": "refs/heads/main", "inputs.run-id": ""}
    first, second = (filled(group, {**push, "github.run_id": number}) for number in ("1", "2"))
    assert first != second


def test_only_the_newest_state_of_a_pull_request_is_built() -> None:
    concurrency = loaded(GITHUB / "workflows/build.yml")["concurrency"]
    values = {"github.event_name": "pull_request", "github.ref": "refs/pull/7/merge"}
    first, second = (filled(concurrency["group"], {**values, "github.run_id": n}) for n in ("1", "2"))
    assert first == second
    assert filled(concurrency["cancel-in-progress"], values) == "True"


def test_an_unknown_commit_fails_the_job(played: Played) -> None:
    inputs = {"inputs.since": "f" * 40, "github.event.pull_request.base.sha": ""}
    ran = played.scene.job("build.yml", "cells", {**COMMON, **inputs})
    assert (ran[-1].code, "unknown revision" in ran[-1].err) == (2, True)


def test_ci_is_the_readmes_command(played: Played) -> None:
    assert ["check", "test"] in played.scene.calls("make")


def test_the_locked_image_is_built_once(played: Played) -> None:
    """build.yml builds it; proof and publication do not. The nightly run builds it, too."""
    words = [TAG, "--locked", "--no-smoke"]
    assert played.scene.calls("torchkiln", "build") == [words, words]
    for key in (("gpu-proof.yml", "prove", ""), ("publish.yml", "publish", "")):
        assert not any("torchkiln build" in ran_line.line for ran_line in played.ran[key])


def test_the_bundle_is_run_with_the_runners_key(played: Played) -> None:
    (words,) = played.scene.calls("run.py")
    assert words[:4] == ["--key", "/secret/kiln.pem", "--report", "proof/report.json"]
    artifacts = played.scene.folder / "artifacts/kept"
    assert {path.name for path in artifacts.iterdir()} == {"report.json", "report.dsse.json", "smoke.xml"}


@pytest.mark.parametrize("runtime", ["bundle", "docker"])
def test_a_runner_without_a_key_file_fails_with_a_message(tmp_path: Path, runtime: str) -> None:
    place = scene(tmp_path)
    values = {**COMMON, **matrix(), "inputs.runtime": runtime}
    place.job("build.yml", "build", values)
    calls_before = len(place.calls())
    ran = place.job("gpu-proof.yml", "prove", values)

    assert [
        ran_line.code for ran_line in ran if "--key" in ran_line.line and "TORCHKILN_KEY_FILE" in ran_line.err
    ] == [1]
    assert place.calls()[calls_before:] in ([], [["make", "setup"]])


def test_a_run_leaves_nothing_on_its_runner(played: Played) -> None:
    """The runner will run other jobs."""
    for scenario in ("", "docker"):
        assert played.ran["gpu-proof.yml", "prove", scenario][-1].line.startswith("rm -rf")


def test_a_failed_run_uploads_its_report(tmp_path: Path) -> None:
    """The report can be downloaded, and nothing stays on the runner."""
    place = scene(tmp_path)
    place.remember("fails")
    values = {**COMMON, **matrix()}
    place.job("build.yml", "build", values)
    ran = place.job("gpu-proof.yml", "prove", values, **PROVER)

    assert [ran_line.code for ran_line in ran] == [0, 10, 0]
    assert (tmp_path / f"artifacts/proof-{TAG}/report.json").is_file()


def test_publishing_runs_the_gate_then_publishes_then_verifies(played: Played) -> None:
    last = [words for words in played.scene.calls("torchkiln") if words[0] in ("gate", "publish", "verify")][
        :3
    ]
    report = ["--report", "proof/report.json", "--trust", "laboratory=trusted.pem"]
    assert last == [
        ["gate", TAG, "--output", "bundle/layout", *report],
        ["publish", TAG, "--output", "bundle/layout", "--to", REGISTRY, *report, "--keyless"],
        ["verify", f"{REGISTRY}:{TAG}", *SIGNERS],
    ]
    login = ["login", "--username", "octocat", "--password-stdin", "registry.example", "<", "gh-token"]
    assert login in played.scene.calls("docker")


def test_a_tampered_image_fails_the_job(tmp_path: Path) -> None:
    place = scene(tmp_path)
    values = {**COMMON, **matrix()}
    place.job("build.yml", "build", values)
    place.job("gpu-proof.yml", "prove", values, **PROVER)
    place.remember("tampered")
    assert [ran_line.code for ran_line in place.job("publish.yml", "publish", values)][-1] == 1


def test_without_a_report_nothing_is_published(tmp_path: Path) -> None:
    """The artifact with the report is missing, so no later line runs."""
    place = scene(tmp_path)
    values = {**COMMON, **matrix()}
    place.job("build.yml", "build", values)
    ran = place.job("publish.yml", "publish", values)

    assert ran[-1].line == "actions/download-artifact"
    assert place.calls("torchkiln", "publish") == []


def test_the_nightly_run_rebuilds_published_images(played: Played) -> None:
    assert played.scene.calls("torchkiln", "verify")[1] == [f"{REGISTRY}:{TAG}", *SIGNERS, "--rebuild"]


def test_the_nightly_run_verifies_nothing_if_nothing_is_published(tmp_path: Path) -> None:
    place = scene(tmp_path)
    ran = place.job("nightly.yml", "rebuild", {**COMMON, **matrix(), "secrets.TORCHKILN_REPOSITORY": ""})
    assert [ran_line for ran_line in ran if ran_line.code] == []
    assert place.calls("torchkiln", "verify") == []
    assert len(place.calls("torchkiln", "build")) == 1


def test_newer_packages_are_proposed_with_their_list(played: Played) -> None:
    """The branch has one commit of generated files, and the pull request's text has each change."""
    place = played.scene
    body = (place.folder / "state/proposal").read_text()
    changed = git(place.origin, "diff", "--name-only", "main", "relock").splitlines()

    packages = [line for line in body.splitlines() if "==" in line]
    assert packages == ["-jupyterlab==4.5.0", "+jupyterlab==4.5.0", "-tqdm==4.67.1", "+tqdm==9.9"]
    assert body.startswith("```diff\n")
    assert body.endswith("\n```\n")
    lock = [f"images/{TAG}/lock.json", f"images/{TAG}/requirements.txt"]
    assert changed == [*lock, "images/base-debian12/base.json"]
    assert place.calls("gh", "pr", "create") != []


def test_an_open_proposal_is_updated(tmp_path: Path) -> None:
    place = scene(tmp_path)
    for _ in range(2):
        place.remember("newer")
        ran = place.job("nightly.yml", "relock", COMMON)
        assert [ran_line for ran_line in ran if ran_line.code] == []
    assert len(place.calls("gh", "pr", "create")) == 1
    assert len(place.calls("gh", "pr", "edit")) == 1


def test_without_newer_packages_nothing_is_proposed(tmp_path: Path) -> None:
    place = scene(tmp_path)
    ran = place.job("nightly.yml", "relock", COMMON)

    assert (ran[-1].code, ran[-1].err) == (0, "every lock is up to date\n")
    assert place.calls("gh") == []


def test_a_new_torch_release_is_proposed(tmp_path: Path) -> None:
    """Its branch has matrix, facts and lock. A later night without a newer release changes nothing."""
    place = scene(tmp_path)
    place.remember("released")
    ran = place.job("nightly.yml", "release", COMMON)
    assert [ran_line for ran_line in ran if ran_line.code] == []

    changed = git(place.origin, "diff", "--name-only", "main", "release").splitlines()
    new = "images/2.6.0-cuda12.1-cudnn9-runtime"
    assert changed == ["facts.yaml", f"{new}/lock.json", f"{new}/requirements.txt", "matrix.yaml"]
    (created,) = place.calls("gh", "pr", "create")
    assert created[:4] == ["--head", "release", "--title", "A new torch release"]


def test_without_a_new_torch_release_nothing_is_proposed(tmp_path: Path) -> None:
    place = scene(tmp_path)
    ran = place.job("nightly.yml", "release", COMMON)

    assert (ran[-1].code, ran[-1].err) == (0, "every lock is up to date\n")
    assert place.calls("gh", "pr") == []


def test_an_unknown_name_in_an_expression_is_an_error() -> None:
    """GitHub would silently replace it by an empty string."""
    values: Values = {"inputs.a": "x"}
    assert evaluate("inputs.a || 'y'", values) == "x"
    assert evaluate("inputs.a != '' && !cancelled()", values) is True
    with pytest.raises(KeyError):
        evaluate("inputs.b", values)


def test_gitlabs_lines_run(tmp_path: Path) -> None:
    """The script of each job runs in another clone, with GitLab's variables."""
    place = scene(tmp_path)
    inputs = {
        "CI_COMMIT_BEFORE_SHA": place.first,
        "CI_REGISTRY": "registry.example",
        "CI_REGISTRY_IMAGE": REGISTRY,
        "CI_REGISTRY_USER": "ci",
        "CI_REGISTRY_PASSWORD": "word",
        "KILN_KEY": "/secret/kiln.pem",
    }
    for name, job in loaded(GITLAB).items():
        if "script" in job:
            runner = place.runner()
            ran = [runner.line({"run": line}, inputs) for line in job["script"]]
            assert [ran_line for ran_line in ran if ran_line.code] == [], name

    assert place.calls("docker") == [
        [*("login", "--username", "ci", "--password-stdin", "registry.example"), "<", "word"]
    ]
    assert place.calls("make") == [
        ["check", "test"],
        ["release", f"TO={REGISTRY}", "KEY=/secret/kiln.pem", f"SINCE={place.first}"],
    ]
