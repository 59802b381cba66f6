"""Temporary folders of killed processes, and nothing else, are removed by the next process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchkiln.cache.prune import PrunePolicy, prune
from torchkiln.cache.usage import cache_usage
from torchkiln.store.store import Store
from torchkiln.util.files import mounted_below, remove_tree
from torchkiln.util.scratch import held, scratch, sweep

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, or changes owners")

# `base build` with a fake mmdebstrap, which writes files into the folder until it is killed.
BUILD = """
import os, sys, tempfile
from pathlib import Path
from torchkiln.base import mmdebstrap
from torchkiln.base.recipe import recipe
from torchkiln.model.progress import Reporting
tempfile.tempdir = sys.argv[1]
wanted = recipe("debian12")
mmdebstrap._require = lambda *_: None
with mmdebstrap.scratch(wanted, {"TORCHKILN_DEBIAN_KEYRING": __file__} | dict(os.environ)) as place:
    with mmdebstrap.running(["sh", "-c", sys.argv[2]], place.env, wanted, Reporting()) as tar:
        print("runs", flush=True)
        tar.read()
"""
FILLS = 'while :; do mkdir -p "$TMPDIR/mmdebstrap.x/usr/$$"; echo x >> "$TMPDIR/mmdebstrap.x/usr/$$/f"; done'
STUBBORN = "trap '' TERM; " + FILLS


def started(top: Path, script: str) -> subprocess.Popen[str]:
    """Start a build in a separate process, and return when its fake mmdebstrap runs."""
    program = top.parent / "build.py"
    program.write_text(BUILD)
    process = subprocess.Popen(
        [sys.executable, str(program), str(top), script], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()


def leftovers(top: Path) -> list[str]:
    return sorted(path.name for path in top.glob("torchkiln-*"))


def until_swept(top: Path) -> None:
    """Sweep again and again, until all children of the killed build have ended and no folder is left."""
    for _ in range(6000):  # two minutes; usually less than one second
        sweep(top)
        if not leftovers(top):
            return
        time.sleep(0.02)
    pytest.fail(f"child processes of a killed build still run in {leftovers(top)}")


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """The folder in which the temporary folders are created."""
    made = tmp_path / "tmp"
    made.mkdir()
    yield made
    for path in made.iterdir():
        remove_tree(path)


@pytest.mark.parametrize("number", range(6))
def test_leftovers_of_a_killed_base_build_are_swept(top: Path, number: int) -> None:
    """SIGKILL comes at a random time, seeded by *number*. The kernel then kills mmdebstrap, too."""
    process = started(top, FILLS)
    time.sleep(random.Random(number).uniform(0, 0.3))
    assert len(leftovers(top)) == 1
    killed(process)
    until_swept(top)
    with scratch("base", top):
        assert len(leftovers(top)) == 1


def test_the_folder_of_a_running_program_is_kept(top: Path) -> None:
    """mmdebstrap may ignore the signal; its folder is swept after it has ended."""
    process = started(top, STUBBORN)
    [name] = leftovers(top)
    killed(process)
    assert sweep(top) == 0
    assert leftovers(top) == [name]
    child = next(
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if name.encode() in _environment(path) and int(path.name) != os.getpid()
    )
    os.kill(child, signal.SIGKILL)
    until_swept(top)


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_the_next_use_and_the_cache_sweep(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another temporary folder, or a sweep of the cache (`build` does one), removes the leftovers."""
    (top / "torchkiln-base-0123456789abcdef" / "mmdebstrap.x").mkdir(parents=True)
    with scratch("smoke", top) as made:
        assert leftovers(top) == [made.name]
    (top / "torchkiln-base-0123456789abcdef").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(top))
    assert Store(top.parent / "cache").sweep() == 1
    assert leftovers(top) == []


def test_prune_sweeps_too_unless_it_only_lists(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(top))
    (top / "torchkiln-base-0123456789abcdef").mkdir()
    store = Store(top.parent / "cache")
    for dry_run, left in ((True, 1), (False, 0)):
        prune(store, lambda: cache_usage(store, [], top.parent / "images"), PrunePolicy(), dry_run=dry_run)
        assert len(leftovers(top)) == left


@pytest.mark.parametrize(
    "name",
    [
        "torchkiln-base-0123456789abcde",
        "torchkiln-base-0123456789abcdeg",
        "torchkiln-base-0123456789abcdef-mine",
        "my-torchkiln-base-0123456789abcdef",
        "torchkiln-0123456789abcdef",
    ],
)
def test_folders_with_other_names_stay(top: Path, name: str) -> None:
    (top / name).mkdir()
    assert sweep(top) == 0
    assert (top / name).is_dir()


def test_a_link_or_a_file_of_that_name_stays(top: Path) -> None:
    """Following a link could delete its target."""
    target = top.parent / "target"
    (target / "data").mkdir(parents=True)
    (top / "torchkiln-base-0123456789abcdef").symlink_to(target)
    (top / "torchkiln-base-0123456789abcde0").write_text("x")
    assert sweep(top) == 0
    assert (target / "data").is_dir()


def test_a_folder_in_use_stays(top: Path) -> None:
    with scratch("base", top) as made:
        lock = held(made)
        assert sweep(top) == 0
        os.close(lock)
        assert sweep(top) == 0
        assert made.is_dir()
    assert leftovers(top) == []


@needs_root
def test_another_users_folder_stays(top: Path) -> None:
    path = top / "torchkiln-base-0123456789abcdef"
    path.mkdir()
    os.chown(path, 4711, 4711)
    assert sweep(top) == 0
    assert path.is_dir()


@needs_root
def test_a_link_inside_is_removed_and_not_followed(top: Path) -> None:
    target = top.parent / "target"
    target.mkdir()
    (target / "kept").touch()
    inside = top / "torchkiln-base-0123456789abcdef"
    inside.mkdir()
    (inside / "link").symlink_to(target)
    assert sweep(top) == 1
    assert (target / "kept").exists()


MOUNTS = """
import subprocess, sys
from pathlib import Path
from torchkiln.util.scratch import sweep
from torchkiln.util.files import mounted_below
top = Path(sys.argv[1])
inside = top / "torchkiln-base-0123456789abcdef" / "chroot" / "a b"
kept = top.parent / "kept"
subprocess.run(["mount", *sys.argv[2:], str(kept), str(inside)], check=True)
assert mounted_below(top / "torchkiln-base-0123456789abcdef") == [str(inside)]
assert sweep(top) == 0
subprocess.run(["umount", str(inside)], check=True)
assert (kept / "precious").exists() or "tmpfs" in sys.argv
assert sweep(top) == 1
"""


@needs_root
@pytest.mark.parametrize("kind", [["--bind"], ["-t", "tmpfs"]], ids=["bind", "tmpfs"])
def test_nothing_is_deleted_through_a_mount(top: Path, kind: list[str]) -> None:
    """A bind mount may have the folder's device number, so the kernel's list of mounts is read."""
    (top / "torchkiln-base-0123456789abcdef" / "chroot" / "a b").mkdir(parents=True)
    (top.parent / "kept").mkdir()
    (top.parent / "kept" / "precious").touch()
    argv = ["unshare", "--mount", "--propagation=private", sys.executable, "-c", MOUNTS, str(top), *kind]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip("cannot create a mount namespace: needs root, or user namespaces")
    assert done.returncode == 0, done.stderr
    assert (top.parent / "kept" / "precious").exists()


def test_a_folder_without_mounts_has_none(tmp_path: Path) -> None:
    assert mounted_below(tmp_path) == []
