"""`torchkiln cache show|prune|verify` on a small cache that real builds made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests import company
from tests.cells import planned_cell, small_wheels
from tests.standin.index_server import IndexServer
from tests.unpublished import FakeIndex
from torchkiln.cache import Policy
from torchkiln.cli.cache import cache as command
from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.housekeeping import prune
from torchkiln.lockfile import to_json
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import LayerBlob, unpacked_root
from torchkiln.oci.validate import validate
from torchkiln.runtimes.rootfs import _in_use
from torchkiln.store import Store
from torchkiln.survey import Survey, remember_layout, survey


class Scene:
    """A cache, a layout `dist` built from it under the tag t, and a folder for locks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.layout = folder, folder / "cache", folder / "dist"
        self.wheels = sorted((folder / "wheels").glob("*.whl"))

    def build(self) -> str:
        built = company.build(self.wheels, self.cache, self.layout, FakeIndex(self.wheels), ref="t")
        return built.image.manifest

    def lock(self) -> None:
        place = self.folder / "images" / "small-tag" / "lock.json"
        place.parent.mkdir(parents=True)
        place.write_bytes(to_json(planned_cell(self.wheels).locked))

    def forget(self) -> None:
        """No layout any more; and all of it long ago."""
        shutil.rmtree(self.layout)
        for path in self.cache.rglob("*"):
            os.utime(path, (0, 0))

    def run(self, *args: str) -> Result:
        return CliRunner().invoke(command, [args[0], "--images", str(self.folder / "images"), *args[1:]])

    def told(self, *args: str) -> Any:
        done = self.run(*args, "--json")
        assert done.exception is None, done.exception
        return json.loads(done.stdout)

    def files(self, kind: str) -> list[Path]:
        return [path for path in sorted((self.cache / kind).rglob("*")) if path.is_file()]

    def torch(self) -> Path:
        """The torch layer's blob: the largest."""
        return max(self.files("blobs"), key=lambda path: path.stat().st_size)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once for all."""
    folder = tmp_path_factory.mktemp("made")
    small_wheels(folder / "wheels")
    Scene(folder).build()
    return folder


@pytest.fixture
def scene(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A copy, hard links as they were."""
    subprocess.run(["cp", "-a", f"{made}/.", str(tmp_path)], check=True)
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "cache"))
    scene = Scene(tmp_path)
    shutil.rmtree(scene.cache / "records" / "layouts")
    remember_layout(Store(scene.cache), scene.layout)
    return scene


def damage(path: Path) -> None:
    """One byte in place, as a bad disk or a stray write does it: every link to the file has it."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    path.chmod(0o444)


# --- show -------------------------------------------------------------------------------------------


def test_show_tells_kind_size_use_and_reason(scene: Scene) -> None:
    """What the tag needs stays; what only makes layers again goes with --all."""
    text = scene.run("show").stdout
    items = scene.told("show")["items"]

    assert [line.split("  ")[0] for line in text.splitlines()[1:6]] == [
        *("layers", "bases", "other blobs", "wheels", "byte-code")
    ]
    assert f"needed by t in {scene.layout}" in text
    assert "`cache prune` would free 0 B" in text
    assert sum(item["bytes"] for item in items) == sum(
        path.stat().st_size for kind in ("blobs", "wheels", "bytecode") for path in scene.files(kind)
    )
    kinds = {item["kind"]: item for item in items}
    assert (kinds["layers"]["shared"], kinds["layers"]["goes_with"]) == (True, "")
    assert kinds["wheels"]["to_make_again"] == [f"t in {scene.layout}"]
    assert kinds["wheels"]["goes_with"] == "prune --all"
    titles = {item["title"] for item in items if item["kind"] == "layers"}
    assert "torch 1.0" in titles
    assert "torch-1.0-py3-none-any.whl: to make" in scene.run("show", "--each").stdout


def test_a_layout_that_cannot_be_read_needs_all_it_has(scene: Scene) -> None:
    """Nothing goes, and why is told."""
    (scene.layout / "index.json").write_text("{")
    done = scene.run("prune", "--all")

    assert "cannot be read, so all that it holds is kept" in done.stderr
    shutil.rmtree(scene.layout / "oci-layout", ignore_errors=True)
    assert len(scene.files("blobs")) == 5


# --- prune ------------------------------------------------------------------------------------------


def test_prune_leaves_what_a_tag_or_a_lock_has_use_for(scene: Scene) -> None:
    """After a build there is nothing to take; with --all wheels go, and the image is whole."""
    assert scene.told("prune")["gone"] == []
    assert scene.told("prune", "--all", "--dry-run")["freed_bytes"] > 0
    assert len(scene.files("wheels")) == 5

    told = scene.told("prune", "--all")
    assert {one["kind"] for one in told["gone"]} == {"wheels", "byte-code"}
    assert (scene.files("wheels"), list((scene.cache / "wheels").iterdir())) == ([], [])
    assert validate(scene.layout) == ()
    index = FakeIndex([])
    company.build(scene.wheels, scene.cache, scene.layout, index)
    assert index.fetched == []


def test_prune_when_the_layout_is_gone(scene: Scene) -> None:
    """Layers go with their records; what a lock names stays, its base even with --all."""
    scene.lock()
    scene.forget()

    kinds = {one["kind"] for one in scene.told("prune")["gone"]}
    assert kinds == {"layers", "other blobs", "leftovers"}
    assert (len(scene.files("blobs")), len(scene.files("wheels")), len(scene.files("bytecode"))) == (1, 5, 5)
    assert [path.parent.name for path in scene.files("records")] == []
    scene.told("prune", "--all")
    assert (len(scene.files("blobs")), scene.files("wheels")) == (1, [])
    assert scene.files("tmp") == []
    scene.build()
    assert validate(scene.layout) == ()


def test_prune_without_lock_and_layout_takes_everything(scene: Scene) -> None:
    """By default: nobody has any use for it."""
    scene.forget()
    scene.told("prune")
    assert [scene.files(kind) for kind in ("blobs", "wheels", "bytecode", "records")] == [[], [], [], []]


def test_prune_leaves_what_a_running_build_needs(scene: Scene) -> None:
    """And says whose it is."""
    scene.forget()
    with Store(scene.cache).claim("builds that-tag", company.needs(scene.wheels)):
        done = scene.run("prune", "--all")
        assert f"process {os.getpid()} (since " in done.stderr
        assert "), which builds that-tag" in done.stderr
        assert "a build is running that may need it" in done.stderr
        assert (len(scene.files("blobs")), len(scene.files("wheels"))) == (5, 5)
    scene.told("prune", "--all")
    assert scene.files("blobs") == []


def test_no_build_begins_between_the_look_and_the_deletion(scene: Scene) -> None:
    """Else it would believe what is about to go."""
    store, begun = Store(scene.cache), threading.Event()

    def build() -> None:
        with store.claim("builds", ()):
            begun.set()

    thread = threading.Thread(target=build)

    def look() -> Survey:
        thread.start()
        assert not begun.wait(0.5)
        return survey(store, (), scene.folder / "images")

    prune(store, look, Policy(everything=True))
    thread.join()
    assert begun.is_set()


def test_prune_and_unpacked_images(scene: Scene) -> None:
    """Gone after 7 days without use, never while a command runs inside."""
    image = open_layout(scene.layout).image("t")
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    store = Store(scene.cache)
    root = unpacked_root(image.manifest, layers, store)
    marker = scene.cache / "records" / "roots" / f"{root.name}.json"
    assert "used a moment ago" in scene.run("prune", "--all").stderr
    week = time.time() - 8 * 86400
    os.utime(marker, (week, week))

    with _in_use(root):
        assert "a command runs in it" in scene.run("prune", "--all").stderr
    unpacked_root(image.manifest, layers, store)
    assert scene.told("prune")["gone"] == []  # it was used just now
    os.utime(marker, (week, week))
    assert [one["kind"] for one in scene.told("prune")["gone"]] == ["unpacked images"]
    assert (root.exists(), marker.exists(), scene.files("tmp")) == (False, False, [])


def test_prune_takes_what_interrupted_runs_left(scene: Scene) -> None:
    """Parts of wheels, old locks; not a part that somebody is at."""
    store = Store(scene.cache)
    parts = [scene.cache / "wheels" / (digit * 64) / "x-1-py3-none-any.whl.part" for digit in "ab"]
    for part in parts:
        part.parent.mkdir()
        part.write_text("half")
    old = scene.cache / "locks" / "layer-x"
    old.write_text("{}")
    os.utime(old, (0, 0))
    with store.lock("wheel-" + "a" * 64, "fetches x"):
        done = scene.run("prune")
    assert "which fetches x" in done.stderr
    assert [part.exists() for part in parts] == [True, False]
    assert not old.exists()


def test_prune_to_a_size_that_cannot_be_had(scene: Scene) -> None:
    """All that may goes, and what stays is told."""
    done = scene.run("prune", "--max-size", "1kB")
    assert done.exception is None
    assert "the cache is still 520." in done.stderr
    assert scene.files("wheels") == []


# --- verify -----------------------------------------------------------------------------------------


def test_verify_of_a_sound_cache(scene: Scene) -> None:
    """Every byte is read, none is wrong."""
    done = scene.run("verify")
    assert (done.exception, "no fault" in done.stdout) == (None, True)
    told = scene.told("verify")
    assert told["faults"] == []
    assert told["bytes"] == sum(
        path.stat().st_size for kind in ("blobs", "wheels", "bytecode") for path in scene.files(kind)
    )


def test_a_damaged_layer_and_the_way_back(scene: Scene) -> None:
    """Layout and store share the file: the tag is named, repair takes it out, `build` replaces both."""
    before = open_layout(scene.layout).image("t").manifest
    damage(scene.torch())
    assert len(validate(scene.layout)) > 0

    for args in ([], ["--repair"]):
        done = scene.run("verify", *args)
        assert isinstance(done.exception, VerificationFailed)
        assert done.exception.exit_code == 12
        assert done.exception.message.endswith(f"the files are the same: t in {scene.layout}")
        assert "build these tags again" in done.exception.hint
        assert "torch 1.0: its sha256 is" in done.stdout
    assert len(scene.files("blobs")) == 4
    assert scene.build() == before
    assert validate(scene.layout) == ()
    assert scene.run("verify").exception is None


def test_damage_in_a_layout_that_nobody_told_of(scene: Scene) -> None:
    """It has the same file: that is said, whoever it is."""
    shutil.rmtree(scene.cache / "records" / "layouts")
    damage(scene.torch())
    done = scene.run("verify", "--repair")
    assert isinstance(done.exception, VerificationFailed)
    assert done.exception.message.endswith("a layout that the cache does not know")


def test_a_damaged_wheel_is_fetched_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the index that the user has configured; without one it is only taken out, and that is told."""
    scene.lock()
    wheel = next(path for path in scene.files("wheels") if path.name.startswith("torch"))
    whole = wheel.read_bytes()
    damage(wheel)
    assert isinstance(scene.run("verify").exception, VerificationFailed)
    with IndexServer() as server:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", server.url("simple"))
        failed = scene.run("verify", "--repair")
        assert isinstance(failed.exception, VerificationFailed)
        assert "deleted, but not to be had again" in failed.stdout
        assert not wheel.exists()

        server.files["simple", "torch", wheel.name] = whole
        wheel.parent.mkdir(exist_ok=True)
        wheel.write_bytes(whole[:-1] + b"!")
        mended = scene.run("verify", "--repair")
    assert (mended.exception, "fetched again" in mended.stdout) == (None, True)
    assert wheel.read_bytes() == whole


def break_pack(scene: Scene) -> None:
    damage(scene.files("bytecode")[0])


def break_page(scene: Scene) -> None:
    Store(scene.cache).put_record("pages", "x", {})
    (scene.cache / "records/pages/x.json").write_text("{")


def break_record(scene: Scene) -> None:
    path = scene.files("records/layers")[0]
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "size": 1}))


def lose_blob(scene: Scene) -> None:
    scene.torch().unlink()


def break_root(scene: Scene) -> None:
    image = open_layout(scene.layout).image("t")
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    root = unpacked_root(image.manifest, layers, Store(scene.cache))
    (root / "etc/os-release").unlink()
    marker = scene.cache / "records" / "roots" / f"{root.name}.json"
    os.utime(marker, (0, 0))


@pytest.mark.parametrize(
    ("breaks", "told"),
    [
        (break_pack, "the pack does not match its own hash"),
        (break_page, "x.json: not JSON"),
        (break_record, "its record tells 1 bytes"),
        (lose_blob, "names a blob that is not there"),
        (break_root, "and it was unpacked as"),
    ],
)
def test_other_faults_are_found_and_mended(breaks: Callable[[Scene], None], told: str, scene: Scene) -> None:
    """Told with exit 12, taken out by --repair; then there is none, and the next build is right."""
    before = open_layout(scene.layout).image("t").manifest
    breaks(scene)
    found = scene.run("verify")
    assert isinstance(found.exception, VerificationFailed)
    assert told in found.stdout
    scene.run("verify", "--repair")
    assert scene.told("verify")["faults"] == []
    assert scene.build() == before
    assert validate(scene.layout) == ()


# --- what a user can do wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("prune", "--older-than", "soon"), "'soon' is no length of time"),
        (("prune", "--max-size", "big"), "'big' is no size"),
    ],
)
def test_a_slip_of_the_user(args: tuple[str, ...], says: str, scene: Scene) -> None:
    """Exit 2, and nothing was touched."""
    done = scene.run(*args)
    assert isinstance(done.exception, ConfigError)
    assert (done.exception.message, done.exception.exit_code) == (says, 2)
    assert done.exception.hint.startswith("write ")


def test_no_cache_no_trouble(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is made, either."""
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "nowhere"))
    for name in ("show", "prune", "verify"):
        done = scene.run(name)
        assert done.exception is None
        assert "there is no cache at" in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_cache_that_is_none(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file, and a folder that cannot be written: what it is, and what to do."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "file"))
    for name in ("show", "prune", "verify"):
        done = scene.run(name)
        assert isinstance(done.exception, ConfigError)
        assert "is a file, not a cache" in done.exception.message
    monkeypatch.setenv("TORCHKILN_CACHE", "/proc/self/fdinfo")
    assert scene.run("show").exception is None
    done = scene.run("prune")
    assert isinstance(done.exception, BuildFailed)
    assert "/proc/self/fdinfo cannot be written" in done.exception.message


# --- across file systems ----------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system."""
    folder = Path("/dev/shm") / f"torchkiln-{os.getpid()}"
    folder.mkdir()
    if folder.stat().st_dev == tmp_path.stat().st_dev:
        folder.rmdir()
        pytest.skip("there is but one file system")
    yield folder
    shutil.rmtree(folder)


def test_a_copy_in_a_layout_is_replaced_when_it_was_touched(scene: Scene, elsewhere: Path) -> None:
    """And is not copied again as long as it was not."""
    index = FakeIndex([])
    company.build(scene.wheels, scene.cache, elsewhere / "dist", index)
    copy = elsewhere / "dist/blobs/sha256" / scene.torch().name
    inode = copy.stat().st_ino
    company.build(scene.wheels, scene.cache, elsewhere / "dist", index)
    assert copy.stat().st_ino == inode
    damage(copy)
    company.build(scene.wheels, scene.cache, elsewhere / "dist", index)
    assert validate(elsewhere / "dist") == ()
    assert scene.run("verify").exception is None
