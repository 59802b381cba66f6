"""Folders of strangers: no link leads a writer or a reader out of them, and no pipe stops a reader."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.oci_samples import BASE, digest, tar_of
from tests.oci_samples import build as a_layout
from tests.unit.test_oci_layout import build
from torchkiln.api import Project
from torchkiln.base import artefact
from torchkiln.cli import torchkiln
from torchkiln.docker.dockerfile import load_templates
from torchkiln.errors import KilnError
from torchkiln.locks.lock import load_locked, save
from torchkiln.oci.archive import write_archive
from torchkiln.oci.layout import prune
from torchkiln.oci.opening import open_layer
from torchkiln.projects.code import read_code
from torchkiln.projects.files import read_inside
from torchkiln.site.folder import write_folder as write_site
from torchkiln.smoke.bundle.write import write_folder, write_parts, write_tar
from torchkiln.store.store import Store
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT, TEMPLATES
from torchkiln.util.scratch import scratch
from torchkiln.util.strict_json import read_file
from torchkiln.vault.places import FolderVault

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
LOCKED = load_locked(ROOT / "images", TAG)
SEED, READS = 20261130, 1500
HERE = Path()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, a clone of a stranger's repository."""
    (tmp_path / "here").mkdir()
    (tmp_path / "own").mkdir(mode=0o700)
    monkeypatch.setenv("TORCHKILN_CACHE", str(tmp_path / "own"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def command(*words: str) -> None:
    CliRunner().invoke(torchkiln, words, catch_exceptions=False, standalone_mode=False)


def render() -> None:
    save(Path("images"), LOCKED)
    command("render", "--torch", "2.7.1", "--cuda", "12.1", "--matrix", str(ROOT / "matrix.yaml"))


def source() -> Path:
    path = HERE.absolute().parent / "file"
    path.write_bytes(b"x")
    return path


def pruned() -> None:
    build(HERE)
    shutil.rmtree("layout/blobs/sha256")
    os.symlink(HERE.absolute().parent / "outside", "layout/blobs/sha256")
    prune(Path("layout"))


# A link → what would write through it.
WRITERS: dict[str, tuple[str, Callable[[], object]]] = {
    "lock: images": ("images", lambda: save(Path("images"), LOCKED)),
    "lock: TAG": (f"images/{TAG}", lambda: save(Path("images"), LOCKED)),
    "lock: the base": ("images/base-debian12", lambda: artefact.write_lock(Path("images"), LOCKED.base)),
    "render: images": ("images", render),
    "render: requirements": (f"images/{TAG}/requirements", render),
    "build: dist": ("layout", lambda: build(HERE)),
    "build: blobs": ("layout/blobs", lambda: build(HERE)),
    "build: sha256": ("layout/blobs/sha256", lambda: build(HERE)),
    "build: locks": ("layout/locks", lambda: build(HERE)),
    "build: .lock": ("layout/.lock", lambda: build(HERE)),
    "prune: sha256": ("unused", pruned),
    "build --format": ("out", lambda: write_archive(a_layout(HERE).image(), Path("out/a"), "oci-archive")),
    "init --devcontainer": (".devcontainer", lambda: command("init", "--devcontainer", "--image", "a:b")),
    "ls --site": ("site", lambda: write_site(Path("site/pages"), {"a/b": b""})),
    "bundle: folder": ("out", lambda: write_folder((), Path("out/a"))),
    "bundle: tar": ("out", lambda: write_tar((), Path("out/a.tar"))),
    "bundle: parts": ("out", lambda: write_parts((), Path("out/a"), 7)),
    "cache: a wheel": (
        "cache/wheels/a",
        lambda: Store(HERE / "cache").adopt(source(), HERE / "cache/wheels/a/b"),
    ),
    "cache: a lock": ("cache/locks/.lock", lambda: Store(Path("cache")).lock(".lock").__enter__()),
    "vault: blobs": ("vault/blobs", lambda: FolderVault(Path("vault")).put(digest(b"x"), 1, source())),
}


@pytest.mark.parametrize("case", WRITERS)
def test_no_writer_follows_a_link(tmp_path: Path, case: str) -> None:
    link, write = WRITERS[case]
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    Path(link).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(outside / "mine.txt" if link.endswith(".lock") else outside, link)
    with pytest.raises((OSError, KilnError)):
        write()
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"mine.txt": "mine"}


def test_the_users_own_path_may_have_links(tmp_path: Path) -> None:
    """On many hosts, large folders are on another disk."""
    (tmp_path / "disk").mkdir()
    os.symlink(tmp_path / "disk", "elsewhere")
    save(tmp_path / "disk/images", LOCKED)
    command("render", "--torch", "2.7.1", "--cuda", "12.1", "--images", "elsewhere/images")
    assert (tmp_path / "disk/images" / TAG / "Dockerfile").is_file()
    assert Project(layout=Path("elsewhere/dist")).layout == tmp_path / "disk/dist"
    with scratch("test", Path("elsewhere")) as folder:
        write_atomic(folder / "a", b"")


# --- folders that are exchanged for links while they are read --------------------------------------

_EXCHANGE = """
import ctypes, sys
libc = ctypes.CDLL(None)
while True:
    for _ in range(1000):
        libc.renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2)
"""


def unpacked(blob: Path) -> bytes:
    with open_layer(blob) as stream:
        return stream.read()


def test_a_folder_that_becomes_a_link_while_it_is_read_leads_nowhere(here: Path, tmp_path: Path) -> None:
    """Another process exchanges the folder and a link without a pause, as a container beside `watch` can."""
    layout = a_layout(here / "one", tar_of(BASE)).path
    blob = next(path for path in (layout / "blobs/sha256").iterdir() if path.read_bytes()[:2] == b"\x1f\x8b")
    inside, outside = here / "one", tmp_path / "outside"
    shutil.copytree(inside, outside)
    for folder in (inside, outside):
        (folder / "a.py").write_text(folder.name)
    (outside / blob.relative_to(inside)).write_bytes(b"outside" * 100)
    os.symlink(outside, "other")
    readers: list[Callable[[], bytes]] = [
        lambda: read_inside(here, here / "one/a.py"),
        lambda: read_file(Path("one/a.py"), 100, follow=False),
        lambda: unpacked(blob),
        lambda: next(file.data for file in read_code(here).files if file.path == "one/a.py"),
    ]
    chosen, refused = random.Random(SEED), 0
    swapping = subprocess.Popen([sys.executable, "-c", _EXCHANGE, here / "one", here / "other"])
    try:
        for number in range(READS):
            try:
                data = chosen.choice(readers)()
            except (OSError, ValueError, KilnError, StopIteration):
                refused += 1
                continue
            assert not data.startswith(b"outside"), f"read {number} with the seed {SEED}"
    finally:
        swapping.kill()
        swapping.wait()
    assert 0 < refused < READS


PIPES: dict[str, tuple[str, Callable[[], object]]] = {
    "a template": ("templates/Dockerfile.j2", lambda: load_templates(TEMPLATES, HERE)),
    "list: a lock": (f"images/{TAG}/lock.json", lambda: command("list", "--all")),
    "cache show: a lock": (f"images/{TAG}/lock.json", lambda: command("cache", "show")),
    "oci-layout": ("layout/oci-layout", lambda: build(HERE)),
}


@pytest.mark.parametrize("case", PIPES)
def test_no_reader_waits_for_a_pipe(case: str) -> None:
    place, read = PIPES[case]
    Path(place).parent.mkdir(parents=True)
    os.mkfifo(place)
    with suppress(OSError, KilnError):
        read()
