"""torchkiln installed from its wheel: its files, the images' digests, a project in an empty folder."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.checkouts import git
from tests.installed import Installed, installed
from tests.needs import needs_namespaces
from tests.planned import FACTS
from tests.planned import MATRIX as GRID
from tests.programs import run_program
from tests.servers.index_server import IndexServer
from tests.servers.registry_server import RegistryServer
from tests.stored import committed_base
from torchkiln.base import artefact
from torchkiln.engine.known import predicted_digest
from torchkiln.locks.lock import load_locked
from torchkiln.matrix.matrix import read
from torchkiln.plan.load import plan_locked
from torchkiln.smoke.suite import load_suite
from torchkiln.store.store import Store, cache_root
from torchkiln.util.places import IMAGES, MATRIX, ROOT

__all__ = ["installed"]

pytestmark = pytest.mark.proof  # a minute of pip

OLD = "2026-06-01T00:00:00Z"
CELL = ("--torch", "2.7", "--cuda", "12.6")
TAG = "2.7.1-cuda12.6-cudnn9-runtime"
#: Prints the digest of each lock's image and the digest of the suite.
DIGESTS = """
import json
from pathlib import Path
from torchkiln.engine.known import predicted_digest
from torchkiln.locks.lock import load_locked
from torchkiln.matrix import facts, matrix
from torchkiln.plan.load import plan_locked
from torchkiln.smoke.suite import load_suite
known = facts.load()
grid = matrix.read(Path("matrix.yaml"), known)
images = Path("images")
tags = sorted(path.parent.name for path in images.glob("*/lock.json"))
found = {tag: predicted_digest(plan_locked(load_locked(images, tag), grid, known)) for tag in tags}
print(json.dumps([found, load_suite().digest]))
"""


def entries(wheel: Path, folder: str) -> dict[str, int]:
    """The files of *folder* in the wheel, by path, with their executable bits."""
    prefix = f"torchkiln/shipped/{folder}/"
    with zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if info.filename.startswith(prefix)]
    return {info.filename.removeprefix(prefix): info.external_attr >> 16 & 0o111 for info in infos}


@pytest.mark.parametrize(
    "folder", ["rootfs", "templates", "smoke_tests", "images/base-debian12", "images/base-debian13"]
)
def test_the_wheel_has_the_tracked_files(installed: Installed, folder: str) -> None:
    """The wheel has exactly the files that git tracks, with the same executable bits."""
    listed = run_program(["git", "ls-files", "-z", "--stage", folder], cwd=ROOT, check=True).stdout
    tracked = dict(line.split("\t")[::-1] for line in listed.split("\0") if line)
    expected = {
        path.removeprefix(f"{folder}/"): 0o111 if mode.startswith("100755") else 0
        for path, mode in tracked.items()
    }

    assert entries(installed.wheel, folder) == expected


def test_the_wheel_has_every_base_of_the_checkout(installed: Installed) -> None:
    bases = {path.name for path in IMAGES.glob("base-*")}

    assert {path.name for path in (installed.site / "torchkiln/shipped/images").iterdir()} == bases


@pytest.fixture(name="copied")
def a_copy(tmp_path: Path) -> Path:
    """The checkout's matrix and locks in an empty folder."""
    shutil.copyfile(MATRIX, tmp_path / "matrix.yaml")
    shutil.copytree(IMAGES, tmp_path / "images")
    return tmp_path


def test_digests_of_images_and_suite_are_those_of_the_checkout(installed: Installed, copied: Path) -> None:
    """The digests are equal, although pip has added .pyc files to rootfs/ and to the suite."""
    shipped = installed.site / "torchkiln/shipped"
    compiled = {path.relative_to(shipped).parts[0] for path in shipped.rglob("*.pyc")}
    grid = read(MATRIX, FACTS)
    tags = sorted(path.parent.name for path in IMAGES.glob("*/lock.json"))
    here = {tag: predicted_digest(plan_locked(load_locked(IMAGES, tag), grid, FACTS)) for tag in tags}

    assert compiled == {"rootfs", "smoke_tests"}
    assert any(here.values())
    assert json.loads(installed.python(DIGESTS, folder=copied)) == [here, load_suite().digest]


def test_digests_do_not_depend_on_the_umask_of_the_installation(
    installed: Installed, copied: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    private = Installed(folder=tmp_path_factory.mktemp("private") / "venv", wheel=installed.wheel)
    shutil.copytree(installed.folder, private.folder, symlinks=True)
    for path in (private.site / "torchkiln").rglob("*"):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)
    code = f"import sys; sys.path.insert(0, {str(private.site)!r})\n{DIGESTS}"

    assert installed.python(code, folder=copied) == installed.python(DIGESTS, folder=copied)


def test_a_bundle_has_the_package_without_the_files_of_the_wheel(
    installed: Installed, tmp_path: Path
) -> None:
    """The bundle has the run's suite, and needs neither rootfs/ nor bases."""
    code = (
        "from torchkiln.smoke.bundle.contents import _files\n"
        "from torchkiln.util.places import PACKAGE\n"
        "print(*sorted(path.relative_to(PACKAGE).as_posix() for path in _files(PACKAGE)), sep='\\n')"
    )
    tracked = run_program(["git", "ls-files", "torchkiln"], cwd=ROOT, check=True).stdout.split()

    found = installed.python(code, folder=tmp_path).split()
    assert {f"torchkiln/{path}" for path in found} == set(tracked)


# --- the hooks of pre-commit -----------------------------------------------------------------------


HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}


def run_hook(installed: Installed, name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a hook as pre-commit does: its entry, in the top folder of the repository, without files."""
    hook = HOOKS[name]
    assert hook["language"] == "python"
    assert hook["pass_filenames"] is False
    return installed.run(*shlex.split(hook["entry"]), folder=folder)


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_a_hook_passes_on_fresh_files(installed: Installed, copied: Path, name: str) -> None:
    done = run_hook(installed, name, copied)

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_hook_of_locks_fails_on_a_changed_matrix(installed: Installed, copied: Path) -> None:
    matrix = copied / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("  - tqdm\n", ""))
    done = run_hook(installed, "torchkiln-lock", copied)

    assert done.returncode == 5
    assert "2.7.1-cuda12.1-cudnn9-runtime: locked with other" in done.stderr


def test_the_hook_of_dockerfiles_fails_on_a_changed_dockerfile(installed: Installed, copied: Path) -> None:
    (copied / "images/2.7.1-cuda12.1-cudnn9-runtime/Dockerfile").write_text("FROM scratch\n")
    done = run_hook(installed, "torchkiln-render", copied)

    assert done.returncode == 5
    assert "2.7.1-cuda12.1-cudnn9-runtime/Dockerfile: not up to date" in done.stderr


# --- a project ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Project:
    """A folder with what `torchkiln init` wrote, and the installation and the index that it uses."""

    folder: Path
    installed: Installed
    environ: Mapping[str, str]

    def kiln(self, *words: str) -> str:
        """The output of `torchkiln WORDS...`, which must succeed."""
        done = self.installed.kiln(*words, folder=self.folder, **self.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", name="index")
def an_index() -> Iterator[IndexServer]:
    """Small packages with the names of a new project's matrix."""
    with IndexServer() as server:
        for name in (*GRID.packages, "filelock"):
            server.add("default", name, "1.0", date=OLD, payload=b"where = __file__\n")
        server.add("default", "torch", "2.7.1", requires=["filelock"], date=OLD)
        server.add("default", "torchvision", "0.22.1", requires=["torch==2.7.1", "numpy"], date=OLD)
        server.add("default", "torchaudio", "2.7.1", requires=["torch==2.7.1"], date=OLD)
        yield server


@pytest.fixture(scope="module", name="built")
def a_project(installed: Installed, index: IndexServer, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A new project with a built image. The base comes from the user's cache, and may be a rebuilt base."""
    folder, cache = tmp_path_factory.mktemp("project"), Store(tmp_path_factory.mktemp("cache"))
    user_cache = Store(cache_root())
    base, _ = artefact.ensure(committed_base(), user_cache)
    put = os.link if user_cache.root.stat().st_dev == cache.root.stat().st_dev else shutil.copyfile
    cache.blob(base.digest).parent.mkdir(parents=True)
    put(user_cache.blob(base.digest), cache.blob(base.digest))
    environ = {
        "TORCHKILN_CACHE": str(cache.root),
        "UV_DEFAULT_INDEX": index.url("default"),
        "UV_HTTP_RETRIES": "0",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    project = Project(folder, installed, environ)
    assert project.kiln("init", *CELL) == "matrix.yaml\n"
    if base != committed_base():
        artefact.write_lock(folder / "images", base)
    (folder / "rootfs/etc/team").mkdir(parents=True)
    (folder / "rootfs/etc/team/welcome").write_text("#!/bin/sh\necho welcome\n")
    (folder / "rootfs/etc/team/welcome").chmod(0o755)
    shutil.copyfile(ROOT / "rootfs/etc/bash.bashrc", folder / "rootfs/etc/bash.bashrc")
    with (folder / "rootfs/etc/bash.bashrc").open("a") as file:
        file.write("# ours\n")
    site = files_below(installed.site / "torchkiln")
    assert project.kiln("lock") == f"{TAG}\n"
    project.kiln("build", "--quiet")
    project.kiln("render")
    assert files_below(installed.site / "torchkiln") == site
    return project


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_a_project_in_a_folder_without_a_matrix(
    installed: Installed, index: IndexServer, tmp_path: Path
) -> None:
    """The first recipe of docs/projects.md: torchkiln's own matrix; the locks are in the current folder."""
    folder, site = tmp_path / "trial", files_below(installed.site / "torchkiln")
    folder.mkdir()
    (folder / "requirements.txt").write_text("filelock\n")
    environ = {
        "TORCHKILN_CACHE": str(tmp_path / "cache"),
        "UV_DEFAULT_INDEX": index.url("default"),
        "PIP_CONFIG_FILE": "/dev/null",
    }
    tag = "2.7.1-cuda12.1-cudnn9-runtime"
    for words in (("--torch", "2.7", "--cuda", "12.1"), (), ("--check",)):
        done = installed.kiln("project", "lock", ".", *words, folder=folder, **environ)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ("" if "--check" in words else "trial\n")
    assert {path.name for path in folder.iterdir()} == {"requirements.txt", "torchkiln.lock.json", "images"}
    assert (folder / "images" / tag / "lock.json").is_file()
    added = installed.kiln("matrix", "add", "torch", "newest", "--write", folder=folder, **environ)
    assert (added.returncode, "matrix.yaml: No such file" in added.stderr) == (2, True)
    assert files_below(installed.site / "torchkiln") == site


def test_a_project_is_in_its_own_folder(built: Project) -> None:
    """The folder contains only the project and the layout; the base's lock is beside the other locks."""
    assert {path.name for path in built.folder.iterdir()} == {
        *("matrix.yaml", "matrix.schema.json", "images", "dist", "rootfs")
    }
    assert {path.name for path in (built.folder / "images").iterdir()} == {
        *(TAG, "base-debian12", "docker-bake.json")
    }
    assert {path.name for path in (built.folder / "images/base-debian12").iterdir()} >= {"base.json"}


def test_the_locks_and_dockerfiles_of_a_project_are_fresh(built: Project) -> None:
    assert [built.kiln(*shlex.split(hook["entry"])[1:]) for hook in HOOKS.values()] == ["", ""]


@needs_namespaces
def test_a_container_of_a_project_runs(built: Project) -> None:
    """Python has the packages; the container has the files of torchkiln's rootfs/ and of the project's."""
    code = "import torch, numpy; print(numpy.where)"
    done = built.installed.kiln("run", TAG, "--", "python", "-c", code, folder=built.folder, **built.environ)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("/opt/venv/lib/python3.11/site-packages/numpy/")
    script = "/etc/team/welcome && tail -n 1 /etc/bash.bashrc && ls /opt/torchkiln/entrypoint"
    lines = built.kiln("run", TAG, "--", "sh", "-c", script).splitlines()
    assert lines == ["welcome", "# ours", "/opt/torchkiln/entrypoint"]


def test_a_checkout_builds_the_same_image_from_the_project(built: Project) -> None:
    argv = [sys.executable, str(ROOT / "build.py"), "--output", "again", "--quiet"]
    environ = {**os.environ, **built.environ, "PYTHONPATH": str(ROOT)}
    done = run_program(argv, cwd=built.folder, env=environ)
    shutil.rmtree(built.folder / "again", ignore_errors=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout == built.kiln("build", "--quiet")


def test_the_provenance_names_the_package(built: Project, tmp_path: Path) -> None:
    """It does not name the commit of a repository that contains the virtual environment."""
    for words in (
        ("init", "--quiet"),
        ("commit", "--quiet", "--allow-empty", "--message", "another project"),
    ):
        git(built.installed.folder.parent, *words)
    with RegistryServer() as server:
        to = f"{server.host}/team/pytorch"
        built.kiln("publish", TAG, "--to", to, "--override", "a test", "--quiet")
        verified = built.installed.kiln("verify", f"{to}:{TAG}", folder=built.folder, **built.environ)
    assert ", source torchkiln 0.1.0, by " in verified.stderr
