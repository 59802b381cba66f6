"""A project on an image with a standalone Python: its layers, a run, and the evidence for the gate."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.needs import needs_namespaces
from tests.planned import FACTS
from tests.programs import run_program
from tests.sdists import files_of, sdist
from tests.standalone_scene import OWN, SITE, Images, images_in, made_of, real_build, small_build, started
from tests.stored import put_file
from tests.unpublished import FakeIndex, locked_wheel
from tests.wheels import make_wheel
from torchkiln.engine.build import BuildOptions
from torchkiln.engine.environment import Environment
from torchkiln.errors import BuildFailed
from torchkiln.locks.file import lock_digest
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.progress import Silent
from torchkiln.model.project import ProjectLock
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import LayerBlob, unpack
from torchkiln.projects.asked import ProjectNeeds
from torchkiln.projects.build import BuiltProject, ProjectSource, build_project
from torchkiln.projects.code import read_code
from torchkiln.projects.gate.read import ProjectImage, read_evidence
from torchkiln.projects.smoke.account import account_of
from torchkiln.projects.sources import sdist as building
from torchkiln.projects.sources.sdist import SandboxedBuilder
from torchkiln.projects.sources.sdists import SourceCode
from torchkiln.projects.sources.workshop import Limits
from torchkiln.runtimes.command import Exited, Program

pytestmark = [needs_namespaces, pytest.mark.proof]
NAME = "my-project"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Images of a cell with both Pythons, and of a project that adds `einops` and replaces `six`."""

    images: Images
    python: str  # "3.12"
    built: BuiltProject

    @property
    def layers(self) -> list[Blob]:
        """The layers above those of the parent image."""
        own = self.built.built.image.layers
        return [layer.blob for layer in own[len(self.images.other.layers) :]]

    def paths(self, blob: Blob) -> set[str]:
        with tarfile.open(self.images.store.blob(blob.digest)) as tar:
            return set(tar.getnames())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("scene")
    for name in ("python", "images", "project"):
        (folder / name).mkdir()
    build = real_build(folder / "python")
    images = images_in(folder / "images", build, made_of(build, folder / "cache"))
    (folder / "project/train.py").write_text("import einops, six\nprint(einops.VALUE + six.VALUE)\n")
    wheels = [
        make_wheel(folder / "wheels", name, "2.0", {f"{name}/__init__.py": b"VALUE = 21\n"})
        for name in ("einops", "six")
    ]
    lock = ProjectLock(
        name=NAME,
        parent=tag_of(images.cell.resolution),
        parent_lock=lock_digest(images.cell),
        as_of="2026-11-25",
        inputs=Digest("sha256:" + "3" * 64),
        requirements=("einops", "six"),
        wheels=tuple(map(locked_wheel, wheels)),
        removed=("six",),
    )
    source = ProjectSource(
        cell=images.cell,
        lock=lock,
        needs=ProjectNeeds(name="p", source="requirements.txt", requirements=()),
        code=read_code(folder / "project"),
        folder=folder / "project",
    )
    index = FakeIndex([*images.wheels, *wheels])
    environment = Environment(store=images.store, fetcher=index, observer=Silent())
    with small_build():
        built = build_project(source, images.grid, FACTS, images.layout, environment, BuildOptions())
    return Scene(images=images, python=build[2], built=built)


def test_its_packages_are_in_the_folder_of_the_bases_python_with_byte_code_of_the_other(scene: Scene) -> None:
    """The parent image does not change; files of a replaced package are removed, with their byte-code."""
    below, tag = scene.images.other, scene.python.replace(".", "")
    own = scene.built.built.image.layers
    removal, packages, code = map(scene.paths, scene.layers)

    assert scene.built.parent.image.manifest == below.manifest
    assert [layer.blob for layer in own[: len(below.layers)]] == [layer.blob for layer in below.layers]
    assert f"{SITE}/einops/__pycache__/__init__.cpython-{tag}.pyc" in packages
    assert f"{SITE}/.wh.six" in removal or f"{SITE}/six/__pycache__/.wh.__init__.cpython-{tag}.pyc" in removal
    assert "app/train.py" in code
    base = OWN.replace(".", "")
    paths = removal | packages | code
    assert not [path for path in paths if f"lib/python{scene.python}" in path or f"cpython-{base}" in path]


def test_it_runs(scene: Scene, tmp_path: Path) -> None:
    store, root = scene.images.store, tmp_path / "root"
    blobs = [layer.blob for layer in scene.built.built.image.layers]
    unpack([LayerBlob(path=store.blob(blob.digest), diff_id=blob.diff_id) for blob in blobs], root)
    code = (
        "import sys; sys.path.insert(0, '/app'); import train, einops, six, torch;"
        "print(sys.version_info[:2], torch.answer(), einops.__cached__, six.__file__)"
    )
    ran = run_program(started(root, code))
    site, tag = f"/opt/venv/lib/python{scene.python}/site-packages", scene.python.replace(".", "")

    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "42",
        f"({scene.python.replace('.', ', ')}) 42 {site}/einops/__pycache__/__init__.cpython-{tag}.pyc"
        f" {site}/six/__init__.py",
    ]


def test_the_gate_finds_no_fault(scene: Scene) -> None:
    images, layout = scene.images, open_layout(scene.images.layout)
    image, below = layout.image(NAME), layout.image(images.other.manifest)
    project = ProjectImage(image=image, account=account_of(image), below=below, locked=images.cell)
    found = read_evidence(project, images.store)

    assert found.layer_faults == ()
    assert found.build_faults == ()
    assert found.added == ("einops 2.0", "six 2.0")
    assert found.replaced == ("six",)


def test_sdists_are_built_by_the_other_python_on_base_and_its_layer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the standalone Python is the first in PATH. The build does not need its archive."""
    ran: list[tuple[Path, Program]] = []

    def run(root: Path, program: Program, limits: Limits) -> Exited:
        ran.append((root, program))
        return Exited(code=1, stdout=b"", stderr=b"stopped here", timed_out=False)

    monkeypatch.setattr(building, "run_enclosed", run)
    store, (filename, data) = scene.images.store, sdist(files_of())
    archive = put_file("tool", "1.0", filename, data, store)
    with pytest.raises(BuildFailed, match="stopped here"):
        SandboxedBuilder(store=store).build(SourceCode(archive=archive), scene.images.cell, lambda _: ())

    ((root, program),) = ran
    assert program.argv[0] == f"/opt/python/bin/python{scene.python}"
    assert program.env["PATH"].split(":")[:2] == ["/opt/python/bin", "/usr/local/bin"]
    assert (root / program.argv[0].lstrip("/")).is_file()
    assert (root / f"usr/bin/python{OWN}").is_file()
