"""`ls --site`: the folder that it writes; the locks, the reports and the registry that it reads."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import reports
from tests.keys import ED, UNKNOWN_KEY, public_pem
from tests.published import Scene, a_built_publisher, a_scene_with_referrers, a_server
from tools.kept import IMAGES, PROOFS, tables
from torchkiln.cli.repository import ls
from torchkiln.errors import ConfigError, SmokeFailed, VerificationFailed
from torchkiln.gate.inputs import kept_reports, reports_in
from torchkiln.locks.file import from_json
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import inputs_digest, load_locked, save
from torchkiln.matrix.tags import tag_of
from torchkiln.site.folder import write_folder
from torchkiln.site.images import read_records
from torchkiln.smoke.attestation import attest
from torchkiln.smoke.report import to_json
from torchkiln.util import files
from torchkiln.util.places import ROOT

__all__ = ["a_built_publisher", "a_scene_with_referrers", "a_server"]

TAG, OTHER = reports.TAG, "2.6.0-cuda12.1-cudnn9-runtime"
PAGES = {"index.html": b"one", "tags/a.html": b"two"}


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


# --- the folder -----------------------------------------------------------------------------------


@pytest.fixture(params=["at once", "one after the other"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test twice: some file systems cannot exchange two names atomically."""
    if request.param == "one after the other":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())


@pytest.mark.usefixtures("exchange")
def test_an_earlier_catalogue_is_replaced_as_a_whole(tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_folder(site, PAGES)
    assert content(site).keys() == {*PAGES, "files.json"}
    write_folder(site, {"index.html": b"new"})
    assert content(site)["index.html"] == b"new"
    assert content(site).keys() == {"index.html", "files.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "site/empty").mkdir(parents=True)
    write_folder(tmp_path / "site", PAGES)
    assert PAGES.items() <= content(tmp_path / "site").items()


@pytest.mark.usefixtures("exchange")
def test_if_writing_fails_the_earlier_catalogue_stays(tmp_path: Path) -> None:
    site = tmp_path / "site"
    write_folder(site, PAGES)
    before = content(site)
    with pytest.raises(OSError, match="File exists"):
        write_folder(site, {"a": b"", "a/b": b""})
    assert content(site) == before
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_if_the_new_folder_cannot_take_the_place_the_earlier_one_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the file system cannot exchange two names atomically, and the second rename fails."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if source == tmp_path / "one":
            raise OSError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="Permission denied"):
        files.exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "other/other").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def _a_file(site: Path) -> None:
    site.write_text("")


def _a_link(site: Path) -> None:
    site.with_name("elsewhere").mkdir()
    site.symlink_to("elsewhere")


def _of_somebody(site: Path) -> None:
    site.mkdir()
    (site / "thesis.tex").write_text("")


def _with_more(site: Path) -> None:
    write_folder(site, PAGES)
    (site / "CNAME").write_text("")


def _with_a_link(site: Path) -> None:
    write_folder(site, PAGES)
    (site / "more").symlink_to("/")


def _of_another_program(site: Path) -> None:
    site.mkdir()
    (site / "files.json").write_text(json.dumps({"files": ["mine"]}))
    (site / "mine").write_text("")


def _listed_by_a_stranger(files: object, size: int = 0) -> Callable[[Path], None]:
    def arrange(site: Path) -> None:
        _of_somebody(site)
        os.truncate(site / "thesis.tex", size)
        (site / "files.json").write_text(json.dumps({"kind": "torchkiln catalogue", "files": files}))

    return arrange


def _not_a_list(site: Path) -> None:
    write_folder(site, PAGES)
    (site / "files.json").write_text("{")


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (_a_file, "not a folder"),
        (_a_link, "a symbolic link"),
        (_of_somebody, "not empty, and not a catalogue"),
        (_with_more, "has files that torchkiln did not write: CNAME"),
        (_with_a_link, "has files that torchkiln did not write: more"),
        (_of_another_program, "has files that torchkiln did not write: mine"),
        (_listed_by_a_stranger(["thesis.tex"]), "has files that torchkiln did not write: thesis.tex"),
        (_listed_by_a_stranger({"thesis.tex": "sha256:0"}), "files that torchkiln did not write: thesis.tex"),
        (_listed_by_a_stranger({"thesis.tex": ""}, (64 << 20) + 1), "torchkiln did not write: thesis.tex"),
        (_listed_by_a_stranger({"thesis.tex": None}, (64 << 20) + 1), "torchkiln did not write: thesis.tex"),
        (_not_a_list, "has files that torchkiln did not write: index.html, tags/a.html"),
    ],
)
def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, arrange: Callable[[Path], None], message: str
) -> None:
    arrange(tmp_path / "site")
    before = content(tmp_path)
    with pytest.raises(ConfigError, match=message):
        write_folder(tmp_path / "site", PAGES)
    assert content(tmp_path) == before


# --- the reports ----------------------------------------------------------------------------------


def test_reports_are_verified_by_the_key_beside_them(tmp_path: Path) -> None:
    """A key belongs to the reports whose names begin with its name. Without a key, nothing is verified."""
    signed = attest(reports.report(), ED)
    for name in ("a.dsse.json", "a-b.dsse.json", "c.dsse.json"):
        (tmp_path / name).write_bytes(signed)
    (tmp_path / "d.json").write_bytes(to_json(reports.report()))
    (tmp_path / "e.json").write_text('{"not": "a report"}')
    (tmp_path / "a.pub.pem").write_bytes(public_pem(ED))
    found = {each.name: (each.signed, bool(each.signers)) for each in reports_in(tmp_path)}
    assert found == {
        "a.dsse.json": (True, True),
        "a-b.dsse.json": (True, True),
        "c.dsse.json": (True, False),
        "d.json": (False, False),
    }
    beside = dict(file for kept in kept_reports(tmp_path) for file in kept.files)
    assert beside == {name: (tmp_path / name).read_bytes() for name in (*found, "a.pub.pem")}
    (tmp_path / "a-b.pub.pem").write_bytes(public_pem(UNKNOWN_KEY))
    with pytest.raises(VerificationFailed):
        reports_in(tmp_path)


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        reports_in(tmp_path / "nowhere")


def test_a_report_whose_verdict_was_changed_is_refused() -> None:
    changed = replace(reports.report(), verdict="fail")
    with pytest.raises(SmokeFailed, match="its verdict is 'fail', but its values give 'pass'"):
        read_records(LockFolder(IMAGES, *tables()), [reports.signed_report(changed, "a.json")], print)


# --- the locks ------------------------------------------------------------------------------------


def left_out(folder: Path) -> tuple[list[str], list[str]]:
    """The tags that are listed, and the messages about locks that are left out."""
    said: list[str] = []
    found = read_records(LockFolder(folder, *tables()), (), said.append)
    return [tag_of(record.resolution) for record in found], said


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A folder with two locks and the base's lock."""
    for name in (TAG, OTHER, "base-debian12"):
        shutil.copytree(IMAGES / name, tmp_path / "images" / name)
    return tmp_path / "images"


def test_an_untrusted_lock_is_left_out(locks: Path) -> None:
    save(locks, replace(load_locked(locks, OTHER), untrusted=True))
    assert left_out(locks) == ([TAG], [f"left out: {OTHER}: uses an untrusted source"])


def test_a_stale_lock_is_left_out(locks: Path) -> None:
    save(locks, replace(load_locked(locks, OTHER), inputs=reports.OTHER))
    assert left_out(locks) == ([TAG], [f"left out: {OTHER}: locked with other rules"])


def test_a_damaged_lock_is_left_out(locks: Path) -> None:
    (locks / OTHER / "lock.json").write_text("{")
    tags, [line] = left_out(locks)
    assert tags == [TAG]
    assert line.startswith(f"left out: {locks}/{OTHER}/lock.json: ")


def test_the_lock_of_a_release_that_the_matrix_lacks_is_left_out(locks: Path) -> None:
    matrix, facts = tables()
    smaller = replace(matrix, torch=tuple(torch for torch in matrix.torch if torch != "2.6.0"))
    said: list[str] = []
    found = read_records(LockFolder(locks, smaller, facts), (), said.append)
    assert [tag_of(record.resolution) for record in found] == [TAG]
    assert said == [f"left out: {OTHER}: not a cell of the matrix"]


# --- the command ----------------------------------------------------------------------------------


def test_the_command_writes_the_folder_and_prints_it(tmp_path: Path, locks: Path) -> None:
    site = tmp_path / "site"
    arguments = ["--site", str(site), "--images", str(locks), "--proofs", str(PROOFS)]
    result = CliRunner().invoke(
        ls, [*arguments, "--matrix", str(ROOT / "matrix.yaml")], catch_exceptions=False
    )
    assert (result.exit_code, result.stdout) == (0, f"{site}\n")
    assert "images: 2; files: " in result.stderr
    there = content(site)
    assert {f"tags/{TAG}.html", f"zh/tags/{OTHER}.html", f"tags/{TAG}.json"} <= there.keys()
    shown = [name for name in there if name.startswith("reports/")]
    assert "reports/2.7.1-cuda12.1-debian12-h200x2-tier3.dsse.json" in shown
    assert [name for name in shown if not name.startswith(("reports/2.7.1-", "reports/2.6.0-"))] == []
    assert from_json((locks / TAG / "lock.json").read_bytes(), where="lock").resolution.cell.torch == "2.7.1"


def test_images_of_a_registry_are_listed_by_their_digest_and_with_warnings(
    scene: Scene, tmp_path: Path
) -> None:
    scene.publish()
    publisher = scene.publisher
    locked, folder = load_locked(publisher.folder / "images", TAG), LockFolder(IMAGES, *tables())
    inputs = inputs_digest(folder.resolution(locked.resolution.cell), folder.bound)
    save(tmp_path / "images", replace(locked, inputs=inputs))  # another lock gives a different digest
    arguments = ("--images", str(tmp_path / "images"), "--matrix", str(ROOT / "matrix.yaml"))

    def document() -> dict[str, object]:
        site = ("--site", str(tmp_path / "site"), "--proofs", str(tmp_path))
        done = publisher.run("ls", scene.target, *site, *arguments, *publisher.keys)
        assert done.exit_code == 0, done.exception
        found: dict[str, object] = json.loads((tmp_path / "site/tags" / f"{TAG}.json").read_bytes())
        return found

    before = document()
    assert before["published"] == {"digest": scene.image.manifest, "warnings": []}
    assert before["digest"] != scene.image.manifest
    assert "not the digest that the lock gives" in (tmp_path / "site/tags" / f"{TAG}.html").read_text()
    assert f"docker pull {scene.target}:{TAG}@{scene.image.manifest}" in str(before["commands"])

    key = ("--key", str(publisher.folder / "publisher.pem"))
    trust = [word.replace("--key", "--trust") for word in publisher.keys]
    publisher.run("withdraw", f"{scene.target}:{TAG}", "--reason", "<b>broken</b>", *key, *trust)
    scene.there.manifests[TAG] = scene.there.manifests[scene.image.manifest]  # the registry restores the tag
    after = document()
    assert after["commands"] == []
    assert "retracted: <b>broken</b>" in str(after["published"])
    page = (tmp_path / "site/tags" / f"{TAG}.html").read_text()
    assert "retracted: &lt;b&gt;broken&lt;/b&gt;" in page
    assert "<b>" not in page
