"""What the gate requires of a project with OS packages: a build on this machine, a report of the suite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.listeners import SilentSmokeListener
from tests.oci_samples import Member
from tests.os_layers import BASE, MUTANTS, changed, layer_of, with_packages
from tests.project_gate import Scene, scene
from tests.project_mutants import in_the_code
from tests.projects import NAME, TAG
from tests.reports import json_lines, report
from tests.unit.test_smoke_session import MATRIX, Scripted, event
from torchkiln.compare.images import contents_of
from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest
from torchkiln.model.project import PROJECT_JSON
from torchkiln.projects import build as project_build
from torchkiln.projects.gate import read
from torchkiln.runtimes.table import RUNTIMES
from torchkiln.smoke import session as sessions
from torchkiln.smoke.run import Checks
from torchkiln.smoke.session import SmokeRequest, SmokeSession
from torchkiln.smoke.suite import load_suite


@pytest.fixture(scope="module", name="packaged")
def a_scene_with_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with patch.object(project_build, "ensure_apt", lambda apt, *_, **_named: apt):
        yield scene(tmp_path_factory.mktemp("packages"), change=with_packages, base=BASE)


def test_many_faults_are_counted(packaged: Scene) -> None:
    """The message has the first faults of a layer, and the number of the others."""
    files = [Member(name=f"srv/{number:02}.sh", data=b"x") for number in range(30)]

    code, out, messages = packaged.judged(in_the_code(packaged, layer_of(files)))

    found = [line for line in messages.splitlines() if line.startswith("  layers: ")]
    assert (code, out) == (7, "")
    assert found[:2] == ["  layers: srv: outside of /app", "  layers: srv/00.sh: outside of /app"]
    assert found[20:] == ["  layers: 11 more like these"]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_layer_that_no_build_made_is_refused(packaged: Scene, name: str) -> None:
    """All digests of such an image match, and reports state that all checks passed."""
    code, out, messages = packaged.judged(MUTANTS[name](packaged))

    assert (code, out) == (7, ""), messages
    assert "in the image that this machine built, it " in messages, messages


def test_a_privileged_program_is_refused(packaged: Scene) -> None:
    """Also in the layer that a build made: tests as root do not show what such a program allows."""
    for member in (
        Member(name="usr/bin/su2", data=b"x", mode=0o4755),
        Member(name="usr/bin/ping", data=b"x", mode=0o755, xattrs=("security.capability",)),
    ):
        with patch.object(read, "_build_faults", lambda *_: ()):
            code, _, messages = packaged.judged(changed(member)(packaged))
        assert code == 7
        assert f"  layers: {member.name}: a privileged program" in messages
        assert "remove what is listed above" in messages


def test_os_packages_require_a_report_of_the_suite_in_this_image(packaged: Scene) -> None:
    """The reports of the parent image are not enough; the message says what to run."""
    files = (packaged.parent_report(), packaged.signed(packaged.report(packaged.image)))

    code, _, messages = packaged.gated(files)

    assert code == 7
    assert "  OS packages: reports of the parent image do not prove that torch works with them" in messages
    assert (
        f"run the missing checks on a host with 1 GPU: torchkiln smoke {NAME} --tier 1 --report" in messages
    )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"findings": report().findings[:2]}, "in this image: cuda: not run: no report contains it"),
        ({"tag": NAME}, f"in this image: suite.dsse.json: has the tag {NAME}"),
        (
            {"suite": Digest("sha256:" + "9" * 64)},
            "in this image: suite.dsse.json: was made by another suite",
        ),
        ({"image": Digest("sha256:" + "9" * 64)}, "in this image: suite.dsse.json: is a report of another"),
    ],
)
def test_reports_of_the_suite_that_do_not_count(packaged: Scene, changes: dict[str, Any], fault: str) -> None:
    files = (
        packaged.parent_report(),
        packaged.signed(packaged.report(packaged.image)),
        packaged.suite_report(packaged.image, **changes),
    )

    code, _, messages = packaged.gated(files)

    assert code == 7
    assert f"  {fault}" in messages, messages


def test_the_suite_runs_in_the_image_of_a_project(packaged: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the checks that compare an image with the lock of its cell, which are of tier 0."""
    publisher, listener = packaged.publisher, SilentSmokeListener()
    suite = load_suite(publisher.suite)
    of_image = [replace(check, of_image=check.id == "import") for check in suite.checks]
    files = {**suite.files, "requirements.txt": b""}
    checks = Checks(suite=replace(suite, checks=tuple(of_image), files=files), tier=1)
    runtime = Scripted(json_lines(*(event(name) for name in ("compile-cpu", "cuda", "bf16"))))
    monkeypatch.setitem(RUNTIMES, "scripted", runtime)  # type: ignore[arg-type]
    monkeypatch.setattr(sessions, "pytest_wheels", lambda *_: publisher.folder)
    images = publisher.folder / "images"
    session = SmokeSession(images=images, matrix=lambda: MATRIX, store=publisher.store, listener=listener)

    found = session.run(NAME, packaged.small.layout, SmokeRequest(checks=checks, runtime="scripted"))

    assert (found.image, found.tag, found.verdict) == (packaged.image.manifest, TAG, "pass")
    assert {finding.id for finding in found.findings} == {"compile-cpu", "cuda", "bf16"}
    request = SmokeRequest(checks=replace(checks, only=("import",)), runtime="scripted")
    with pytest.raises(ConfigError, match="no check named import"):
        session.run(NAME, packaged.small.layout, request)


def test_an_image_that_this_machine_did_not_build(packaged: Scene) -> None:
    """Its packages are unknown; a build on this machine, which changes nothing, makes them known."""
    [record] = (packaged.publisher.store.root / "records/projects").glob("*.json")
    data = record.read_bytes()
    record.unlink()
    try:
        code, _, messages = packaged.judged(packaged.image)
    finally:
        record.write_bytes(data)

    assert code == 7
    assert (
        "  layers: this machine has no record of a build from which the layers of packages are known"
        in messages
    )
    assert (
        "build the project on this machine, from its lock, and use that image: torchkiln project build"
        in messages
    )


def test_os_packages_that_project_json_does_not_list_are_refused(packaged: Scene) -> None:
    """No build has made an image with this project.json."""
    top = packaged.layer(
        Member(name="etc/"), Member(name="etc/torchkiln/"), Member(name=PROJECT_JSON, data=unlisted(packaged))
    )
    image = packaged.mutant(order=lambda rows: [*rows[:-1], top])

    code, _, messages = packaged.judged(image)

    assert code == 7
    assert "  layers: this machine has no record of a build" in messages


def unlisted(there: Scene) -> bytes:
    """project.json without the OS packages."""
    contents = contents_of(there.image.layers[-1], PROJECT_JSON.__eq__)
    document = json.loads(contents.texts[PROJECT_JSON])
    assert [package["name"] for package in document.pop("apt")["packages"]] == ["libxfake1", "tool"]
    return json.dumps(document).encode()
