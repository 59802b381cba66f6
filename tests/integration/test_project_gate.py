"""The gate of a project's image: cleared by its own reports and those of the parent image, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.project_gate import Scene, by_another_key, finding, plain, scene
from tests.projects import NAME, TAG, Bench
from tests.reports import found
from torchkiln.model.digest import Digest
from torchkiln.smoke.history import KeptRuns

PTH = "hook.pth"
SETTINGS = 'test = ["python", "-m", "selftest"]\nenv = {HF_HOME = "/data"}\n'


def wheels(small: Bench) -> Iterator[Path]:
    yield small.wheel("hook", "1", "hook.py", PTH)


@pytest.fixture(scope="module", name="there")
def a_scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return scene(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="module", name="tested")
def a_scene_with_a_test(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The project has a test, a variable, and a package with a .pth file."""
    return scene(tmp_path_factory.mktemp("gate"), wheels, SETTINGS)


def test_a_project_on_a_proved_image_is_cleared(there: Scene) -> None:
    code, out, messages = there.judged(there.image)

    assert (code, out) == (0, f"{there.image.manifest}\n"), messages
    assert (
        f"the parent image: {TAG}  {there.parent.manifest}\nreport 1: parent.dsse.json: 2 × NVIDIA H200"
        in messages
    )
    assert f"the project: {NAME}  {there.image.manifest}\nreport 1: project.dsse.json: no GPU" in messages
    assert "not proved: packages that replace those of the parent image: fsspec\n" in messages
    assert f"gate: {NAME}: 3 checks passed; on {TAG}: 5 checks passed" in messages


def test_the_decision_names_the_reports_below_by_digest(tested: Scene) -> None:
    report = tested.report(
        tested.image,
        findings=tuple(finding(name) for name in ("import", "pip-check", "linkage", "test")),
        run={"test": ("python", "-m", "selftest"), "at_start": (PTH,), "may_lack": ("libx.so.1",)},
    )
    files = (tested.parent_report(), tested.signed(report))
    code, out, messages = tested.gated(files, "--json")

    assert code == 0, messages
    document = json.loads(out)
    project = document["project"]
    below = project["below"]
    assert document["cleared"]["digest"] == tested.image.manifest
    assert document["cleared"]["passed"] == ["import", "pip-check", "linkage", "test"]
    assert (below["tag"], below["digest"]) == (TAG, tested.parent.manifest)
    assert below["layers"] == len(tested.parent.layers)
    assert below["gpus"] == ["2 × NVIDIA H200"]
    assert [len(row["sha256"]) for row in below["reports"]] == [64]
    assert "cuda" in below["passed"]
    assert project["added"] == ["fsspec 3", "hook 1"]
    assert project["not_proved"] == {
        "replaced": ["fsspec"],
        "at_start": [PTH],
        "variables": ["HF_HOME"],
        "may_be_missing": ["libx.so.1"],
    }


def refused(there: Scene, **changes: object) -> list[str]:
    """The lines that say why a report with *changes* does not clear the image."""
    code, out, messages = there.judged(there.image, **changes)
    assert (code, out) == (7, ""), messages
    lines = messages.splitlines()
    start = next(number for number, line in enumerate(lines) if "is not cleared" in line)
    return [line.strip() for line in lines[start + 1 :] if line.startswith("  ")]


OTHER = Digest("sha256:" + "9" * 64)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"image": OTHER}, f"is a report of another image: {OTHER}, not sha256:"),
        ({"run": {"parent_image": OTHER}}, f"names another parent image: {TAG}@{OTHER}"),
        ({"project": None}, "is a report about the image of a cell, not about that of a project"),
        ({"suite": OTHER}, f"was made by another suite: {OTHER[:19]}"),
    ],
)
def test_reports_that_do_not_count(there: Scene, changes: dict[str, Any], fault: str) -> None:
    """Of another image, of another parent image, of the usual checks, of other checks."""
    assert refused(there, **changes)[0].startswith(f"project.dsse.json: {fault}")


def test_an_accepted_suite_of_cells_does_not_count_for_projects(there: Scene, tmp_path: Path) -> None:
    policy = tmp_path / "matrix.yaml"
    text = Path("matrix.yaml").read_text()
    start = text.index("\npolicy:")
    policy.write_text(f'{text[:start]}\npolicy: {{suites: ["{OTHER}"]}}\n')
    files = (there.parent_report(), there.signed(there.report(there.image, suite=OTHER)))

    code, _, messages = there.gated(files, "--policy", str(policy))

    assert code == 7
    assert "project.dsse.json: was made by another suite" in messages


@pytest.mark.parametrize("name", ["import", "pip-check", "linkage"])
def test_each_check_must_pass(there: Scene, name: str) -> None:
    others = [finding(each) for each in ("import", "pip-check", "linkage") if each != name]
    failed = finding(name, "failed")

    assert refused(there, findings=tuple(others), verdict="pass") == [
        f"{name}: not run: no report contains it"
    ]
    assert refused(there, findings=(*others, failed), verdict="fail") == [
        f"{name}: failed: it failed (project.dsse.json)"
    ]


def test_values_count_not_the_stated_outcome(there: Scene) -> None:
    others = (finding("import"), finding("pip-check"))
    missing = finding("linkage", missing=[["a", "libx.so.1"]])
    wider = replace(missing, threshold='{"libraries": {"at_least": 0}}')

    assert refused(there, findings=(*others, missing)) == [
        "project.dsse.json: states 'pass', but its values give 'fail'",
        "linkage: reported as passed, but missing is out of bounds (project.dsse.json)",
    ]
    assert any("missing has the bound {}" in line for line in refused(there, findings=(*others, wider)))
    assert refused(there, findings=(finding("import", packages=0), *others[1:], finding("linkage"))) == [
        "project.dsse.json: names 1 packages, but imported 0"
    ]


def test_the_test_in_the_image_must_pass(tested: Scene) -> None:
    """The gate refuses an image whose test was not run, or for which another test was run."""
    started = {"at_start": (PTH,)}
    ran = tuple(finding(name) for name in ("import", "pip-check", "linkage", "test"))

    assert refused(tested, run=started) == ["test: not run: no report contains it"]
    assert refused(tested, findings=ran, run=started | {"test": ("true",)}) == [
        "project.dsse.json: ran a different test than that of the image's settings: true"
    ]


def test_a_pth_file_must_be_named_in_the_report(tested: Scene) -> None:
    ran = tuple(finding(name) for name in ("import", "pip-check", "linkage", "test"))

    assert refused(tested, findings=ran, run={"test": ("python", "-m", "selftest")}) == [
        f"project.dsse.json: does not name files that Python runs at each start: {PTH}"
    ]


def test_reports_must_be_signed_if_a_key_is_trusted(there: Scene) -> None:
    report, parent = there.report(there.image), there.parent_report()
    unsigned = there.publisher.write(plain(report), "plain.json")
    foreign = there.publisher.write(by_another_key(report), "foreign.dsse.json")

    code, _, messages = there.gated((parent, unsigned))
    assert code == 7
    assert (
        "  plain.json: is not signed by a trusted key\n" in messages
        or "  plain.json: is not signed\n" in messages
    )
    assert "torchkiln project smoke DIR --report FILE --key KEY.pem" in messages
    assert there.gated((parent, foreign))[0] == 12


def test_without_reports_the_runs_of_this_machine_count(there: Scene) -> None:
    missing = there.gate(NAME)
    kept = KeptRuns(store=there.publisher.store)
    kept.keep(there.report(there.image))
    there.publisher.keep(there.publisher.report(there.parent))

    code, out, messages = there.gate(NAME)

    assert missing[0] == 7
    assert f"  {TAG}: cuda: not run: no report contains it\n" in missing[2]
    assert "  linkage: not run: no report contains it\n" in missing[2]
    assert f"torchkiln smoke {TAG} --tier 2" in missing[2]
    assert (code, out) == (0, f"{there.image.manifest}\n"), messages


def test_the_parent_image_must_be_cleared_by_its_own_reports(there: Scene) -> None:
    """If a check of the parent has failed, the project's image is refused, whatever its own report states."""
    failed = found("cuda", "failed", "no kernel image")
    parent = there.parent_report()
    there.publisher.signed(there.publisher.report(there.parent, failed), "failed.dsse.json")
    own = there.signed(there.report(there.image))

    code, _, messages = there.gated((str(there.publisher.folder / "failed.dsse.json"), own))
    assert code == 7
    assert f"  {TAG}: cuda: failed: no kernel image (failed.dsse.json)\n" in messages
    code, _, messages = there.gated((own,))
    assert code == 7
    assert f"  {TAG}: cuda: not run: no report contains it\n" in messages
    assert there.gated((parent,))[0] == 7


def test_a_nonce_is_required_of_the_projects_report(there: Scene) -> None:
    parent, own = there.parent_report(), there.report(there.image, nonce="12345678")
    files = (parent, there.signed(own))

    assert there.gated(files, "--nonce", "12345678")[0] == 0
    code, _, messages = there.gated(files, "--nonce", "87654321")
    assert code == 7
    assert "project.dsse.json: nonce mismatch: it has the nonce 12345678" in messages


def test_the_parent_image_must_be_in_the_layout(there: Scene, tmp_path: Path) -> None:
    """Another build of the parent's tag has removed the parent image from the layout."""
    image = there.mutant()
    other = there.small.layout / "index.json"
    before = other.read_text()
    document = json.loads(before)
    document["manifests"] = [row for row in document["manifests"] if row["digest"] != there.parent.manifest]
    try:
        other.write_text(json.dumps(document))
        code, _, messages = there.gate(image.ref)
    finally:
        other.write_text(before)

    assert code == 2
    assert f"no such image: {TAG}@" in messages
    assert "torchkiln project build DIR" in messages
