"""`torchkiln cache show` and `prune` on a small cache that real builds made."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from tests import company
from tests.cache_scene import Scene, made, scene
from tests.unpublished import FakeIndex
from torchkiln.cache.policy import PrunePolicy
from torchkiln.cache.prune import forget_root, prune
from torchkiln.cache.usage import CacheUsage, cache_usage
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import LayerBlob, unpacked_root
from torchkiln.oci.validate.validate import validate
from torchkiln.runtimes.rootfs import using
from torchkiln.store.store import Store

__all__ = ["made", "scene"]

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
    assert sum(item["bytes"] for item in items if item["kind"] != "layer texts") == sum(
        path.stat().st_size for kind in ("blobs", "wheels", "bytecode") for path in scene.files(kind)
    )
    kinds = {item["kind"]: item for item in items}
    assert (kinds["layers"]["shared"], kinds["layers"]["goes_with"]) == (True, "")
    assert kinds["wheels"]["to_make_again"] == [f"t in {scene.layout}"]
    assert kinds["wheels"]["goes_with"] == "prune --all"
    titles = {item["title"] for item in items if item["kind"] == "layers"}
    assert "torch 1.0" in titles
    assert "torch-1.0-py3-none-any.whl: needed to make" in scene.run("show", "--each").stdout


def test_a_layout_that_cannot_be_read_needs_all_it_has(scene: Scene) -> None:
    """Nothing goes, and why is told."""
    (scene.layout / "index.json").write_text("{")
    done = scene.run("prune", "--all")

    assert "cannot be read, what it may need is kept" in done.stderr
    shutil.rmtree(scene.layout / "oci-layout", ignore_errors=True)
    assert len(scene.files("blobs")) == 5


# --- prune ------------------------------------------------------------------------------------------


def test_prune_leaves_what_a_tag_or_a_lock_has_use_for(scene: Scene) -> None:
    """After a build there is nothing to take; with --all wheels go, and the image is whole."""
    assert scene.told("prune")["gone"] == []
    assert scene.told("prune", "--all", "--dry-run")["freed_bytes"] > 0
    assert len(scene.files("wheels")) == 5

    told = scene.told("prune", "--all")
    assert {one["kind"] for one in told["gone"]} == {"wheels", "byte-code", "layer texts"}
    assert (scene.files("wheels"), list((scene.cache / "wheels").iterdir())) == ([], [])
    assert validate(scene.layout) == ()
    index = FakeIndex([])
    company.build(scene.wheels, scene.cache, scene.layout, index)
    assert index.fetched == []


def test_prune_and_another_form_of_layers(scene: Scene) -> None:
    """The tag needs its own blobs; the plain ones only make them again, and go with --all."""
    index = FakeIndex(scene.wheels)
    built = company.build(scene.wheels, scene.cache, scene.layout, index, ref="t", layer_format="zstd").image
    former = scene.cache / "records" / "joined" / "a.json"  # of an earlier version
    former.parent.mkdir()
    former.write_text("{}")
    for path in scene.cache.rglob("*"):
        os.utime(path, (0, 0))
    plain = len(scene.files("blobs")) - len(built.layers)

    assert plain == len(built.layers)
    assert not {"layers", "other blobs", "bases"} & {one["kind"] for one in scene.told("prune")["gone"]}
    assert not former.exists()
    scene.told("prune", "--all")
    assert {path.name for path in scene.files("blobs")} == {layer.blob.digest[7:] for layer in built.layers}
    assert len(scene.files("records/zstd")) == len(built.layers)
    assert validate(scene.layout) == ()


def test_prune_when_the_layout_is_gone(scene: Scene) -> None:
    """Layers go with their records; what a lock names stays, its base even with --all."""
    scene.lock()
    scene.forget()

    kinds = {one["kind"] for one in scene.told("prune")["gone"]}
    assert kinds == {"layers", "other blobs", "leftovers", "layer texts"}
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
        assert "a running build may need it" in done.stderr
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

    def look() -> CacheUsage:
        thread.start()
        assert not begun.wait(0.5)
        return cache_usage(store, (), scene.folder / "images")

    prune(store, look, PrunePolicy(everything=True))
    thread.join()
    assert begun.is_set()


def test_prune_and_unpacked_images(scene: Scene) -> None:
    """Gone after 7 days without use, never while a command runs inside."""
    image = open_layout(scene.layout).image("t")
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    store = Store(scene.cache)
    root = unpacked_root(image.manifest, layers, store)
    marker = scene.cache / "records" / "roots" / f"{root.name}.json"
    assert "just used" in scene.run("prune", "--all").stderr
    week = time.time() - 8 * 86400
    os.utime(marker, (week, week))

    with using(root):
        assert "a command is running in it" in scene.run("prune", "--all").stderr
    unpacked_root(image.manifest, layers, store)
    assert scene.told("prune")["gone"] == []  # it was used just now
    os.utime(marker, (week, week))
    assert [one["kind"] for one in scene.told("prune")["gone"]] == ["unpacked images"]
    assert (root.exists(), marker.exists(), scene.files("tmp")) == (False, False, [])


def test_an_unpacked_image_is_forgotten_unless_a_command_runs_in_it(scene: Scene) -> None:
    image = open_layout(scene.layout).image("t")
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    store = Store(scene.cache)
    root = unpacked_root(image.manifest, layers, store)
    with using(root):
        forget_root(store, image.manifest)
        assert root.is_dir()
    forget_root(store, image.manifest)
    assert (root.exists(), scene.files("records/roots"), scene.files("tmp")) == (False, [], [])
    forget_root(store, image.manifest)


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
    assert "the cache still has 52" in done.stderr
    assert scene.files("wheels") == []


# --- what a user can do wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("prune", "--older-than", "soon"), "--older-than soon: not a valid duration"),
        (("prune", "--max-size", "big"), "--max-size big: not a valid size"),
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
        assert "there is no cache in" in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_cache_that_is_none(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file, and a folder that cannot be written: what it is, and what to do."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "file"))
    for name in ("show", "prune", "verify"):
        done = scene.run(name)
        assert isinstance(done.exception, ConfigError)
        assert "is not a folder" in done.exception.message
    monkeypatch.setenv("TORCHKILN_CACHE", "/proc/self/fdinfo")
    assert scene.run("show").exception is None
    done = scene.run("prune")
    assert isinstance(done.exception, BuildFailed)
    assert "cannot write to the cache /proc/self/fdinfo" in done.exception.message
