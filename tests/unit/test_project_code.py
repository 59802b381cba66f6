"""Which files of a project's folder are copied into the image, and which are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchkiln.errors import ConfigError
from torchkiln.projects import code
from torchkiln.projects.code import ProjectCode, read_code
from torchkiln.util.git import open_revision

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n"


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *settings, *arguments], cwd=folder, env=environ, check=True, capture_output=True)


def write(folder: Path, **files: str) -> None:
    """Write *files*, named by their paths; `__` is written for a slash."""
    for name, text in files.items():
        put(folder, name.replace("__", "/") + ".py", text)


def put(folder: Path, path: str, text: str = "") -> Path:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def paths(found: ProjectCode) -> list[str]:
    return [file.path for file in found.files]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "proj").mkdir()
    write(tmp_path / "proj", train="print(1)\n", lib__part="x = 1\n")
    return tmp_path / "proj"


@pytest.fixture
def checkout(folder: Path) -> Path:
    put(folder, ".gitignore", "data/\n*.log\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_in_a_checkout_what_git_does_not_ignore(checkout: Path) -> None:
    """Tracked and new files are copied; ignored files, deleted files and bytecode are not."""
    put(checkout, "data/huge.bin", "0" * 100)
    put(checkout, "run.log")
    put(checkout, "lib/__pycache__/part.cpython-311.pyc")
    put(checkout, "new file.txt", "n")
    (checkout / "lib/part.py").unlink()
    assert paths(read_code(checkout)) == [".gitignore", "new file.txt", "train.py"]


def test_without_git_the_files_that_are_code(folder: Path) -> None:
    for path in (
        ".venv/bin/python",
        "env/pyvenv.cfg",
        "dist/x.whl",
        "a.egg-info/PKG-INFO",
        "node_modules/m.js",
    ):
        put(folder, path)
    put(folder, "cache/CACHEDIR.TAG")
    assert paths(read_code(folder)) == ["lib/part.py", "train.py"]


def test_the_same_files_whatever_modes_and_times_they_have(folder: Path) -> None:
    first = read_code(folder)
    (folder / "train.py").chmod(0o600)
    os.utime(folder / "train.py", (1, 1))
    second = read_code(folder)
    (folder / "train.py").chmod(0o700)
    third = read_code(folder)
    assert first == second
    assert [file.mode for file in third.files] == [0o644, 0o755]


def test_no_program_of_the_repository_runs(checkout: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    hook = put(tmp_path, "hook", f"#!/bin/sh\ntouch {started}\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "core.sshCommand", "core.pager", "alias.ls-files", "diff.external"):
        git(checkout, "config", name, str(hook))
    read_code(checkout)
    assert not started.exists()
    subprocess.run(["git", "status"], cwd=checkout, check=False, capture_output=True)
    assert started.exists(), "the hook would have run"


def test_a_partial_clone_fetches_nothing(checkout: Path, tmp_path: Path) -> None:
    """To fetch an object that is missing, git would start the program that the repository names."""
    started = tmp_path / "started"
    settings = {
        "extensions.partialClone": "origin",
        "protocol.ext.allow": "always",
        "remote.origin.promisor": 1,
    }
    for name, value in {**settings, "remote.origin.url": f"ext::sh -c touch% {started}"}.items():
        git(checkout, "config", name, str(value))
    shutil.rmtree(checkout / ".git/objects")
    (checkout / ".git/objects").mkdir()
    with pytest.raises(ConfigError):
        open_revision("HEAD", checkout).read("train.py")
    assert not started.exists()
    subprocess.run(["git", "show", "HEAD:train.py"], cwd=checkout, check=False, capture_output=True)
    assert started.exists(), "git alone starts it"


def test_a_bare_repository_among_the_files_is_not_used(checkout: Path) -> None:
    """A clone of the stranger's repository has it, with its settings and its history."""
    git(checkout, "init", "--quiet", "--bare", "lib")
    with pytest.raises(ConfigError, match="bare repository"):
        read_code(checkout / "lib")
    with pytest.raises(ConfigError, match="bare repository"):
        open_revision("HEAD", checkout / "lib")


@pytest.mark.parametrize("repository", [False, True])
def test_folders_that_are_nested_too_deep(folder: Path, repository: bool) -> None:
    for count in range(0, 120, 1):
        put(folder, "a/" * count + "x.py")
        if repository:
            git(folder / ("a/" * count), "init", "--quiet")
    with pytest.raises(ConfigError, match="nested deeper than 100 levels"):
        read_code(folder)


def test_repositories_inside(checkout: Path) -> None:
    """The files of a submodule or a clone are chosen by the rules of that repository."""
    inner = checkout / "third/party"
    inner.mkdir(parents=True)
    put(inner, "code.py")
    put(inner, ".gitignore", "out\n")
    put(inner, "out/x")
    git(inner, "init", "--quiet")
    git(inner, "add", "--all")
    found = [path for path in paths(read_code(checkout)) if path.startswith("third/")]
    assert found == ["third/party/.gitignore", "third/party/code.py"]


def test_variables_of_a_hook_do_not_name_another_repository(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "--quiet")
    put(checkout, "kept.log")
    git(checkout, "add", "--force", "kept.log")  # although .gitignore has *.log
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert "kept.log" in paths(read_code(checkout))


def test_links_inside_are_kept(folder: Path) -> None:
    (folder / "again.py").symlink_to("train.py")
    (folder / "lib/up").symlink_to("../lib")
    found = read_code(folder)
    assert [(link.path, link.target) for link in found.links] == [
        ("again.py", "train.py"),
        ("lib/up", "../lib"),
    ]


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "lib/../../outside", "/PROJ/train.py"])
def test_links_that_leave_the_folder_are_refused(folder: Path, target: str) -> None:
    (folder.parent / "outside").write_text("secret")
    (folder / "link").symlink_to(target.replace("/PROJ", str(folder)))
    with pytest.raises(ConfigError, match=r"link: a symbolic link to .*, which is outside of the folder"):
        read_code(folder)


def test_a_tracked_file_behind_a_new_link_is_refused(checkout: Path) -> None:
    outside = put(checkout.parent, "outside/part.py", "secret")
    (checkout / "lib/part.py").unlink()
    (checkout / "lib").rmdir()
    (checkout / "lib").symlink_to(outside.parent)
    with pytest.raises(ConfigError, match="its folder lib is a symbolic link"):
        read_code(checkout)


@pytest.mark.parametrize("name", [".wh.train.py", "lib/.wh..wh..opq", "a\nb.py", "a\x1b[31m.py"])
def test_names_that_mean_something_else_are_refused(folder: Path, name: str) -> None:
    put(folder, name)
    with pytest.raises(ConfigError) as caught:
        read_code(folder)
    assert "\x1b" not in caught.value.message
    assert "deletes files of an image" in caught.value.message or "control characters" in caught.value.message


def test_pipes_are_refused_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ConfigError, match="pipe: not a regular file or a symbolic link"):
        read_code(folder)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".env", "TOKEN=1"),
        ("conf/.env.production", "TOKEN=1"),
        (".netrc", ""),
        (".pypirc", ""),
        ("id_rsa", ""),
        ("keys/server.pem", KEY),
        ("server.key", "-----BEGIN PRIVATE KEY-----"),
    ],
)
def test_what_looks_like_a_secret_is_refused(checkout: Path, path: str, text: str) -> None:
    """An untracked file is refused. A tracked file only gives a warning."""
    put(checkout, path, text)
    with pytest.raises(ConfigError, match=rf"{path}: looks like a secret") as caught:
        read_code(checkout)
    git(checkout, "add", "--force", path)
    found = read_code(checkout)
    assert ".gitignore" in caught.value.hint
    assert found.notes == (f"{path} looks like a secret; it is in the image because git tracks it",)


@pytest.mark.parametrize("path", [".env.example", "certificate.pem", "environment.py", "id_rsa.pub"])
def test_a_file_that_only_resembles_a_secret_is_copied(folder: Path, path: str) -> None:
    put(folder, path, "-----BEGIN CERTIFICATE-----")
    assert path in paths(read_code(folder))


def test_too_much_names_the_largest(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_BYTES", 1000)
    put(checkout, "model.ckpt", "0" * 2000)
    with pytest.raises(ConfigError, match=r"the largest: model.ckpt \(2.0 kB\), ") as caught:
        read_code(checkout)
    assert ".gitignore" in caught.value.hint


def test_too_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MOST_FILES", 1)
    with pytest.raises(ConfigError, match=r"in 2 files; at most 67.1 MB in 1 files"):
        read_code(folder)


def test_a_layout_in_the_folder_is_no_code(checkout: Path) -> None:
    put(checkout, "images/oci-layout", "{}")
    put(checkout, "images/blobs/sha256/aa", "x")
    put(checkout, "images2/x.py")
    assert [path for path in paths(read_code(checkout)) if path.startswith("images")] == ["images2/x.py"]


def test_a_folder_that_git_ignores_is_reported(checkout: Path) -> None:
    put(checkout, "data/train.py")
    with pytest.raises(ConfigError, match="no files to copy; git ignores all"):
        read_code(checkout / "data")


def test_a_repository_that_git_refuses_is_reported(checkout: Path) -> None:
    (checkout / ".git/config").write_text("[broken\n")
    with pytest.raises(ConfigError, match=r"git cannot list its files: .*config"):
        read_code(checkout)
