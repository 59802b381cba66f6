"""Wheels of a project in a folder, by path and by URL: which are chosen, locked and refused."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.index_server import wheel_bytes
from tests.unit.test_project_lock import OLD, Workspace, locked_cell, versions
from torchkiln.model.cell import Source
from torchkiln.model.project import Origin
from torchkiln.projects import own_wheels
from torchkiln.projects.file import FILE, load_project
from torchkiln.store.store import Store

PURE = "py3-none-any"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with locked_cell(Workspace, tmp_path_factory.mktemp("own-wheels")) as found:
        yield found


@pytest.fixture
def project(cell: Workspace, tmp_path: Path) -> Workspace:
    """Each test uses its own project."""
    cell.folder = tmp_path / "trial"
    cell.folder.mkdir()
    return cell


def put(project: Workspace, name: str, version: str, folder: str = "wheels", **details: object) -> str:
    """Put a wheel into the project's *folder*, and return its SHA-256."""
    filename, data = wheel_bytes(name, version, **details)  # type: ignore[arg-type]
    place = project.folder / folder / filename
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def settings(project: Workspace, text: str = 'wheels = "wheels"\n') -> None:
    (project.folder / "torchkiln.toml").write_text(text)


def messages_of(project: Workspace, requirements: str) -> tuple[int, str]:
    (project.folder / "requirements.txt").write_text(requirements)
    code, _, messages = project.lock()
    return code, messages


def test_a_wheel_that_no_index_has(project: Workspace) -> None:
    """The packages that its METADATA requires come from the index. The wheel is copied into the cache."""
    sha256 = put(project, "own-ops", "1.2", requires=["datasets"], tag="cp311-cp311-linux_x86_64")
    settings(project)
    found = project.locked("own-ops\n")

    assert versions(found) == {"datasets": "4.0", "fsspec": "2026.2", "own-ops": "1.2"}
    wheel = next(wheel for wheel in found.wheels if wheel.name == "own-ops")
    assert (wheel.sha256, wheel.index) == (sha256, Source.PROJECT)
    path = "wheels/own_ops-1.2-cp311-cp311-linux_x86_64.whl"
    assert found.origins == (Origin(name="own-ops", path=path),)
    assert Store(Path(str(project.environ["TORCHKILN_CACHE"]))).has_wheel(wheel)
    assert f"own-ops is {path}" in project.messages
    assert project.lock("--check")[0] == 0


def test_the_folder_and_the_index_are_used_together(project: Workspace) -> None:
    """The newest fitting version is chosen. If both have it, the folder's file is chosen."""
    server = project.server
    server.add("default", "mixed", "1.0", date=OLD)
    server.add("default", "mixed", "3.0", requires=["numpy"], date=OLD)
    put(project, "mixed", "2.0")
    sha256 = put(project, "mixed", "1.0", payload=b"patched")
    settings(project)

    code, messages = messages_of(project, "mixed\n")
    assert code == 0
    assert "mixed 3.0 is from the package index; the project's folder has mixed 2.0" in messages
    (project.folder / FILE).unlink()
    assert versions(project.locked("mixed<3\n")) == {"mixed": "2.0"}
    (project.folder / FILE).unlink()
    found = project.locked("mixed<2\n")
    assert [(wheel.version, wheel.sha256) for wheel in found.wheels] == [("1.0", sha256)]


def test_of_one_version_the_folders_requirements_count(project: Workspace) -> None:
    """pip installs the folder's file, so the requirements of the index's file must not be locked."""
    project.server.add(
        "default", "dual", "1.0", requires=["nowhere"], tag="cp311-cp311-manylinux_2_17_x86_64"
    )
    put(project, "dual", "1.0", requires=["attrs"])
    settings(project)
    assert versions(project.locked("dual\n")) == {"attrs": "1.0", "dual": "1.0"}


def test_versions_are_kept_until_they_are_upgraded(project: Workspace) -> None:
    put(project, "kept", "1.0")
    settings(project)
    first = project.locked("kept\n")
    put(project, "kept", "1.1")
    assert project.lock("--check")[0] == 0
    assert project.locked("kept\n") == first
    assert versions(project.locked("kept\n", "--upgrade", "kept")) == {"kept": "1.1"}


def test_a_changed_file_makes_the_lock_stale(project: Workspace) -> None:
    """Even if size and name are unchanged. A missing file does not, because the cache has it."""
    put(project, "mine", "1.0", payload=b"one")
    settings(project)
    project.locked("mine\n")
    put(project, "mine", "1.0", payload=b"two")
    code, _, messages = project.lock("--check")
    assert code == 5
    assert "made with different contents of wheels/mine-1.0-py3-none-any.whl" in messages
    (project.folder / "wheels/mine-1.0-py3-none-any.whl").unlink()
    assert project.lock("--check")[0] == 0
    settings(project, 'wheels = "other"\n')
    code, _, messages = project.lock("--check")
    assert (code, "made from other requirements" in messages) == (5, True)


def test_a_wheel_for_another_python_or_platform_is_skipped(project: Workspace) -> None:
    put(project, "ops", "1.0", tag="cp312-cp312-linux_x86_64")
    put(project, "ops", "1.1", tag="cp311-cp311-win_amd64")
    put(project, "ops", "1.2", tag="cp311-cp311-manylinux_2_39_x86_64")
    put(project, "ops", "1.3", python=">=3.12")
    settings(project)
    code, messages = messages_of(project, "ops\n")
    assert code == 4
    for end in ("1.0-cp312-cp312-linux_x86_64", "1.1-cp311-cp311-win_amd64"):
        assert f"skipped: wheels/ops-{end}.whl: not a supported wheel for Python 3.11.2" in messages
    assert (
        "skipped: wheels/ops-1.2-cp311-cp311-manylinux_2_39_x86_64.whl: not a supported wheel for" in messages
    )
    assert "skipped: wheels/ops-1.3-py3-none-any.whl: requires Python >=3.12" in messages
    put(project, "ops", "0.9", tag="cp311-cp311-linux_x86_64")
    assert versions(project.locked("ops\n")) == {"ops": "0.9"}


def test_the_best_wheel_of_a_version(project: Workspace) -> None:
    """Its METADATA is used. It may need a glibc that the image has, but that uv does not assume."""
    put(project, "many", "1.0", requires=["nowhere"])
    sha256 = put(project, "many", "1.0", tag="cp311-cp311-manylinux_2_35_x86_64")
    put(project, "many", "1.0", requires=["nowhere"], tag="cp311-cp311-linux_x86_64")
    settings(project)
    assert [wheel.sha256 for wheel in project.locked("many\n").wheels] == [sha256]


def test_a_fixed_package_in_the_folder_is_not_used(project: Workspace) -> None:
    put(project, "torch", "2.7.1", requires=["nowhere"])
    put(project, "triton", "3.3.1", requires=["nowhere"])
    settings(project)
    assert project.locked("torch\n").wheels == ()
    code, messages = messages_of(project, "./wheels/torch-2.7.1-py3-none-any.whl\n")
    assert code == 2
    assert "requirements.txt:1: wheels/torch-2.7.1-py3-none-any.whl: the image has torch 2.7.1" in messages


def test_a_wheel_by_path(project: Workspace) -> None:
    """It is used even if the index has a newer version. Extras and markers are respected."""
    project.server.add("default", "tool", "9.0", date=OLD)
    sha256 = put(project, "tool", "1.0", "vendor", requires=["datasets; extra == 'data'"])
    found = project.locked("./vendor/tool-1.0-py3-none-any.whl[data] ; sys_platform == 'linux'\n")

    assert versions(found) == {"datasets": "4.0", "fsspec": "2026.2", "tool": "1.0"}
    assert next(wheel.sha256 for wheel in found.wheels if wheel.name == "tool") == sha256
    assert found.origins == (Origin(name="tool", path="vendor/tool-1.0-py3-none-any.whl"),)
    assert found.requirements == ('tool[data]==1.0; sys_platform == "linux"',)
    assert not [path for _, path, _ in project.server.requests if "/tool/" in path]
    (project.folder / FILE).unlink()
    for form in (
        "tool @ ./vendor/tool-1.0-py3-none-any.whl",
        f"vendor/tool-1.0-py3-none-any.whl --hash=sha256:{sha256}",
    ):
        assert project.locked(f"{form}\n").origins == found.origins
    code, messages = messages_of(project, f"./vendor/tool-1.0-py3-none-any.whl --hash=sha256:{'0' * 64}\n")
    assert (code, "checksum mismatch" in messages) == (6, True)


def test_a_wheel_by_path_replaces_the_images_file_of_this_version(project: Workspace) -> None:
    """A wheel that is only in the folder does not replace the image's file of the same version."""
    put(project, "notebook", "2.0", requires=["fsspec"], payload=b"patched")
    settings(project)
    assert project.locked("notebook\n").wheels == ()
    found = project.locked("./wheels/notebook-2.0-py3-none-any.whl\n")
    assert (versions(found), found.removed) == ({"notebook": "2.0"}, ("notebook",))


def test_a_wheel_in_uv_lock(project: Workspace) -> None:
    """uv writes it with a path as its source; the hash is compared."""
    sha256 = put(project, "tool", "1.0")
    path = "wheels/tool-1.0-py3-none-any.whl"
    (project.folder / "pyproject.toml").write_text(
        '[project]\nname = "trial"\nversion = "1"\ndependencies = ["tool"]\n'
        f'[tool.uv.sources]\ntool = {{ path = "{path}" }}\n'
    )
    (project.folder / "uv.lock").write_text(
        'version = 1\nrevision = 3\nrequires-python = ">=3.11"\n\n'
        f'[[package]]\nname = "tool"\nversion = "1.0"\nsource = {{ path = "{path}" }}\n'
        f'wheels = [\n    {{ filename = "{Path(path).name}", hash = "sha256:{sha256}" }},\n]\n\n'
        '[[package]]\nname = "trial"\nversion = "1"\nsource = { virtual = "." }\n'
        'dependencies = [\n    { name = "tool" },\n]\n\n'
        f'[package.metadata]\nrequires-dist = [{{ name = "tool", path = "{path}" }}]\n'
    )
    code, _, messages = project.lock()
    assert code == 0, messages
    found = load_project(project.folder)
    assert found is not None
    assert found.origins == (Origin(name="tool", path=path),)
    put(project, "tool", "1.0", payload=b"other")
    code, _, messages = project.lock()
    assert (code, "checksum mismatch" in messages) == (6, True)


def test_a_wheel_in_pyproject(project: Workspace) -> None:
    put(project, "tool", "1.0")
    (project.folder / "pyproject.toml").write_text(
        '[project]\nname = "trial"\nversion = "1"\n'
        'dependencies = ["tool @ file:wheels/tool-1.0-py3-none-any.whl"]\n'
    )
    assert project.lock()[0] == 0
    assert project.lock("--check")[0] == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/srv/tool-1.0-py3-none-any.whl", "write the path relative to the project's folder"),
        ("other @ ./wheels/tool-1.0-py3-none-any.whl", "this is a wheel of tool, not of other"),
        ("./wheels/missing-1.0-py3-none-any.whl", "No such file or directory"),
        ("./wheels/link-1.0-py3-none-any.whl", "not a file in the project's folder"),
        ("./wheels/folder-1.0-py3-none-any.whl", "is a directory, not a file"),
        ("./wheels/tool-1.0.tar.gz", "a local file must be a wheel"),
        ("https://x.invalid/tool-1.0-py3-none-any.whl", "a direct URL of a wheel requires one sha256"),
        (f"https://me:pw@x.invalid/t-1-py3-none-any.whl#sha256={'0' * 64}", "it contains credentials"),
    ],
)
def test_files_that_cannot_be_locked(project: Workspace, line: str, why: str) -> None:
    put(project, "tool", "1.0")
    (project.folder / "wheels/folder-1.0-py3-none-any.whl").mkdir()
    (project.folder.parent / "out.whl").write_bytes(b"x")
    (project.folder / "wheels/link-1.0-py3-none-any.whl").symlink_to("../../out.whl")
    code, messages = messages_of(project, f"datasets\n{line}\n")
    assert code == 2
    assert "requirements.txt:2: " in messages
    assert why in messages
    assert "me:pw" not in messages


def test_invalid_wheels_are_all_named(project: Workspace) -> None:
    folder = project.folder / "wheels"
    put(project, "fine", "1.0")
    (folder / "fine-2.0-py3-none-any.whl").write_bytes((folder / "fine-1.0-py3-none-any.whl").read_bytes())
    (folder / "zip-1.0-py3-none-any.whl").write_bytes(b"PK no zip")
    (folder / "notes.txt").write_text("ignored")
    settings(project)
    code, messages = messages_of(project, "fine\n")
    assert code == 2
    assert (
        "wheels/fine-2.0-py3-none-any.whl: the file name does not match METADATA (fine 1.0): rename the file"
        in messages
    )
    assert "wheels/zip-1.0-py3-none-any.whl: " in messages

    (folder / "a b.whl").write_bytes(b"x")
    (folder / "empty-1.0-py3-none-any.whl").write_bytes(b"")
    code, messages = messages_of(project, "fine\n")
    assert code == 2
    assert "wheels/a b.whl: not a valid wheel filename" in messages
    assert "wheels/empty-1.0-py3-none-any.whl: the file is empty" in messages


@pytest.mark.parametrize("text", ['"../wheels"', '"/srv"', '"."', '"wheels/.."', '""', '"link"'])
def test_a_folder_elsewhere_is_refused(project: Workspace, text: str) -> None:
    (project.folder.parent / "elsewhere").mkdir()
    os.symlink("../elsewhere", project.folder / "link")
    settings(project, f"wheels = {text}\n")
    code, messages = messages_of(project, "datasets\n")
    assert (code, "wheels" in messages) == (2, True)


def test_a_missing_folder_is_refused_when_it_is_locked(project: Workspace) -> None:
    settings(project)
    code, messages = messages_of(project, "datasets\n")
    assert code == 2
    assert f"wheels: no such directory: {project.folder}/wheels" in messages


def test_a_wheel_by_url(project: Workspace) -> None:
    """`lock` downloads it, and uses it only if its SHA-256 is the required one."""
    filename, data = project.server.add("files", "remote", "1.0", requires=["attrs"])
    project.server.add("default", "remote", "2.0", date=OLD)
    sha256 = hashlib.sha256(data).hexdigest()
    url = f"{project.server.origin}/files/files/{filename}"
    found = project.locked(f"remote @ {url}#sha256={sha256}\n")

    assert versions(found) == {"attrs": "1.0", "remote": "1.0"}
    assert found.origins == (Origin(name="remote", url=url),)
    (project.folder / FILE).unlink()
    assert project.locked(f"{url} --hash=sha256:{sha256}\n").origins == found.origins
    code, messages = messages_of(project, f"remote @ {url}#sha256={'1' * 64}\n")
    assert code == 6
    assert "requirements.txt:1: http://127.0.0.1" in messages
    assert "checksum mismatch" in messages


RELEASED = "flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"


def test_a_wheel_of_a_release_page_has_the_name_in_its_metadata(project: Workspace) -> None:
    """Only its file name states torch's build; METADATA does not. pip refuses this difference."""
    own, data = wheel_bytes(
        "flash-attn", "2.8.3", requires=["torch", "attrs"], tag="cp311-cp311-linux_x86_64"
    )
    project.server.files["page", "flash-attn", RELEASED] = data
    sha256 = hashlib.sha256(data).hexdigest()
    url = f"{project.server.origin}/files/page/{RELEASED.replace('+', '%2B')}"
    found = project.locked(f"flash-attn @ {url}#sha256={sha256}\n")

    (wheel,) = [wheel for wheel in found.wheels if wheel.name == "flash-attn"]
    assert (wheel.version, wheel.filename, wheel.sha256) == ("2.8.3", own, sha256)
    assert (found.requirements, versions(found)["attrs"]) == (("flash-attn==2.8.3",), "1.0")
    assert found.origins == (Origin(name="flash-attn", url=url),)
    assert project.lock("--check")[0] == 0
    assert project.locked(f"flash-attn @ {url}#sha256={sha256}\n") == found
    sent = [byte_range for _, path, byte_range in project.server.requests if "/page/" in path]
    assert sent.count("") == 1  # the download

    (project.folder / FILE).unlink()
    (project.folder / "wheels").mkdir()
    (project.folder / "wheels" / RELEASED).write_bytes(data)
    by_path = project.locked(f"./wheels/{RELEASED}\n")
    assert by_path.wheels == found.wheels
    assert by_path.origins == (Origin(name="flash-attn", path=f"wheels/{RELEASED}"),)


def test_in_a_folder_such_a_name_is_refused(project: Workspace) -> None:
    """Otherwise wheels for two torch releases in the folder would have the same version."""
    (project.folder / "wheels").mkdir()
    data = wheel_bytes("flash-attn", "2.8.3", tag="cp311-cp311-linux_x86_64")[1]
    (project.folder / "wheels" / RELEASED).write_bytes(data)
    settings(project)
    code, messages = messages_of(project, "flash-attn\n")
    why = (
        "the file name does not match METADATA (flash-attn 2.8.3): rename the file, or require it by its path"
    )
    assert (code, f"wheels/{RELEASED}: {why}" in messages) == (2, True)


def test_a_local_version_that_metadata_have_stays(project: Workspace) -> None:
    put(project, "ops", "1.0+cu126")
    found = project.locked("./wheels/ops-1.0+cu126-py3-none-any.whl\n")
    assert [(wheel.version, wheel.filename) for wheel in found.wheels] == [
        ("1.0+cu126", "ops-1.0+cu126-py3-none-any.whl")
    ]


def test_a_hash_is_kept_only_once_the_file_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may change twice within the granularity of its modification time."""
    store, path = Store(tmp_path / "cache"), tmp_path / "own.whl"
    path.write_bytes(b"one")
    expected = hashlib.sha256(b"one").hexdigest(), 3
    assert own_wheels.digest_of(path, store) == expected
    assert not list(store.records("own-wheels"))
    later = time.time() + 10
    monkeypatch.setattr(own_wheels.time, "time", lambda: later)
    assert own_wheels.digest_of(path, store) == expected
    ((key, record),) = store.records("own-wheels")
    store.put_record("own-wheels", key, record | {"sha256": "0" * 64})
    assert own_wheels.digest_of(path, store) == ("0" * 64, 3)
    path.write_bytes(b"two")
    assert own_wheels.digest_of(path, store) == (hashlib.sha256(b"two").hexdigest(), 3)
