"""The project of a matrix: `init`, images/, rootfs/, templates/, and its first base."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.planned import FACTS, locked
from tests.published import Scene, a_built_publisher, a_scene, a_server
from tests.reports import TAG
from torchkiln.attest.provenance import SourcePackage, origin, provenance
from torchkiln.cli import torchkiln
from torchkiln.cli.init import SCHEMA, first_cell, matrix_text
from torchkiln.cli.shared import options
from torchkiln.errors import ConfigError, KilnError, NothingSelected, Unresolvable
from torchkiln.matrix.matrix import load as load_matrix
from torchkiln.matrix.matrix import read
from torchkiln.matrix.pick import parse_driver, parse_gpus
from torchkiln.matrix.select import all_cells
from torchkiln.model.cell import Status
from torchkiln.model.digest import Digest
from torchkiln.plan.load import load
from torchkiln.plan.plan import GENERATED
from torchkiln.publishing import session
from torchkiln.util import places
from torchkiln.util.places import IMAGES, ROOT, ROOTFS

__all__ = ["a_built_publisher", "a_scene", "a_server"]

IMAGE = Digest(f"sha256:{'1' * 64}")


def invoke(*words: str) -> Result:
    return CliRunner().invoke(torchkiln, words)


def refused(*words: str) -> KilnError:
    """The error with which the command fails."""
    done = invoke(*words)
    assert isinstance(done.exception, KilnError), done.output
    return done.exception


@pytest.fixture(name="folder")
def an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- init -----------------------------------------------------------------------------------------


def test_init_writes_a_matrix_with_one_lockable_cell(folder: Path) -> None:
    done = invoke("init")
    assert (done.exit_code, done.stdout) == (0, "matrix.yaml\n")
    assert done.stderr == "next: `torchkiln lock`; then `torchkiln build`\n"
    grid = read(folder / "matrix.yaml", FACTS)
    resolution = first_cell(FACTS, None, None)
    assert all_cells(grid) == (resolution.cell,)
    assert (resolution.lockable, resolution.status) == (True, Status.NATIVE)
    assert resolution.cell.torch == read(places.MATRIX, FACTS).releases[-1]
    assert len((folder / "matrix.yaml").read_text().splitlines()) <= 15


def test_the_schema_that_the_first_line_names_is_there(folder: Path) -> None:
    invoke("init")
    first = (folder / "matrix.yaml").read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema={SCHEMA}"
    assert (folder / SCHEMA).read_bytes() == (ROOT / "torchkiln/data/matrix.schema.json").read_bytes()
    assert {path.name for path in folder.iterdir()} == {"matrix.yaml", SCHEMA}


def test_a_schema_that_exists_is_not_changed(folder: Path) -> None:
    (folder / SCHEMA).write_text("mine")
    invoke("init")
    assert (folder / SCHEMA).read_text() == "mine"


def test_a_new_project_has_the_policy_of_torchkilns_own_matrix() -> None:
    """Only keys and suites differ. `gate` and `publish` therefore do not report an ignored policy."""
    grid = load_matrix(matrix_text(first_cell(FACTS, None, None)), FACTS)
    assert grid.policy == replace(read(places.MATRIX, FACTS).policy, keys=(), suites=())


@pytest.mark.parametrize("what", ["file", "link", "folder"])
def test_init_changes_no_existing_matrix(folder: Path, what: str) -> None:
    matrix = folder / "matrix.yaml"
    {
        "file": lambda: matrix.write_text("mine"),
        "link": lambda: matrix.symlink_to("elsewhere"),
        "folder": matrix.mkdir,
    }[what]()
    error = refused("init")
    assert (error.exit_code, error.message) == (2, "matrix.yaml: file exists")
    assert [path.name for path in folder.iterdir()] == ["matrix.yaml"]
    assert what != "file" or matrix.read_text() == "mine"


@pytest.mark.parametrize(
    ("torch", "cuda", "expected"),
    [
        ("2.7", None, ("2.7.1", "12.6")),
        ("2.7.0", None, ("2.7.0", "12.6")),
        ("2", None, ("2.15.0", "13.2")),
        ("2.7.1", "12.1", ("2.7.1", "12.1")),
        (None, "12.1", ("2.10.0", "12.1")),
        (None, "12", ("2.10.0", "12.8")),
        ("2.0", "11", ("2.0.1", "11.7")),
    ],
)
def test_the_newest_lockable_cell_of_the_named_versions(
    torch: str | None, cuda: str | None, expected: tuple[str, str]
) -> None:
    cell = first_cell(FACTS, torch, cuda).cell
    assert (cell.torch, cell.cuda) == expected


@pytest.mark.parametrize(
    ("driver", "gpu", "cell"),
    [
        ("535", "A100", ("2.10.0", "12.8")),
        ("580.65.06", "NVIDIA H100 80GB HBM3", ("2.15.0", "13.2")),
        ("535", "P100", ("2.7.1", "12.6")),
    ],
)
def test_init_for_a_host(driver: str, gpu: str, cell: tuple[str, str]) -> None:
    found = first_cell(FACTS, None, None, (parse_driver(driver), parse_gpus([gpu], FACTS))).cell
    assert (found.torch, found.cuda) == cell


@pytest.mark.parametrize(
    ("torch", "cuda", "kind", "text"),
    [
        ("9.9", None, ConfigError, "--torch 9.9: unknown version"),
        ("2.7.", None, ConfigError, "--torch 2.7.: unknown version"),
        ("", None, ConfigError, "--torch : unknown version"),
        ("2.1", "14.0", ConfigError, "--cuda 14.0: unknown version"),
        ("2.11", "11.8", Unresolvable, "unavailable: torch 2.11 has no CUDA 11 build"),
        ("2.7.1", "12.8", ConfigError, "cannot be locked from the default index alone"),
    ],
)
def test_versions_without_a_lockable_cell_are_refused(
    folder: Path, torch: str, cuda: str | None, kind: type[KilnError], text: str
) -> None:
    error = refused("init", "--torch", torch, *(("--cuda", cuda) if cuda else ()))
    assert isinstance(error, kind)
    assert text in error.message
    assert error.hint
    assert list(folder.iterdir()) == []


# --- commands without options ----------------------------------------------------------------------


def test_the_only_cell_of_a_matrix_need_not_be_named(folder: Path) -> None:
    invoke("init", "--torch", "2.7")
    assert "2.7.1-cuda12.6-cudnn9-runtime/lock.json: no such file" in refused("lock", "--check").message
    assert "not locked yet" in refused("build").message


def test_of_several_cells_one_must_be_named(folder: Path) -> None:
    invoke("init", "--torch", "2.7")
    matrix = folder / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace('["12.6"]', '["11.8", "12.6"]'))
    assert isinstance(refused("build"), NothingSelected)


# --- where images/ is -----------------------------------------------------------------------------


def test_images_are_beside_the_matrix(folder: Path) -> None:
    """The matrix is in the current folder or named by an option, whose position does not matter."""
    invoke("init", "--torch", "2.7", "--cuda", "12.1")
    assert f"images/{TAG}/lock.json" in str(refused("plan"))
    assert str(ROOT) not in str(refused("plan"))
    (folder / "there").mkdir()
    (folder / "matrix.yaml").rename(folder / "there/matrix.yaml")
    (folder / "there/images").mkdir()
    shutil.copytree(IMAGES / TAG, folder / "there/images" / TAG)
    done = invoke("plan", "--torch", "2.7", "--matrix", "there/matrix.yaml")
    assert done.exit_code == 0, done.exception
    assert done.stdout.startswith(TAG)


def test_without_a_matrix_the_checkouts_is_used(folder: Path) -> None:
    done = invoke("plan", "--torch", "2.7", "--cuda", "12.1")
    assert done.exit_code == 0, done.exception


def test_installed_there_is_no_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "INSTALLED", True)
    monkeypatch.setattr("torchkiln.matrix.matrix.INSTALLED", True)
    error = refused("lock", "--torch", "2.7")
    assert (error.exit_code, error.message) == (2, "matrix.yaml: No such file or directory")
    assert error.hint == "write one: torchkiln init; or pass --matrix FILE"


@pytest.mark.parametrize("words", [("list",), ("explain", "--torch", "2.7"), ("pick", "--driver", "535")])
def test_installed_the_reading_commands_use_torchkilns_own_matrix(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(options, "INSTALLED", True)
    done = invoke(*words)
    assert done.exit_code == 0, done.exception
    assert "2.7.1" in done.stdout


# --- rootfs/ and templates/ of a project ----------------------------------------------------------


def write(file: Path, text: str = "", mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def test_a_file_of_the_project_replaces_or_adds_to_the_packages(tmp_path: Path) -> None:
    write(tmp_path / "etc/bash.bashrc", "ours")
    write(tmp_path / "usr/local/bin/team", "#!/bin/sh\n", 0o700)
    write(tmp_path / "usr/local/bin/__pycache__/team.pyc")
    before, after = ({file.path: file for file in files} for files in (load(ROOTFS), load(ROOTFS, tmp_path)))
    assert after.keys() - before.keys() == {"usr/local/bin/team"}
    assert {path for path in before if before[path] != after[path]} == {"etc/bash.bashrc"}
    assert (after["etc/bash.bashrc"].data, after["usr/local/bin/team"].mode) == (b"ours", 0o755)
    assert list(after) == sorted(after)


def test_without_such_a_folder_or_in_the_checkout_nothing_changes(tmp_path: Path) -> None:
    assert load(ROOTFS, tmp_path / "none") == load(ROOTFS, ROOTFS) == load(ROOTFS)


def test_every_fault_of_a_projects_files_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "etc/.wh.passwd")
    write(tmp_path / "etc/two words")
    write(tmp_path / "etc/$HOME")
    write(tmp_path / "--chown")
    write(tmp_path / "etc/ssh")
    (tmp_path / "etc/link").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError) as caught:
        load(ROOTFS, tmp_path)
    lines = caught.value.message.splitlines()
    assert [line.partition(": ")[0].removeprefix(f"{tmp_path}/") for line in lines] == [
        *("--chown", "etc/$HOME", "etc/.wh.passwd", "etc/link", "etc/ssh", "etc/two words")
    ]
    assert "deletes files" in lines[2]
    assert lines[4].endswith("a file, but also a folder")


def test_a_file_that_the_plan_generates_cannot_be_replaced(folder: Path) -> None:
    for name in GENERATED:
        a_project(folder)
        write(folder / "rootfs" / name)
        assert f"rootfs/{name}: the plan generates this file" in refused("plan").message
        shutil.rmtree(folder / "rootfs")


def a_project(folder: Path) -> None:
    """Make *folder* a project with the default cell and its committed lock."""
    (folder / "matrix.yaml").write_text(matrix_text(first_cell(FACTS, "2.7", "12.1")))
    shutil.copytree(IMAGES / TAG, folder / "images" / TAG, dirs_exist_ok=True)


def test_plan_and_dockerfile_have_the_projects_files(folder: Path) -> None:
    a_project(folder)
    write(folder / "rootfs/etc/team", "ours")
    write(folder / "templates/parts/config.j2", "# ours\n")
    layer = json.loads(invoke("plan", "--json").stdout)["layers"][-1]
    assert {file["path"] for file in layer["files"]} > {"etc/team", "opt/torchkiln/entrypoint"}
    assert invoke("render", "--rootfs", "context").exit_code == 0
    text = (folder / "images" / TAG / "Dockerfile").read_text()
    assert text.endswith("# ours\n")
    assert re.search(r"COPY --from=rootfs .*etc/team .*/etc/$", text, re.MULTILINE)
    copies = re.findall(r"^COPY --from=rootfs --chmod=[0-9]+ (.*) /[^ ]*$", text, re.MULTILINE)
    copied = set(" ".join(copies).split())
    written = {str(path.relative_to("context")) for path in Path("context").rglob("*") if path.is_file()}
    assert written == copied == {file.path for file in load(ROOTFS)} | {"etc/team"}
    assert (folder / "context/opt/torchkiln/entrypoint").stat().st_mode & 0o777 == 0o755


def test_a_folder_with_files_is_not_overwritten(folder: Path) -> None:
    a_project(folder)
    write(folder / "context/mine")
    assert refused("render", "--rootfs", "context").message == "--rootfs context: directory not empty"
    assert invoke("render", "--check", "--rootfs", "new").exit_code == 2


def test_a_template_that_is_not_text(folder: Path) -> None:
    a_project(folder)
    (folder / "templates").mkdir()
    (folder / "templates/x.j2").write_bytes(b"\xff")
    assert "templates/x.j2: 'utf-8' codec can't decode" in refused("render").message


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ plan.of.__globals__ }}", "access to attribute '__globals__' of"),
        ("{% for _ in range(10 ** 9) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_template_of_a_project_runs_no_code(folder: Path, text: str, fault: str) -> None:
    """Another person may have written the template."""
    a_project(folder)
    write(folder / "templates/parts/config.j2", text)
    assert fault in refused("render").message


@pytest.mark.parametrize("name", ["templates", "templates/x.j2", "templates/parts", "rootfs"])
def test_a_link_of_a_project_does_not_lead_to_files_elsewhere(folder: Path, name: str) -> None:
    """A file outside of the project must not get into an image or a Dockerfile, which others can read."""
    a_project(folder)
    write(folder / "elsewhere/id.j2", "a private key")
    target = folder / ("elsewhere/id.j2" if name.endswith(".j2") else "elsewhere")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(target)
    done = invoke("render")
    assert "a private key" not in (folder / "images" / TAG / "Dockerfile").read_text(errors="replace")
    assert name == "templates/parts" or "a symbolic link" in getattr(done.exception, "message", "")


def test_verify_does_not_trust_rootfs_of_the_current_folder(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker who prepares the current folder could otherwise make any image match its rebuild."""
    scene.publish()
    monkeypatch.chdir(scene.publisher.folder)
    shutil.copyfile(places.MATRIX, "matrix.yaml")
    write(Path("rootfs/etc/team"), "not ours")
    assert scene.verify().exit_code == 0
    assert "lock: layers differ from its lock: torchkiln (" in scene.refused("--policy", "matrix.yaml")


# --- the source in the provenance -----------------------------------------------------------------


def test_the_provenance_of_an_installation_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "INSTALLED", True)
    found = session.source_of()
    statement = provenance(locked(), IMAGE, source=found, builder="urn:b")
    items = statement.content["buildDefinition"]["resolvedDependencies"]
    assert [item for item in items if item["name"] == "source"] == [
        {"name": "source", "uri": "pkg:pypi/torchkiln@0.1.0"}
    ]
    assert origin(statement, where="provenance").short_source == "torchkiln 0.1.0"


@pytest.mark.parametrize("version", ["0.1.0\n", "", "x", "1" * 41, "0.1.0 by root"])
def test_a_version_of_another_form_is_not_shown(version: str) -> None:
    statement = provenance(locked(), IMAGE, source=SourcePackage(version=version), builder="urn:b")
    assert origin(statement, where="provenance").source == ""


def test_in_a_checkout_the_source_is_a_commit() -> None:
    found = session.source_of()
    assert found is None or not isinstance(found, SourcePackage)


def test_a_damaged_file_of_an_installation_is_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert places.how_to_restore("rootfs") == "restore it: git checkout -- rootfs"
    monkeypatch.setattr(places, "INSTALLED", True)
    assert places.how_to_restore("rootfs") == "install torchkiln again"
