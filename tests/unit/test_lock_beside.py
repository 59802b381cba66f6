"""`lock --with`: onto the plain lock, by the real resolver, against a local index and a release page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.servers.index_server import IndexServer, wheel_bytes
from torchkiln.cli.lock import lock as lock_command
from torchkiln.errors import KilnError
from torchkiln.lock.lock import load_locked, save
from torchkiln.model.cell import Source
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedCell
from torchkiln.project.file import load_project
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
OLD, LATER = "2026-06-01T00:00:00Z", "2026-11-21T00:00:00Z"
# As on the project's release page: the file name contains the torch version, the metadata do not.
FLASH = "flash_attn-2.8.3+cu12torch2.7cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
MATRIX = """\
torch: ["2.6.0", "2.7.1"]
cuda: ["12.1"]
flavors: [runtime]
os:
  debian12: {{python: "3.11"}}
packages: [numpy, pip]
repository: pytorch-cuda
components:
  aside: {{suffix: aside, requires: [jinja]}}
  transformers: {{suffix: tf, requires: [transformers]}}
  zeta: {{suffix: zeta, requires: [tokenizers, zeta]}}
  nothing: {{suffix: nothing, requires: [jinja, "filelock>=1"]}}
  bad: {{suffix: bad, requires: [wants-newer-numpy]}}
  flash-attn:
    suffix: flash
    requires: [einops]
    wheels:
      - {{torch: "2.7", cuda: "12", file: "{file}", sha256: {flash}}}
  conda:
    suffix: conda
    program: {{name: micromamba, version: "2.9.0", file: micromamba-linux-64, sha256: {conda}}}
"""


class Workspace:
    """An index, a release page, and the folder of images with the plain cell's lock."""

    def __init__(self, server: IndexServer, root: Path) -> None:
        self.server, self.images, self.root = server, root / "images", root
        self.environ: dict[str, str | None] = {
            "UV_DEFAULT_INDEX": server.url("default"),
            "UV_CACHE_DIR": str(root / "uv"),
            "UV_HTTP_RETRIES": "0",
            "TORCHKILN_CACHE": str(root / "cache"),
            "TORCHKILN_INDEX_PYTORCH": None,
            "TORCHKILN_INDEX_FLASH_ATTN": f"{server.origin}/files/flash",
            "TORCHKILN_INDEX_MICROMAMBA": f"{server.origin}/files/conda",
            "PIP_CONFIG_FILE": "/dev/null",
        }
        base = self.images / "base-debian12" / "base.json"
        base.parent.mkdir(parents=True)
        base.write_bytes((ROOT / "images" / "base-debian12" / "base.json").read_bytes())
        flash = wheel_bytes("flash-attn", "2.8.3", requires=["torch", "einops", "ninja; extra == 'dev'"])[1]
        program = b"\x7fELF" + bytes(range(256)) * 40
        server.files["flash", "flash-attn", FLASH] = flash
        server.files["conda", "micromamba", "micromamba-linux-64"] = program
        self.matrix = root / "matrix.yaml"
        self.matrix.write_text(
            MATRIX.format(
                file=FLASH,
                flash=hashlib.sha256(flash).hexdigest(),
                conda=hashlib.sha256(program).hexdigest(),
            )
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout, and the messages on stderr."""
        cell = ("--torch", "2.7", "--cuda", "12.1", "--matrix", str(self.matrix))
        result = CliRunner(env=self.environ).invoke(
            lock_command, [*cell, *arguments, "--images", str(self.images)], catch_exceptions=True
        )
        error = result.exception
        if isinstance(error, KilnError):
            return error.exit_code, result.stdout, f"{result.stderr}{error.message}\n{error.hint}"
        assert error is None, error
        return 0, result.stdout, result.stderr

    def locked(self, *suffixes: str) -> LockedCell:
        return load_locked(self.images, "-".join((TAG, *suffixes)))


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with IndexServer() as server:
        projects: dict[str, Sequence[str]] = {
            "numpy": (),
            "pip": (),
            "filelock": (),
            "jinja": (),
            "einops": (),
            "tokenizers": ("filelock",),
            "transformers": ("numpy", "tokenizers", "torch>=2"),
            "zeta": ("transformers>=0.5",),
            "wants-newer-numpy": ("numpy>=2",),
        }
        for name, requires in projects.items():
            server.add("default", name, "1.0", requires=requires, date=OLD)
        server.add("default", "torch", "2.7.1", requires=["filelock"], date=OLD)
        server.add("default", "torchvision", "0.22.1", requires=["torch==2.7.1", "numpy"], date=OLD)
        server.add("default", "torchaudio", "2.7.1", requires=["torch==2.7.1", "jinja"], date=OLD)
        server.add("default", "numpy", "2.0", date=LATER)
        server.add("default", "transformers", "2.0", requires=["numpy", "torch"], date=LATER)
        found = Workspace(server, tmp_path)
        assert found.run("--as-of", "2026-11-01")[:2] == (0, f"{TAG}\n")
        yield found


def added(cell: LockedCell) -> dict[str, tuple[str, ...]]:
    return {component.name: component.wheels for component in cell.components}


def test_the_plain_lock_is_kept_and_new_packages_are_listed(workspace: Workspace) -> None:
    """Its wheels, its day and its base; numpy and transformers have newer versions since."""
    assert workspace.run("--with", "transformers")[:2] == (0, f"{TAG}-tf\n")
    plain, found = workspace.locked(), workspace.locked("tf")

    assert added(found) == {"transformers": ("tokenizers", "transformers")}
    assert set(found.wheels) - set(plain.wheels) == {
        wheel for wheel in found.wheels if wheel.name in ("tokenizers", "transformers")
    }
    assert set(plain.wheels) < set(found.wheels)
    assert (found.as_of, found.epoch, found.base) == (plain.as_of, plain.epoch, plain.base)
    assert {wheel.version for wheel in found.wheels if wheel.name == "transformers"} == {"1.0"}
    assert b"127.0.0.1" not in (workspace.images / f"{TAG}-tf" / "lock.json").read_bytes()


def test_a_shared_dependency_belongs_to_the_first_component(workspace: Workspace) -> None:
    workspace.run("--with", "transformers")
    workspace.run("--with", "zeta,transformers")
    both = workspace.locked("tf", "zeta")

    assert added(both) == {"transformers": ("tokenizers", "transformers"), "zeta": ("zeta",)}
    assert set(workspace.locked("tf").wheels) < set(both.wheels)
    workspace.run("--with", "zeta")
    assert added(workspace.locked("zeta")) == {"zeta": ("tokenizers", "transformers", "zeta")}


def test_a_second_lock_is_identical_and_an_upgrade_changes_only_the_component(
    workspace: Workspace,
) -> None:
    workspace.run("--with", "transformers")
    first = (workspace.images / f"{TAG}-tf" / "lock.json").read_bytes()
    assert "unchanged" in workspace.run("--with", "transformers")[2]
    assert (workspace.images / f"{TAG}-tf" / "lock.json").read_bytes() == first

    messages = workspace.run("--with", "transformers", "--upgrade", "transformers", "--as-of", "2026-11-22")[
        2
    ]
    versions = {wheel.name: wheel.version for wheel in workspace.locked("tf").wheels}
    assert "transformers 1.0 → 2.0" in messages
    assert (versions["transformers"], versions["numpy"]) == ("2.0", "1.0")
    assert workspace.locked("tf").as_of == "2026-11-22"
    assert "unchanged" in workspace.run("--with", "transformers")[2]


def test_a_conflict_with_the_plain_image_is_refused_and_both_are_named(workspace: Workspace) -> None:
    """numpy is locked as 1.0; a component that requires the later 2.0 does not fit the image."""
    code, out, messages = workspace.run("--with", "bad", "--as-of", "2026-11-22")
    assert (code, out) == (4, "")
    for word in (
        "bad conflicts with the locked packages of",
        TAG,
        "wants-newer-numpy",
        "numpy==1.0",
        "components: bad",
    ):
        assert word in messages
    assert not (workspace.images / f"{TAG}-bad").exists()


def test_a_component_that_adds_nothing_makes_no_image(workspace: Workspace) -> None:
    code, out, messages = workspace.run("--with", "nothing")
    assert (code, out) == (2, "")
    assert f"--with nothing: adds nothing: {TAG} has all its packages already" in messages
    assert not (workspace.images / f"{TAG}-nothing").exists()


def test_a_changed_plain_lock_makes_the_lock_stale(workspace: Workspace) -> None:
    workspace.run("--with", "transformers")
    assert workspace.run("--with", "transformers", "--check")[0] == 0
    workspace.run("--upgrade", "numpy", "--as-of", "2026-11-22")
    code, _, messages = workspace.run("--with", "transformers", "--check")
    assert (code, f"{TAG} has other numpy" in messages) == (5, True)
    assert "numpy 1.0 → 2.0" in workspace.run("--with", "transformers")[2]
    assert workspace.run("--with", "transformers", "--check")[0] == 0
    assert workspace.locked("tf").as_of == "2026-11-22"


def test_a_missing_or_stale_plain_lock_is_reported_with_a_hint(workspace: Workspace) -> None:
    workspace.matrix.write_text(workspace.matrix.read_text().replace("[numpy, pip]", "[numpy, pip, einops]"))
    code, _, messages = workspace.run("--with", "transformers")
    assert (code, "first run: torchkiln lock --torch 2.7.1 --cuda 12.1" in messages) == (5, True)
    (workspace.images / TAG / "lock.json").unlink()
    code, _, messages = workspace.run("--with", "transformers")
    assert (code, "not locked yet" in messages) == (5, True)
    assert messages.endswith("run: torchkiln lock --torch 2.7.1 --cuda 12.1")


def test_a_missing_lock_of_a_named_cell_is_reported(workspace: Workspace) -> None:
    code, _, messages = workspace.run("--with", "flash-attn,conda", "--check")
    assert (code, "not locked yet" in messages) == (5, True)
    assert messages.endswith("run: torchkiln lock --torch 2.7.1 --cuda 12.1 --with conda,flash-attn")


def recorded_layer(title: str) -> ImageLayer:
    blob = Blob(digest=Digest("sha256:" + "1" * 64), diff_id=Digest("sha256:" + "2" * 64), size=1, unpacked=2)
    return ImageLayer(title=title, blob=blob)


def test_recorded_layers_of_the_plain_image_are_copied(workspace: Workspace) -> None:
    """Also when the same packages are locked again; layers that were recorded with them are kept."""
    plain, own = recorded_layer("torch 2.7.1"), recorded_layer("transformers 1.0")
    workspace.run("--with", "zeta")
    save(workspace.images, replace(workspace.locked(), layers=(plain,)))
    for suffix, component in (("tf", "transformers"), ("zeta", "zeta")):
        workspace.run("--with", component)
        assert workspace.locked(suffix).layers == (plain,), component

    save(workspace.images, replace(workspace.locked("tf"), layers=(plain, own)))
    workspace.run("--with", "transformers")
    assert workspace.locked("tf").layers == (plain, own)


# --- files that no index has --------------------------------------------------------------------------


def test_a_wheel_of_a_release_page_keeps_its_own_name(workspace: Workspace) -> None:
    """Its own requirements are resolved, extras left out; the hash is the matrix's."""
    assert workspace.run("--with", "flash-attn")[:2] == (0, f"{TAG}-flash\n")
    found = workspace.locked("flash")
    (flash,) = (wheel for wheel in found.wheels if wheel.name == "flash-attn")

    assert added(found) == {"flash-attn": ("einops", "flash-attn")}
    assert (flash.version, flash.filename) == ("2.8.3", "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl")
    assert (flash.at, flash.index) == (FLASH, Source.OWN)
    text = (workspace.images / f"{TAG}-flash" / "requirements.txt").read_text()
    assert f"flash-attn==2.8.3 --hash=sha256:{flash.sha256}\n" in text
    document = json.loads((workspace.images / f"{TAG}-flash" / "lock.json").read_bytes())
    assert document["indexes"] == ["default-index", "own"]


def test_a_program_is_locked_with_its_size(workspace: Workspace) -> None:
    assert workspace.run("--with", "conda")[:2] == (0, f"{TAG}-conda\n")
    (component,) = workspace.locked("conda").components
    assert component.program is not None
    assert (component.program.size, component.wheels) == (10_244, ())
    assert Store(workspace.root / "cache").has_wheel(component.program)


def test_a_folder_as_the_source(workspace: Workspace, tmp_path: Path) -> None:
    workspace.run("--with", "conda,flash-attn")
    served = (workspace.images / f"{TAG}-conda-flash" / "lock.json").read_bytes()
    folder = tmp_path / "my files"
    folder.mkdir()
    for (_, _, name), data in workspace.server.files.items():
        if name in (FLASH, "micromamba-linux-64"):
            (folder / name).write_bytes(data)
    workspace.server.files = {
        key: data for key, data in workspace.server.files.items() if key[0] == "default"
    }
    workspace.environ |= {
        "TORCHKILN_INDEX_FLASH_ATTN": str(folder),
        "TORCHKILN_INDEX_MICROMAMBA": str(folder),
        "TORCHKILN_CACHE": str(tmp_path / "another cache"),
    }
    (workspace.images / f"{TAG}-conda-flash" / "lock.json").unlink()
    assert workspace.run("--with", "conda,flash-attn")[0] == 0
    assert (workspace.images / f"{TAG}-conda-flash" / "lock.json").read_bytes() == served


def test_a_project_goes_on_an_image_with_a_component(workspace: Workspace) -> None:
    """A wheel that is on no index is the image's, as torch is."""
    workspace.run("--with", "flash-attn")
    project = workspace.root / "trial"
    project.mkdir()
    (project / "requirements.txt").write_text("flash-attn>=2\nzeta\nnumpy\n")
    words = ("--with", "flash-attn", "--project", str(project))
    assert workspace.run(*words)[:2] == (0, "trial\n")
    found = load_project(project)
    assert found is not None
    assert [wheel.name for wheel in found.wheels] == ["transformers", "zeta"]
    assert (found.parent, found.removed) == (f"{TAG}-flash", ())

    (project / "requirements.txt").write_text("flash-attn<2\n")
    code, _, messages = workspace.run(*words)
    assert code == 2
    assert "the image has flash-attn 2.8.3, which is fixed" in messages


@pytest.mark.parametrize("component", ["flash-attn", "conda"])
@pytest.mark.parametrize("place", [None, "http://127.0.0.1:9/mirror", "{origin}/files/elsewhere", "{root}"])
def test_an_unavailable_source_is_reported_with_the_variable(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, component: str, place: str | None
) -> None:
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    variable = {"flash-attn": "TORCHKILN_INDEX_FLASH_ATTN", "conda": "TORCHKILN_INDEX_MICROMAMBA"}[component]
    workspace.environ[variable] = place and place.format(origin=workspace.server.origin, root=workspace.root)
    code, _, messages = workspace.run("--with", component)
    assert code == 4
    assert f"set {variable} to" in messages
    assert "mirror/" not in messages  # only host and file of a URL


@pytest.mark.parametrize("component", ["flash-attn", "conda"])
def test_another_file_with_that_name_is_refused_and_not_stored(workspace: Workspace, component: str) -> None:
    for key, data in [*workspace.server.files.items()]:
        if key[0] in ("flash", "conda"):
            workspace.server.files[key] = data[:-1] + bytes([data[-1] ^ 1])
    code, _, messages = workspace.run("--with", component)
    assert (code, "checksum mismatch" in messages or "invalid wheel" in messages) == (4, True)
    assert not [path for path in (workspace.root / "cache" / "wheels").rglob("*") if path.is_file()]
    assert not (workspace.images / f"{TAG}-{component}").exists()


def test_a_source_that_is_neither_folder_nor_url_is_a_settings_error(workspace: Workspace) -> None:
    workspace.environ["TORCHKILN_INDEX_MICROMAMBA"] = "/nowhere/at/all"
    code, _, messages = workspace.run("--with", "conda")
    assert (code, "TORCHKILN_INDEX_MICROMAMBA: no such folder" in messages) == (2, True)


def test_a_thin_image_with_components(workspace: Workspace) -> None:
    """Its lock is made from that of the same components for all GPUs; components are not cut."""
    code, _, error = workspace.run("--with", "transformers", "--gpus", "9.0")
    assert (code, f"{TAG}-tf/lock.json: no such file" in error) == (5, True)
    assert "torchkiln lock --torch 2.7.1 --cuda 12.1 --with transformers\n" in f"{error}\n"
    workspace.run("--with", "transformers")
    assert workspace.run("--with", "transformers", "--gpus", "H100")[:2] == (0, f"{TAG}-tf-sm90\n")
    full, thin = workspace.locked("tf"), workspace.locked("tf", "sm90")
    assert (thin.wheels, thin.components) == (full.wheels, full.components)
    assert thin.device_code
    assert thin.device_code.wheels == ("torch", "torchaudio", "torchvision")
    code, _, error = workspace.run("--check", "--with", "transformers", "--gpus", "9.0")
    assert (code, error) == (0, "lock: 1 fresh\n")

    save(workspace.images, replace(full, wheels=full.wheels[1:]))
    code, _, error = workspace.run("--check", "--with", "transformers", "--gpus", "9.0")
    assert (code, f"{TAG}-tf has other {full.wheels[0].name}" in error) == (5, True)


def test_thin_locks_follow_their_full_lock_in_one_run(workspace: Workspace) -> None:
    """`lock --all --upgrade` locks the full cell first, then those of the matrix's `gpus`."""
    workspace.matrix.write_text(workspace.matrix.read_text() + 'gpus: ["9.0", "8.0"]\n')
    options = ("--all", "--upgrade", "numpy", "--as-of", "2026-11-22")
    tags = [TAG, f"{TAG}-sm90", f"{TAG}-sm80"]
    words = [*options, "--images", str(workspace.images), "--matrix", str(workspace.matrix)]
    result = CliRunner(env=workspace.environ).invoke(lock_command, words)
    assert [tag for tag in result.stdout.split() if tag.startswith("2.7.1")] == tags
    versions = {
        next(wheel.version for wheel in load_locked(workspace.images, tag).wheels if wheel.name == "numpy")
        for tag in tags
    }
    assert versions == {"2.0"}
    assert workspace.run("--gpus", "9.0", "--upgrade", "numpy")[0] == 2
