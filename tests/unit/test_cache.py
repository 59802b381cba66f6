"""The cache folder: what is kept and why, what may go, what is swept."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.cache.policy import (
    DAY,
    CacheItem,
    ItemUsage,
    Kind,
    PrunePolicy,
    Root,
    expendable,
    item_usages,
    parse_age,
    parse_bytes,
)
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

NOW = 1_800_000_000.0
GB = 1_000_000_000


def item(kind: Kind, path: str, *, days: float = 1.0, size: int = GB, **details: object) -> CacheItem:
    """Last used *days* ago."""
    return CacheItem(kind=kind, path=path, size=size, used=NOW - days * DAY, **details)  # type: ignore[arg-type]


TAG = Root(
    sort="tag",
    name="2.7.1 in dist",
    needs=frozenset({"torch", "base"}),
    sources=frozenset({"torch.whl", "torch.pack"}),
)
LOCK = Root(sort="lock", name="2.6.0", needs=frozenset({"old base"}), sources=frozenset({"old.whl"}))
BUILD = Root(sort="process", name="process 7", needs=frozenset({"records/layers/k.json", "new.whl"}))

CACHE = (
    item("layers", "torch", shared=True),
    item("layers", "nobody's", along=("records/layers/n.json",)),
    item("layers", "claimed", along=("records/layers/k.json",)),
    item("layers", "linked elsewhere", shared=True),
    item("other blobs", "just made", busy="made a moment ago"),
    item("bases", "base"),
    item("bases", "old base", days=400),
    item("bases", "ancient base", days=500),
    item("wheels", "torch.whl", days=40),
    item("wheels", "old.whl", days=90),
    item("wheels", "forgotten.whl", days=100),
    item("partial wheels", "new.whl.part", along=("new.whl",)),
    item("partial wheels", "dead.whl.part", along=("dead.whl",)),
    item("byte-code", "torch.pack", days=41),
    item("unpacked images", "fresh", days=6),
    item("unpacked images", "stale", days=8),
    item("unpacked images", "running", days=80, busy="a command runs in it"),
    item("index pages", "page", days=31),
    item("leftovers", "tmp/x", days=0),
    item("not ours", "notes", days=900),
)
JUDGED = item_usages(CACHE, (TAG, LOCK, BUILD))


def gone(policy: PrunePolicy) -> list[str]:
    return [one.item.path for one in expendable(JUDGED, policy, now=NOW)]


USELESS = ["ancient base", "forgotten.whl", "page", "stale", "dead.whl.part", "nobody's", "tmp/x"]


def test_by_default_what_nobody_has_a_use_for() -> None:
    """The least recently used first; what a lock could be built from stays."""
    assert gone(PrunePolicy()) == USELESS


def test_all_takes_what_no_tag_needs() -> None:
    """Wheels and byte-code too; not a locked base, nor what is in use."""
    assert set(gone(PrunePolicy(everything=True))) == {
        *USELESS,
        "old.whl",
        "torch.whl",
        "torch.pack",
        "fresh",
    }


def test_older_than_goes_by_age_alone() -> None:
    """Of all that no tag needs; what ended processes left goes at any age."""
    assert gone(PrunePolicy(older_than=40.5 * DAY)) == [
        *("ancient base", "forgotten.whl", "old.whl", "torch.pack"),
        *("dead.whl.part", "tmp/x"),
    ]


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        (100 * GB, ["dead.whl.part", "tmp/x"]),
        (18 * GB, ["dead.whl.part", "tmp/x"]),
        (17 * GB, ["dead.whl.part", "tmp/x", "ancient base"]),
        (15 * GB, ["dead.whl.part", "tmp/x", "ancient base", "forgotten.whl", "old.whl"]),
    ],
)
def test_max_size_takes_the_oldest_until_it_fits(size: int, taken: list[str]) -> None:
    """And not one more."""
    assert gone(PrunePolicy(max_size=size)) == taken


def test_max_size_and_age_together() -> None:
    """Only what is old enough, and only as much as is needed."""
    assert gone(PrunePolicy(max_size=0, older_than=95 * DAY)) == [
        *("dead.whl.part", "tmp/x", "ancient base", "forgotten.whl")
    ]


def test_each_reason_is_told() -> None:
    """As `cache show` prints it."""
    why = {one.item.path: one.why for one in JUDGED}
    assert why["torch"] == "needed by 2.7.1 in dist"
    assert why["claimed"] == why["new.whl.part"] == "in use: process 7"
    assert why["linked elsewhere"] == "hard-linked from an unknown layout: deleting it frees no space"
    assert why["old base"] == "locked by 2.6.0; the archive may no longer have its packages"
    assert why["torch.whl"] == "needed to make layers again, of 2.7.1 in dist"
    assert why["running"] == "a command runs in it"
    assert why["fresh"] == "deleted after 7 days without use"
    assert why["dead.whl.part"] == why["tmp/x"] == "left behind by an ended process"
    assert why["nobody's"] == "not needed by any tag or lock"
    assert why["notes"] == "not created by torchkiln: never deleted"
    many = [replace(TAG, name=name) for name in "abcd"]
    (one,) = item_usages([item("layers", "torch")], many)
    assert one.why == "needed by a and 3 others"


roots = st.builds(
    Root,
    sort=st.sampled_from(["tag", "process"]),
    name=st.sampled_from("pqr"),
    needs=st.frozensets(st.sampled_from("abcdefgh")),
    sources=st.frozensets(st.sampled_from("abcdefgh")),
)
policies = st.builds(
    PrunePolicy,
    everything=st.booleans(),
    older_than=st.none() | st.floats(0, 100 * DAY),
    max_size=st.none() | st.integers(0, 50),
)
items = st.lists(
    st.builds(
        CacheItem,
        kind=st.sampled_from(["layers", "wheels", "partial wheels", "leftovers", "unpacked images"]),
        path=st.sampled_from("abcdefgh"),
        size=st.integers(0, 9),
        used=st.floats(NOW - 50 * DAY, NOW),
        along=st.lists(st.sampled_from("abcdefgh"), max_size=1).map(tuple),
    ),
    unique_by=lambda one: one.path,
)


@given(items=items, roots=st.lists(roots, max_size=3), policy=policies)
def test_what_is_needed_never_goes(items: list[CacheItem], roots: list[Root], policy: PrunePolicy) -> None:
    """Whatever is asked for; and what is left fits, or nothing more could go."""
    usages = item_usages(items, roots)
    taken = expendable(usages, policy, now=NOW)

    needed = frozenset().union(*(root.needs for root in roots))
    for one in taken:
        assert not needed & {one.item.path, *one.item.along}
    if policy.max_size is not None and policy.older_than is None:
        left = [one for one in usages if one not in taken]
        assert _size(left) <= policy.max_size or all(one.protected for one in left)


def _size(usages: list[ItemUsage]) -> int:
    return sum(one.item.size for one in usages)


def test_ages_and_sizes_as_people_write_them() -> None:
    """And what is neither, with the forms that are."""
    assert [parse_age(text) for text in ("90m", "12h", "30d", "2W", "1.5d")] == [
        *(5400.0, 43200.0, 30 * DAY, 14 * DAY, 1.5 * DAY)
    ]
    assert [parse_bytes(text) for text in ("20GB", "20gb", "1.5GiB", "500M", "0", "7 kB", "12B")] == [
        *(20 * GB, 20 * GB, 3 << 29, 500_000_000, 0, 7000, 12)
    ]
    for text in ("soon", "", "30", "-3d", "d", "3 d d"):
        with pytest.raises(ConfigError, match="not a valid duration"):
            parse_age(text)
    for text in ("big", "", "-1GB", "20 GBs", "1e9"):
        with pytest.raises(ConfigError, match="not a valid size"):
            parse_bytes(text)


def test_what_layers_say_goes_when_nobody_asked_for_long() -> None:
    """It is read again from the layers, in seconds."""
    said = (item("layer texts", "said", days=29), item("layer texts", "said long ago", days=31))

    assert [one.item.path for one in expendable(item_usages(said, ()), PrunePolicy(), now=NOW)] == [
        "said long ago"
    ]


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
