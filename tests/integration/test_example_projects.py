"""examples/projects: each is locked and built as its files say, with small packages and a small image."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.layers import tree_of_layer
from tests.projects import Bench, bench
from tests.servers.index_server import IndexServer, wheel_bytes
from tests.unit.test_project_lock import OLD, PROJECTS, Workspace, versions
from torchkiln.model.project import Origin
from torchkiln.projects.file import load_project
from torchkiln.projects.settings import read_settings
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

pytestmark = pytest.mark.proof  # `make test` leaves these out, because other tests cover the same code
EXAMPLES = ROOT / "examples" / "projects"
PROGRAM = b"\x7fELF" + bytes(range(256)) * 40
FLASH = "flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
MAMBA = "micromamba-2.9.0-py3-none-manylinux_2_17_x86_64.whl"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A locked cell, and an index with small packages of the names that the examples require."""
    with IndexServer() as server:
        packages = PROJECTS | {
            ("accelerate", "1.0"): ("torch", "safetensors"),
            ("einops", "0.8"): (),
            ("safetensors", "0.5"): (),
            ("transformers", "5.0"): ("numpy", "safetensors"),
        }
        for (name, version), requires in packages.items():
            server.add("default", name, version, requires=requires, date=OLD)
        found = Workspace(server, tmp_path_factory.mktemp("examples"))
        assert found.run("lock", "--as-of", "2026-11-25")[0] == 0
        yield found


def copied(cell: Workspace, tmp_path: Path, name: str, **texts: tuple[str, str]) -> Workspace:
    """A copy of an example, with texts replaced in its files, as the project of *cell*."""
    cell.folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, cell.folder, ignore=shutil.ignore_patterns("wheels"))
    for file, (old, new) in texts.items():
        path = next(path for path in cell.folder.iterdir() if path.stem == file)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    return cell


def with_program(cell: Workspace, tmp_path: Path, data: bytes = PROGRAM) -> Workspace:
    """The example conda. Its wheel.py has made a wheel of *data*, an executable in place of micromamba."""
    (sha256,) = re.findall(r'SHA256 = "([0-9a-f]{64})"', (EXAMPLES / "conda/wheel.py").read_text())
    project = copied(cell, tmp_path, "conda", wheel=(sha256, hashlib.sha256(PROGRAM).hexdigest()))
    (tmp_path / "micromamba-linux-64").write_bytes(data)
    return project


def make_wheel(project: Workspace) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "wheel.py", "../micromamba-linux-64"]
    return subprocess.run(words, cwd=project.folder, capture_output=True, text=True, check=False)


def test_each_has_a_test_here_and_is_in_the_readme() -> None:
    names = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert names == ["conda", "flash-attn", "transformers"]
    text = (EXAMPLES / "README.md").read_text()
    assert re.findall(r"\]\((\w[\w-]*)\)", text) == ["transformers", "flash-attn", "conda"]


def test_transformers(cell: Workspace, tmp_path: Path) -> None:
    project = copied(cell, tmp_path, "transformers")
    assert project.lock()[:2] == (0, "transformers\n")
    found = load_project(project.folder)
    assert found is not None
    assert versions(found) == {"accelerate": "1.0", "safetensors": "0.5", "transformers": "5.0"}
    assert (found.removed, found.origins) == ((), ())
    settings = read_settings(project.folder)
    assert (project.folder / settings.test[-1]).is_file()
    assert dict(settings.env) == {"HF_HOME": "/workspace/huggingface"}


def test_flash_attn(cell: Workspace, tmp_path: Path) -> None:
    """A lock needs the wheel whose SHA-256 is in requirements.txt. A missing or other wheel is an error."""
    project = copied(cell, tmp_path, "flash-attn")
    code, _, messages = project.lock()
    assert (code, f"./wheels/{FLASH}" in messages or f"wheels/{FLASH}: No such file" in messages) == (2, True)

    own, data = wheel_bytes(
        "flash-attn", "2.8.3", requires=["torch", "einops"], tag="cp311-cp311-linux_x86_64"
    )
    (project.folder / "wheels").mkdir()
    (project.folder / "wheels" / FLASH).write_bytes(data)
    code, _, messages = project.lock()
    assert (code, "checksum mismatch" in messages) == (6, True)

    requirements = project.folder / "requirements.txt"
    requirements.write_text(
        re.sub("sha256:[0-9a-f]{64}", f"sha256:{hashlib.sha256(data).hexdigest()}", requirements.read_text())
    )
    assert project.lock()[:2] == (0, "flash-attn\n")
    found = load_project(project.folder)
    assert found is not None
    assert versions(found) == {"einops": "0.8", "flash-attn": "2.8.3"}
    assert {wheel.filename for wheel in found.wheels} == {own, "einops-0.8-py3-none-any.whl"}
    assert found.origins == (Origin(name="flash-attn", path=f"wheels/{FLASH}"),)


def test_conda(cell: Workspace, tmp_path: Path) -> None:
    project = with_program(cell, tmp_path)
    assert make_wheel(project).returncode == 0
    first = (project.folder / "wheels" / MAMBA).read_bytes()
    assert make_wheel(project).returncode == 0
    assert (project.folder / "wheels" / MAMBA).read_bytes() == first

    assert project.lock()[:2] == (0, "conda\n")
    found = load_project(project.folder)
    assert found is not None
    assert versions(found) == {"micromamba": "2.9.0"}
    assert found.origins == (Origin(name="micromamba", path=f"wheels/{MAMBA}"),)


def test_another_program_than_micromamba_is_refused(cell: Workspace, tmp_path: Path) -> None:
    project = with_program(cell, tmp_path, PROGRAM + b"more")
    made = make_wheel(project)
    assert (made.returncode, "checksum mismatch" in made.stderr) == (1, True)
    assert not (project.folder / "wheels").exists()


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    return bench(tmp_path / "image")


def test_conda_is_a_program_of_the_image(cell: Workspace, small: Bench, tmp_path: Path) -> None:
    """micromamba is an executable on PATH; `conda` and other names start it, too."""
    project = with_program(cell, tmp_path)
    assert make_wheel(project).returncode == 0
    shutil.copy(project.folder / "torchkiln.toml", small.project)
    wheel = project.folder / "wheels" / MAMBA
    small.index.files[wheel.name] = wheel.read_bytes()
    built = small.build(small.lock(wheel, requirements=["micromamba==2.9.0"])).built.image

    layer = next(layer for layer in built.layers if layer.title == "micromamba 2.9.0")
    tree = tree_of_layer(Store(small.folder / "cache").blob(layer.blob.digest).read_bytes())
    program = tree["opt/venv/bin/micromamba"]
    assert (program.data, program.mode) == (PROGRAM, 0o755)
    for name in ("conda", "mamba"):
        script = tree[f"opt/venv/bin/{name}"]
        assert (script.data, script.mode) == (b'#!/bin/sh\nexec /opt/venv/bin/micromamba "$@"\n', 0o755)
