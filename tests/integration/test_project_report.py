"""`project smoke`: it runs the project's test; its reports are signed, stored and shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.integration.test_project_image import PYTHON, Commands
from tests.keys import ED, UNKNOWN_KEY, pem, public_pem
from tests.needs import needs_namespaces
from tests.projects import TAG, bench
from torchkiln.model.apt import LockedApt
from torchkiln.model.digest import Digest
from torchkiln.model.lock import DebFile
from torchkiln.oci.layout import open_layout
from torchkiln.projects.file import project_digest, save_project
from torchkiln.projects.freshness import inputs_digest
from torchkiln.projects.smoke.checks import project_suite
from torchkiln.projects.source import needs_of
from torchkiln.smoke.attestation import read
from torchkiln.smoke.history import KeptRuns

# Replaces the image's Python: everything passes. `-m selftest` fails unless it runs as the image's user in
# /app.
SOUND = """#!/bin/sh
case "$*" in
*/linkage_probe.py) echo '{"missing": [], "loaded": [], "versions": [], "import_torch": ""}' ;;
*"pip check") ;;
*"-m selftest") echo "in $(pwd)"; echo "warned" >&2; [ "$(id -u) $(pwd) $PYTHONPATH" = "0 /app /app" ] ;;
*) echo '{"from": ["/opt/venv"]}' ;;
esac
"""

pytestmark = needs_namespaces


def project(tmp_path: Path, *settings: str) -> Commands:
    """A built project with *settings*."""
    commands = Commands(bench(tmp_path, python=SOUND))
    (commands.small.project / "torchkiln.toml").write_text("\n".join(settings))
    assert commands.build()[0] == 0
    return commands


def test_the_report_names_the_image_and_the_one_below(tmp_path: Path) -> None:
    commands = project(tmp_path, 'test = ["python", "-m", "selftest"]')
    key, public = tmp_path / "key.pem", tmp_path / "public.pem"
    key.write_bytes(pem(ED))
    key.chmod(0o600)
    public.write_bytes(public_pem(ED))
    file = tmp_path / "report.json"

    code, out, messages = commands.smoke("--report", str(file), "--key", str(key), "--nonce", "12345678")

    assert (code, out) == (0, "pass\n"), messages
    layout = open_layout(commands.small.layout)
    found = read(file, [ED.public_key()])
    assert len(found.signers) == 1
    report = found.report
    assert (report.image, report.tag) == (layout.image("project").manifest, "project")
    assert (report.suite, report.nonce, report.runtime) == (project_suite().digest, "12345678", "rootfs")
    assert report.verified
    assert [(each.id, each.outcome) for each in report.findings] == [
        ("import", "passed"),
        ("pip-check", "passed"),
        ("linkage", "passed"),
        ("test", "passed"),
    ]
    run = report.project
    assert run is not None
    assert (run.parent, run.parent_image) == (TAG, layout.image(TAG).manifest)
    assert run.lock == project_digest(commands.lock)
    assert (run.named, run.test, run.gpus) == (("fsspec",), ("python", "-m", "selftest"), "none")
    kept = (signed.report for signed in KeptRuns(store=commands.small.store).all())
    assert next(one for one in kept if one.image == report.image) == report
    shown = commands.run("smoke", "show", str(file), "--trust", str(public))
    assert shown[0] == 0, shown
    assert f"on {TAG}  {layout.image(TAG).manifest}" in shown[1]
    public.write_bytes(public_pem(UNKNOWN_KEY))
    assert commands.run("smoke", "show", str(file), "--trust", str(public))[0] == 12


def test_json_and_the_other_formats(tmp_path: Path) -> None:
    commands = project(tmp_path)
    junit, markdown = tmp_path / "junit.xml", tmp_path / "summary.md"

    code, out, messages = commands.smoke("--json", "--junit", str(junit), "--markdown", str(markdown))

    assert code == 0, messages
    document = json.loads(out)
    assert document["verdict"] == "pass"
    assert document["project"]["parent"] == TAG
    assert [check["id"] for check in document["checks"]] == ["import", "pip-check", "linkage"]
    assert "smoke project" in junit.read_text()
    assert "linkage" in markdown.read_text()


def test_a_test_that_fails(tmp_path: Path) -> None:
    commands = project(tmp_path, 'test = ["sh", "-c", "echo one; echo two >&2; exit 3"]')

    code, out, messages = commands.smoke("--json")

    assert code == 10, messages
    assert json.loads(out)["verdict"] == "fail"
    assert "ended with exit code 3\n    one\n    two\n" in messages
    assert "project: fail: test" in messages


def test_a_test_that_takes_too_long(tmp_path: Path) -> None:
    commands = project(tmp_path, 'test = ["sleep", "60"]')

    code, _, messages = commands.smoke("--only", "test", "--limit", "1")

    assert code == 10
    assert "sleep 60: killed: the limit of this check, 1 s, was reached (--limit)" in messages


def test_a_test_without_a_setting(tmp_path: Path) -> None:
    code, _, messages = project(tmp_path).smoke("--only", "test")

    assert code == 2
    assert messages.startswith("--only test: the project has no test\nset its command in torchkiln.toml")


def test_the_test_is_that_of_the_image(tmp_path: Path) -> None:
    commands = project(tmp_path, 'test = ["true"]')
    (commands.small.project / "torchkiln.toml").write_text('test = ["false"]\n')

    code, out, messages = commands.smoke()

    assert (code, out) == (5, "")
    assert "project was built with a different test than" in messages


def test_the_report_names_the_libraries_that_the_lock_allows_to_be_missing(tmp_path: Path) -> None:
    """The report names libraries that the lock allows to be missing, and those of the option."""
    commands = Commands(bench(tmp_path, python=PYTHON))
    assert commands.build()[0] == 0
    refused = commands.smoke("--only", "linkage")
    save_project(commands.small.project, replace(commands.lock, may_lack=("libx.so.1",)))

    code, out, messages = commands.smoke("--only", "linkage", "--allow-missing", "fsspec", "--json")

    assert refused[0] == 10
    assert code == 0, messages
    assert json.loads(out)["project"]["may_lack"] == ["fsspec", "libx.so.1"]
    _, _, shown = commands.smoke("--only", "linkage")
    assert "\nmay be missing: libx.so.1\n" in shown


def test_an_image_without_the_os_packages_of_the_lock_is_outdated(tmp_path: Path) -> None:
    commands = project(tmp_path)
    deb = DebFile(name="tool", version="1.0", architecture="amd64", source="tool", size=1, sha256="a" * 64)
    layer = {"digest": Digest("sha256:" + "5" * 64), "diff_id": Digest("sha256:" + "6" * 64)}
    apt = LockedApt(
        os="debian12",
        requested=("tool",),
        base=commands.small.cell.base.digest,
        debs=(deb,),
        size=1,
        unpacked=1,
        encoder="x",
        **layer,
    )
    (commands.small.project / "torchkiln.toml").write_text('apt = ["tool"]\n')
    needs = needs_of(commands.small.project, commands.small.cell, commands.small.store)
    lock = replace(commands.lock, apt=apt, inputs=inputs_digest(needs, commands.small.cell))
    save_project(commands.small.project, lock)

    code, out, messages = commands.smoke()

    assert (code, out) == (5, ""), messages
    assert "project was built from a different lock than" in messages
