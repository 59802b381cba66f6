"""`lock --with`: onto the plain lock, by the real resolver, against a local index and a release page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.standin.index_server import IndexServer, wheel_bytes
from torchkiln.cli.lock import lock as lock_command
from torchkiln.errors import KilnError
from torchkiln.lock.lock import load_locked, save
from torchkiln.model.cell import Source
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob, ImageLayer
from torchkiln.model.lock import LockedCell
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
OLD, LATER = "2026-06-01T00:00:00Z", "2026-11-21T00:00:00Z"
# As on the project's release page: the file tells the torch that it is for, the metadata inside do not.
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


class House:
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
        """Exit code, stdout, and what a user reads on stderr."""
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
def house(tmp_path: Path) -> Iterator[House]:
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
        found = House(server, tmp_path)
        assert found.run("--as-of", "2026-11-01")[:2] == (0, f"{TAG}\n")
        yield found


def added(cell: LockedCell) -> dict[str, tuple[str, ...]]:
    return {component.name: component.wheels for component in cell.components}


def test_the_plain_lock_is_kept_and_what_is_new_is_named(house: House) -> None:
    """Its wheels, its day and its base; numpy and transformers have newer versions since."""
    assert house.run("--with", "transformers")[:2] == (0, f"{TAG}-tf\n")
    plain, found = house.locked(), house.locked("tf")

    assert added(found) == {"transformers": ("tokenizers", "transformers")}
    assert set(found.wheels) - set(plain.wheels) == {
        one for one in found.wheels if one.name in ("tokenizers", "transformers")
    }
    assert set(plain.wheels) < set(found.wheels)
    assert (found.as_of, found.epoch, found.base) == (plain.as_of, plain.epoch, plain.base)
    assert {one.version for one in found.wheels if one.name == "transformers"} == {"1.0"}
    assert b"127.0.0.1" not in (house.images / f"{TAG}-tf" / "lock.json").read_bytes()


def test_what_two_need_belongs_to_the_first_and_the_first_is_the_same_alone(house: House) -> None:
    house.run("--with", "transformers")
    house.run("--with", "zeta,transformers")
    both = house.locked("tf", "zeta")

    assert added(both) == {"transformers": ("tokenizers", "transformers"), "zeta": ("zeta",)}
    assert set(house.locked("tf").wheels) < set(both.wheels)
    house.run("--with", "zeta")
    assert added(house.locked("zeta")) == {"zeta": ("tokenizers", "transformers", "zeta")}


def test_locked_twice_gives_the_same_bytes_and_an_upgrade_moves_the_component_alone(house: House) -> None:
    house.run("--with", "transformers")
    first = (house.images / f"{TAG}-tf" / "lock.json").read_bytes()
    assert "unchanged" in house.run("--with", "transformers")[2]
    assert (house.images / f"{TAG}-tf" / "lock.json").read_bytes() == first

    told = house.run("--with", "transformers", "--upgrade", "transformers", "--as-of", "2026-11-22")[2]
    versions = {one.name: one.version for one in house.locked("tf").wheels}
    assert "transformers 1.0 → 2.0" in told
    assert (versions["transformers"], versions["numpy"]) == ("2.0", "1.0")
    assert house.locked("tf").as_of == "2026-11-22"
    assert "unchanged" in house.run("--with", "transformers")[2]


def test_what_contradicts_the_plain_image_is_refused_and_both_are_named(house: House) -> None:
    """numpy is locked as 1.0; 2.0 came later, and what wants it does not go on that image."""
    code, out, told = house.run("--with", "bad", "--as-of", "2026-11-22")
    assert (code, out) == (4, "")
    for word in (
        "bad conflicts with the locked packages of",
        TAG,
        "wants-newer-numpy",
        "numpy==1.0",
        "components: bad",
    ):
        assert word in told
    assert not (house.images / f"{TAG}-bad").exists()


def test_what_adds_nothing_makes_no_image(house: House) -> None:
    code, out, told = house.run("--with", "nothing")
    assert (code, out) == (2, "")
    assert f"--with nothing: adds nothing: {TAG} has all its packages already" in told
    assert not (house.images / f"{TAG}-nothing").exists()


def test_a_plain_lock_that_moved_makes_it_stale(house: House) -> None:
    house.run("--with", "transformers")
    assert house.run("--with", "transformers", "--check")[0] == 0
    house.run("--upgrade", "numpy", "--as-of", "2026-11-22")
    code, _, told = house.run("--with", "transformers", "--check")
    assert (code, f"{TAG} has other numpy" in told) == (5, True)
    assert "numpy 1.0 → 2.0" in house.run("--with", "transformers")[2]
    assert house.run("--with", "transformers", "--check")[0] == 0
    assert house.locked("tf").as_of == "2026-11-22"


def test_without_a_plain_lock_or_with_one_of_another_matrix_it_says_what_to_do(house: House) -> None:
    house.matrix.write_text(house.matrix.read_text().replace("[numpy, pip]", "[numpy, pip, einops]"))
    code, _, told = house.run("--with", "transformers")
    assert (code, "first run: torchkiln lock --torch 2.7.1 --cuda 12.1" in told) == (5, True)
    (house.images / TAG / "lock.json").unlink()
    code, _, told = house.run("--with", "transformers")
    assert (code, "not locked yet" in told) == (5, True)
    assert told.endswith("run: torchkiln lock --torch 2.7.1 --cuda 12.1")


def test_one_that_is_asked_about_by_name_and_is_not_there_is_told(house: House) -> None:
    code, _, told = house.run("--with", "flash-attn,conda", "--check")
    assert (code, "not locked yet" in told) == (5, True)
    assert told.endswith("run: torchkiln lock --torch 2.7.1 --cuda 12.1 --with conda,flash-attn")


def test_recorded_layers_of_the_plain_image_come_along(house: House) -> None:
    layer = ImageLayer(
        title="torch 2.7.1",
        blob=Blob(
            digest=Digest("sha256:" + "1" * 64), diff_id=Digest("sha256:" + "2" * 64), size=1, unpacked=2
        ),
    )
    save(house.images, replace(house.locked(), layers=(layer,)))
    house.run("--with", "transformers")
    assert house.locked("tf").layers == (layer,)


# --- files that no index has --------------------------------------------------------------------------


def test_a_wheel_of_a_release_page_goes_by_the_name_that_it_gives_itself(house: House) -> None:
    """Its own requirements are resolved, extras left out; the hash is the matrix's."""
    assert house.run("--with", "flash-attn")[:2] == (0, f"{TAG}-flash\n")
    found = house.locked("flash")
    (flash,) = (one for one in found.wheels if one.name == "flash-attn")

    assert added(found) == {"flash-attn": ("einops", "flash-attn")}
    assert (flash.version, flash.filename) == ("2.8.3", "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl")
    assert (flash.at, flash.index) == (FLASH, Source.OWN)
    text = (house.images / f"{TAG}-flash" / "requirements.txt").read_text()
    assert f"flash-attn==2.8.3 --hash=sha256:{flash.sha256}\n" in text
    document = json.loads((house.images / f"{TAG}-flash" / "lock.json").read_bytes())
    assert document["indexes"] == ["default-index", "own"]


def test_a_program_is_locked_with_its_size(house: House) -> None:
    assert house.run("--with", "conda")[:2] == (0, f"{TAG}-conda\n")
    (component,) = house.locked("conda").components
    assert component.program is not None
    assert (component.program.size, component.wheels) == (10_244, ())
    assert Store(house.root / "cache").has_wheel(component.program)


def test_a_folder_will_do(house: House, tmp_path: Path) -> None:
    house.run("--with", "conda,flash-attn")
    served = (house.images / f"{TAG}-conda-flash" / "lock.json").read_bytes()
    folder = tmp_path / "my files"
    folder.mkdir()
    for (_, _, name), data in house.server.files.items():
        if name in (FLASH, "micromamba-linux-64"):
            (folder / name).write_bytes(data)
    house.server.files = {key: data for key, data in house.server.files.items() if key[0] == "default"}
    house.environ |= {
        "TORCHKILN_INDEX_FLASH_ATTN": str(folder),
        "TORCHKILN_INDEX_MICROMAMBA": str(folder),
        "TORCHKILN_CACHE": str(tmp_path / "another cache"),
    }
    (house.images / f"{TAG}-conda-flash" / "lock.json").unlink()
    assert house.run("--with", "conda,flash-attn")[0] == 0
    assert (house.images / f"{TAG}-conda-flash" / "lock.json").read_bytes() == served


@pytest.mark.parametrize("component", ["flash-attn", "conda"])
@pytest.mark.parametrize("place", [None, "http://127.0.0.1:9/mirror", "{origin}/files/elsewhere", "{root}"])
def test_where_it_cannot_be_had_the_variable_is_named(
    house: House, monkeypatch: pytest.MonkeyPatch, component: str, place: str | None
) -> None:
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    variable = {"flash-attn": "TORCHKILN_INDEX_FLASH_ATTN", "conda": "TORCHKILN_INDEX_MICROMAMBA"}[component]
    house.environ[variable] = place and place.format(origin=house.server.origin, root=house.root)
    code, _, told = house.run("--with", component)
    assert code == 4
    assert f"set {variable} to" in told
    assert "mirror/" not in told  # no more of an address than its host and the file


@pytest.mark.parametrize("component", ["flash-attn", "conda"])
def test_another_file_under_that_name_is_refused_and_not_kept(house: House, component: str) -> None:
    for key, data in [*house.server.files.items()]:
        if key[0] in ("flash", "conda"):
            house.server.files[key] = data[:-1] + bytes([data[-1] ^ 1])
    code, _, told = house.run("--with", component)
    assert (code, "checksum mismatch" in told or "invalid wheel" in told) == (4, True)
    assert not [path for path in (house.root / "cache" / "wheels").rglob("*") if path.is_file()]
    assert not (house.images / f"{TAG}-{component}").exists()


def test_a_place_that_is_neither_folder_nor_address_is_a_fault_of_the_settings(house: House) -> None:
    house.environ["TORCHKILN_INDEX_MICROMAMBA"] = "/nowhere/at/all"
    code, _, told = house.run("--with", "conda")
    assert (code, "TORCHKILN_INDEX_MICROMAMBA: no such folder" in told) == (2, True)
