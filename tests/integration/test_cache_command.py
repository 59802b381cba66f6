"""`torchkiln cache show` and `prune` on a small cache that real builds made."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests import cells, company
from tests.cache_scene import Scene, made, scene
from tests.needs import tool
from tests.unpublished import FakeIndex
from torchkiln.cache.prune import PrunePolicy, prune
from torchkiln.cache.usage import CacheUsage, bytes_held, cache_usage
from torchkiln.cli.shared.cache_bound import VARIABLE, excess
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import LayerBlob, forget_root, unpacked_root
from torchkiln.oci.validate.validate import validate
from torchkiln.runtimes.image_root import layers_of
from torchkiln.runtimes.rootfs import using
from torchkiln.store.file_locks import hold
from torchkiln.store.store import Store

__all__ = ["made", "scene"]

# --- show -------------------------------------------------------------------------------------------


def test_show_lists_kind_size_use_and_what_prune_frees(scene: Scene) -> None:
    """The JSON output lists each item, with the tags that need it."""
    text = scene.run("show").stdout.splitlines()
    items = scene.run_json("show")["items"]

    assert [line.split()[0] for line in text[1:5]] == ["blobs", "wheels", "bytecode", "records"]
    assert text[1].split()[-4:] == ["0", "B", "0", "B"] != text[2].split()[-4:]
    assert "is shared with layouts by hard links" in text[-1]
    assert sum(item["bytes"] for item in items if item["kind"] != "records") == sum(
        path.stat().st_size for kind in ("blobs", "wheels", "bytecode") for path in scene.files(kind)
    )
    for item in items:
        tags = [f"t in {scene.layout}"] if item["kind"] == "blobs" else []
        assert (item["needed_by"], item["shared"], item["needed"]) == (tags, bool(tags), bool(tags))


def test_all_blobs_of_an_unreadable_layout_are_kept(scene: Scene) -> None:
    """`prune` removes no blob, and shows the reason."""
    (scene.layout / "index.json").write_text("{")
    done = scene.run("prune", "--max-size", "0")

    assert "; all of its blobs are kept" in done.stderr
    shutil.rmtree(scene.layout / "oci-layout", ignore_errors=True)
    assert len(scene.files("blobs")) == 5


def test_all_blobs_are_kept_if_a_lock_is_unreadable(scene: Scene) -> None:
    """One of the blobs may be the base of that lock."""
    shutil.rmtree(scene.layout)
    lock = scene.layout.parent / "images" / "2.7.1" / "lock.json"
    lock.parent.mkdir(parents=True)
    lock.write_text("{")
    before = scene.files("blobs")
    done = scene.run("prune", "--max-size", "0", "--images", str(lock.parent.parent))

    assert "lock.json: " in done.stderr
    assert "; all blobs are kept" in done.stderr
    assert scene.files("blobs") == before != []
    lock.unlink()
    scene.run("prune", "--max-size", "0", "--images", str(lock.parent.parent))
    assert len(scene.files("blobs")) < len(before)


def test_aliases_are_names_in_the_layout(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Aliases do not change the image's digest; skopeo finds each alias; the cache counts the image once."""
    alone = company.build(scene.wheels, scene.cache, scene.layout, FakeIndex([]), ref="t").image.manifest
    planned = cells.planned_cell
    monkeypatch.setattr(
        cells, "planned_cell", lambda wheels: replace(planned(wheels), aliases=("v2.7", "latest"))
    )
    built = company.build(scene.wheels, scene.cache, scene.layout, FakeIndex([])).image
    names = open_layout(scene.layout).refs()

    assert built.manifest == alone
    assert built.ref == built.tag
    assert set(names) == {"t", built.tag, "v2.7", "latest"}
    assert set(names.values()) == {alone}
    assert validate(scene.layout) == ()
    entries = cache_usage(Store(scene.cache), (), scene.layout.parent / "images").entries
    assert {entry.users for entry in entries if entry.users} == {(f"{built.tag} in {scene.layout}",)}
    tool("skopeo")
    for name in names:
        source = f"oci:{scene.layout}:{name}"
        shown = subprocess.run(["skopeo", "inspect", "--raw", source], capture_output=True, check=True)
        assert f"sha256:{hashlib.sha256(shown.stdout).hexdigest()}" == alone


# --- prune ------------------------------------------------------------------------------------------


def test_prune_keeps_what_a_tag_or_a_lock_needs(scene: Scene) -> None:
    """After a build, `prune` removes nothing. `--max-size 0` removes the wheels; the image stays complete."""
    assert scene.run_json("prune")["gone"] == []
    assert scene.run_json("prune", "--max-size", "0", "--dry-run")["freed_bytes"] > 0
    assert len(scene.files("wheels")) == 5

    result = scene.run_json("prune", "--max-size", "0")
    assert {entry["kind"] for entry in result["gone"]} == {"wheels", "bytecode", "records"}
    assert (scene.files("wheels"), list((scene.cache / "wheels").iterdir())) == ([], [])
    assert validate(scene.layout) == ()
    index = FakeIndex([])
    company.build(scene.wheels, scene.cache, scene.layout, index)
    assert index.fetched == []


def test_prune_and_another_form_of_layers(scene: Scene) -> None:
    """The tag needs the zstd blobs. `--max-size 0` removes the gzip blobs they were made of."""
    index = FakeIndex(scene.wheels)
    built = company.build(scene.wheels, scene.cache, scene.layout, index, ref="t", layer_format="zstd").image
    former = scene.cache / "records" / "joined" / "a.json"  # written by an earlier version of torchkiln
    former.parent.mkdir()
    former.write_text("{}")
    for path in scene.cache.rglob("*"):
        os.utime(path, (0, 0))
    plain = len(scene.files("blobs")) - len(built.layers)

    assert plain == len(built.layers)
    assert "blobs" not in {entry["kind"] for entry in scene.run_json("prune")["gone"]}
    assert not former.exists()
    scene.run_json("prune", "--max-size", "0")
    assert {path.name for path in scene.files("blobs")} == {layer.blob.digest[7:] for layer in built.layers}
    assert len(scene.files("records/zstd")) == len(built.layers)
    assert validate(scene.layout) == ()


def test_prune_without_the_layout(scene: Scene) -> None:
    """`prune` removes layers and their records. A lock keeps its files; with --max-size 0, only its base."""
    scene.lock()
    scene.forget()

    kinds = {entry["kind"] for entry in scene.run_json("prune")["gone"]}
    assert kinds == {"blobs", "leftovers", "records"}
    assert (len(scene.files("blobs")), len(scene.files("wheels")), len(scene.files("bytecode"))) == (1, 5, 5)
    assert [path.parent.name for path in scene.files("records")] == []
    scene.run_json("prune", "--max-size", "0")
    assert (len(scene.files("blobs")), scene.files("wheels")) == (1, [])
    assert scene.files("tmp") == []
    scene.build()
    assert validate(scene.layout) == ()


def test_prune_without_lock_and_layout_removes_everything(scene: Scene) -> None:
    """`prune` removes all files even without an option, because nothing needs them."""
    scene.forget()
    scene.run_json("prune")
    assert [scene.files(kind) for kind in ("blobs", "wheels", "bytecode", "records")] == [[], [], [], []]


def test_prune_keeps_what_a_running_build_needs(scene: Scene) -> None:
    """`prune` keeps all files of a running build, and names this build."""
    scene.forget()
    wheel = scene.files("wheels")[0]
    wheel.rename(f"{wheel}.part")  # as if the build were downloading it
    with Store(scene.cache).claim("builds that-tag", company.needs(scene.wheels)):
        done = scene.run("prune", "--max-size", "0")
        assert f"process {os.getpid()} (since " in done.stderr
        assert "), which builds that-tag" in done.stderr
        assert "a running build may need it" in done.stderr
        assert (len(scene.files("blobs")), len(scene.files("wheels"))) == (5, 5)
    scene.run_json("prune", "--max-size", "0")
    assert scene.files("blobs") == []


def test_prune_keeps_everything_while_a_process_claims_unknown_files(scene: Scene) -> None:
    """The list of files is missing in a claim that was written on a full disk."""
    scene.forget()
    with Store(scene.cache).claim("builds", ()), hold(scene.cache / "claims/1-0", "builds", needs=None):
        gone = scene.run_json("prune", "--max-size", "0")["gone"]
    assert [entry["path"] for entry in gone if not entry["path"].startswith("locks/")] == []


def test_no_build_starts_between_listing_and_deletion(scene: Scene) -> None:
    """A build that starts in between waits, because it could use files that are about to be deleted."""
    store, begun = Store(scene.cache), threading.Event()

    def build() -> None:
        with store.claim("builds", ()):
            begun.set()

    thread = threading.Thread(target=build)

    def look() -> CacheUsage:
        thread.start()
        assert not begun.wait(0.5)
        return cache_usage(store, (), scene.folder / "images")

    prune(store, look, PrunePolicy(max_size=0))
    thread.join()
    assert begun.is_set()


def test_prune_and_unpacked_images(scene: Scene) -> None:
    """Unpacked images are removed after 7 days without use, but never while a command runs in them."""
    image = open_layout(scene.layout).image("t")
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    store = Store(scene.cache)
    root = unpacked_root(image.manifest, layers, store)
    marker = scene.cache / "records" / "roots" / f"{root.name}.json"
    assert "just used" in scene.run("prune", "--max-size", "0").stderr
    week = time.time() - 8 * 86400
    os.utime(marker, (week, week))

    with using(root):
        assert "a command is running in it" in scene.run("prune", "--max-size", "0").stderr
    unpacked_root(image.manifest, layers, store)
    assert scene.run_json("prune")["gone"] == []  # the image has just been used
    os.utime(marker, (week, week))
    assert [entry["kind"] for entry in scene.run_json("prune")["gone"]] == ["rootfs"]
    assert (root.exists(), marker.exists(), scene.files("tmp")) == (False, False, [])


def test_an_unpacked_image_is_removed_unless_a_command_runs_in_it(scene: Scene) -> None:
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


def test_prune_removes_leftovers_of_interrupted_runs(scene: Scene) -> None:
    """`prune` removes partial downloads and old lock files, but no partial download that a process writes."""
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


def test_prune_to_a_size_that_is_not_reachable(scene: Scene) -> None:
    """`prune` removes all unneeded files, and lists the files that remain."""
    done = scene.run("prune", "--max-size", "1kB")
    assert done.exception is None
    assert "the cache still has 52" in done.stderr
    assert scene.files("wheels") == []


def test_a_build_says_that_the_cache_exceeds_its_bound(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is the option's or the variable's, else half of what the cache and the free space have."""
    store = Store(scene.cache)
    image = open_layout(scene.layout).image("t")
    unpacked_root(image.manifest, layers_of(image), store)
    store.put_record("roots", "0" * 64, {"bytes": 10**12})  # its folder was deleted by hand
    total = sum(item["bytes"] for item in scene.run_json("show")["items"])
    assert total <= bytes_held(store) < total + 20_000  # with locks and keys, which `show` does not list
    assert excess(store) == ""
    monkeypatch.setenv(VARIABLE, "10kB")
    command = "torchkiln cache prune --max-size 10kB"
    assert excess(store).endswith(f"more than 10.0 kB, its bound; to delete what no image needs: {command}")
    monkeypatch.setenv(VARIABLE, "1TB")
    assert excess(store) == ""
    monkeypatch.setenv(VARIABLE, "many")
    with pytest.raises(ConfigError, match="TORCHKILN_CACHE_MAX_SIZE many: not a valid size"):
        excess(store)
    monkeypatch.delenv(VARIABLE)
    free = shutil.disk_usage(scene.cache)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    assert "half of the disk space that it could have; " in excess(store)


# --- user errors -----------------------------------------------------------------------


def test_a_missing_cache_is_not_an_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command succeeds, and does not create the folder."""
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "nowhere"))
    for name in ("show", "prune", "verify"):
        done = scene.run(name)
        assert done.exception is None
        assert "no cache in" in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_an_invalid_cache_folder(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the cache is a file, or a folder without write permission, the message names it and a remedy."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "file"))
    for name in ("show", "prune", "verify"):
        done = scene.run(name)
        assert isinstance(done.exception, ConfigError)
        assert "not a directory" in done.exception.message
    monkeypatch.setenv("TORCHKILN_CACHE", "/proc/self/fdinfo")
    assert scene.run("show").exception is None
    done = scene.run("prune")
    assert isinstance(done.exception, BuildFailed)
    assert "cannot write to the cache /proc/self/fdinfo" in done.exception.message
