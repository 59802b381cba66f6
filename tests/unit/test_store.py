"""The cache folder: what is swept, claimed, set aside; what cannot be written."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchkiln.errors import BuildFailed
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

LEAVE = """
import os, sys
from pathlib import Path
from torchkiln.store.store import Store
store = Store(Path(sys.argv[1]))
store.temporary("file").write_text("x")
folder = store.temporary("folder")
folder.mkdir()
(folder / "in it").write_text("x")
print("there", flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
os._exit(9)
"""


def other(root: Path, then: str) -> "subprocess.Popen[bytes]":
    """A process that leaves two things in tmp/, and ends without tidying up, or waits."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVE, str(root), then], stdin=pipe, stdout=pipe, cwd=ROOT
    )
    assert process.stdout
    assert process.stdout.readline() == b"there\n"
    return process


def names(root: Path) -> int:
    return len(list((root / "tmp").iterdir()))


def test_what_a_dead_process_left_is_swept(tmp_path: Path) -> None:
    """File and folder; nothing of a process that lives, ours or another's."""
    store = Store(tmp_path)
    alive, dead = other(tmp_path, "wait"), other(tmp_path, "end")
    dead.communicate()
    mine = store.temporary("mine")
    mine.write_text("x")
    assert names(tmp_path) == 5

    assert store.sweep() == 2
    assert (names(tmp_path), mine.exists()) == (3, True)
    alive.communicate()
    assert store.sweep() == 2
    assert list((tmp_path / "tmp").iterdir()) == [mine]


def test_only_names_of_ours_are_swept(tmp_path: Path) -> None:
    """A cache set to somebody's folder must not cost him his tmp/."""
    (tmp_path / "tmp").mkdir()
    letter, half, owned = (tmp_path / "tmp" / name for name in ("a-letter", "12-0a-x", "12.0a0b0c0d-1-x"))
    for path in (letter, half, owned):
        path.write_text("x")

    store = Store(tmp_path)
    assert store.sweep() == 0  # its lock file is not there: that may be somebody's tidying
    for path in (letter, half, owned):
        os.utime(path, (0, 0))
    assert store.sweep() == 1
    assert sorted((tmp_path / "tmp").iterdir()) == [half, letter]


def test_a_record_is_written_by_way_of_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the next run finds what a killed process left, and knows whose it was."""
    store = Store(tmp_path)
    store.put_record("layers", "k", {"a": 1})
    seen: list[Path] = []
    monkeypatch.setattr("os.replace", lambda source, target: seen.append(Path(source)))
    store.put_record("layers", "l", {"a": 2})

    assert [path.parent for path in seen] == [tmp_path / "tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list(store.records("layers")) == [("k", {"a": 1})]


def test_a_claim_is_seen_while_it_lasts(tmp_path: Path) -> None:
    """By whoever asks; what a dead process claimed is deleted."""
    store = Store(tmp_path)
    with store.claim("builds a", {"b", "a"}):
        (claim,) = Store(tmp_path).claims()
        assert (claim.pid, claim.what, claim.needs) == (os.getpid(), "builds a", ("a", "b"))
    (tmp_path / "claims/1-dead").write_text('{"pid": 1}')
    assert store.claims() == ()
    assert list((tmp_path / "claims").iterdir()) == []


def test_no_claim_while_somebody_looks_for_what_may_go(tmp_path: Path) -> None:
    """Who claims waits for the gate, and hears whose it is."""
    script = (
        "import sys; from pathlib import Path; from torchkiln.store.store import Store\n"
        "def told(holder):\n    print(holder.what, flush=True)\n"
        "with Store(Path(sys.argv[1]), on_wait=told).claim('builds', ['a']):\n"
        "    print('claimed', flush=True)\n"
    )
    store = Store(tmp_path)
    with store.gate():
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout
        assert process.stdout.readline() == b"checks the claims on files\n"
        assert store.claims() == ()
    assert process.communicate()[0] == b"claimed\n"


def test_set_aside_works_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no new name can be made, the old place is what is to be deleted."""
    store = Store(tmp_path)
    there = tmp_path / "there"
    there.write_text("x")

    (aside,) = store.set_aside([there, tmp_path / "not there"])
    assert (there.exists(), aside.read_text()) == (False, "x")

    there.write_text("x")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert store.set_aside([there]) == [there]


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do; when the disk is full, how to make room."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(BuildFailed, match=r"cannot write to the cache .*file") as found:
        Store(tmp_path / "file").temporary("x")
    assert found.value.hint == "set TORCHKILN_CACHE to a writable folder"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(BuildFailed, match="No space left") as found, Store(tmp_path).lock("a"):
        pytest.fail("no lock can be had")
    assert found.value.hint.startswith("free space (torchkiln cache prune), or set")
