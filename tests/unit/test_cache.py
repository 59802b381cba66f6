"""The cache folder: which items are used and why, which can be removed, and how leftovers are removed."""

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
    """A cache item that was last used *days* ago."""
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
    item("layers", "unused layer", along=("records/layers/n.json",)),
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
USAGES = item_usages(CACHE, (TAG, LOCK, BUILD))


def removed(policy: PrunePolicy) -> list[str]:
    return [entry.item.path for entry in expendable(USAGES, policy, now=NOW)]


USELESS = ["ancient base", "forgotten.whl", "page", "stale", "dead.whl.part", "unused layer", "tmp/x"]


def test_by_default_unneeded_items_are_removed() -> None:
    """They are removed in the order of last use; items that the build of a lock needs stay."""
    assert removed(PrunePolicy()) == USELESS


def test_all_removes_items_that_no_tag_needs() -> None:
    """Wheels and bytecode are removed, too; locked bases and items in use are not."""
    assert set(removed(PrunePolicy(everything=True))) == {
        *USELESS,
        "old.whl",
        "torch.whl",
        "torch.pack",
        "fresh",
    }


def test_older_than_uses_only_the_age() -> None:
    """Items that no tag needs are removed only by age. Leftovers of ended processes are always removed."""
    assert removed(PrunePolicy(older_than=40.5 * DAY)) == [
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
def test_max_size_removes_the_oldest_until_it_fits(size: int, taken: list[str]) -> None:
    """No more items are removed than necessary."""
    assert removed(PrunePolicy(max_size=size)) == taken


def test_max_size_and_age_together() -> None:
    """Only items of that age are removed, and only as many as necessary."""
    assert removed(PrunePolicy(max_size=0, older_than=95 * DAY)) == [
        *("dead.whl.part", "tmp/x", "ancient base", "forgotten.whl")
    ]


def test_each_reason_is_shown() -> None:
    """The reasons have the words that `cache show` prints."""
    why = {usage.item.path: usage.why for usage in USAGES}
    assert why["torch"] == "needed by 2.7.1 in dist"
    assert why["claimed"] == why["new.whl.part"] == "in use: process 7"
    assert why["linked elsewhere"] == "hard-linked from an unknown layout: deleting it frees no space"
    assert why["old base"] == "locked by 2.6.0; the archive may no longer have its packages"
    assert why["torch.whl"] == "needed to rebuild layers of 2.7.1 in dist"
    assert why["running"] == "a command runs in it"
    assert why["fresh"] == "deleted after 7 days without use"
    assert why["dead.whl.part"] == why["tmp/x"] == "left behind by an ended process"
    assert why["unused layer"] == "not needed by any tag or lock"
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
def test_needed_items_are_never_removed(
    items: list[CacheItem], roots: list[Root], policy: PrunePolicy
) -> None:
    """This holds for any policy. A maximum size is reached, or only protected items are left."""
    usages = item_usages(items, roots)
    taken = expendable(usages, policy, now=NOW)

    needed = frozenset().union(*(root.needs for root in roots))
    for entry in taken:
        assert not needed & {entry.item.path, *entry.item.along}
    if policy.max_size is not None and policy.older_than is None:
        left = [usage for usage in usages if usage not in taken]
        assert _size(left) <= policy.max_size or all(entry.protected for entry in left)


def _size(usages: list[ItemUsage]) -> int:
    return sum(usage.item.size for usage in usages)


def test_ages_and_sizes_are_parsed() -> None:
    """The message about an invalid value shows the valid forms."""
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


def test_unused_layer_texts_are_removed_after_a_while() -> None:
    """After 30 days: the texts can be read from the layers again in seconds."""
    texts = (item("layer texts", "texts", days=29), item("layer texts", "old texts", days=31))

    assert [entry.item.path for entry in expendable(item_usages(texts, ()), PrunePolicy(), now=NOW)] == [
        "old texts"
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


def other_process(root: Path, then: str) -> "subprocess.Popen[bytes]":
    """A process that leaves two files in tmp/, and ends without cleanup, or waits."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVE, str(root), then], stdin=pipe, stdout=pipe, cwd=ROOT
    )
    assert process.stdout
    assert process.stdout.readline() == b"there\n"
    return process


def names(root: Path) -> int:
    return len(list((root / "tmp").iterdir()))


def test_leftovers_of_a_dead_process_are_swept(tmp_path: Path) -> None:
    """A file and a folder of the dead process are deleted; those of a running process stay."""
    store = Store(tmp_path)
    alive, dead = other_process(tmp_path, "wait"), other_process(tmp_path, "end")
    dead.communicate()
    mine = store.temporary("mine")
    mine.write_text("x")
    assert names(tmp_path) == 5

    assert store.sweep() == 2
    assert (names(tmp_path), mine.exists()) == (3, True)
    alive.communicate()
    assert store.sweep() == 2
    assert list((tmp_path / "tmp").iterdir()) == [mine]


def test_only_our_own_names_are_swept(tmp_path: Path) -> None:
    """A user may choose any folder as the cache; other files in its tmp/ must stay."""
    (tmp_path / "tmp").mkdir()
    letter, half, owned = (tmp_path / "tmp" / name for name in ("a-letter", "12-0a-x", "12.0a0b0c0d-1-x"))
    for path in (letter, half, owned):
        path.write_text("x")

    store = Store(tmp_path)
    assert store.sweep() == 0  # its lock file is missing: another process may be cleaning up
    for path in (letter, half, owned):
        os.utime(path, (0, 0))
    assert store.sweep() == 1
    assert sorted((tmp_path / "tmp").iterdir()) == [half, letter]


def test_a_record_is_written_through_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written in tmp/ first: the next run can delete what a killed process left there."""
    store = Store(tmp_path)
    store.put_record("layers", "k", {"a": 1})
    written: list[Path] = []
    monkeypatch.setattr("os.replace", lambda source, target: written.append(Path(source)))
    store.put_record("layers", "l", {"a": 2})

    assert [path.parent for path in written] == [tmp_path / "tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list(store.records("layers")) == [("k", {"a": 1})]


def test_a_claim_is_visible_while_it_lasts(tmp_path: Path) -> None:
    """Every process can list the claims; claims of dead processes are deleted."""
    store = Store(tmp_path)
    with store.claim("builds a", {"b", "a"}):
        (claim,) = Store(tmp_path).claims()
        assert (claim.pid, claim.what, claim.needs) == (os.getpid(), "builds a", ("a", "b"))
    (tmp_path / "claims/1-dead").write_text('{"pid": 1}')
    assert store.claims() == ()
    assert list((tmp_path / "claims").iterdir()) == []


def test_a_claim_waits_while_removable_items_are_listed(tmp_path: Path) -> None:
    """A claim needs the lock of the cache; while it waits, a message names the lock's holder."""
    script = (
        "import sys; from pathlib import Path; from torchkiln.store.store import Store\n"
        "def waits(holder):\n    print(holder.what, flush=True)\n"
        "with Store(Path(sys.argv[1]), on_wait=waits).claim('builds', ['a']):\n"
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
    """Normally the path is renamed; if the disk is too full for that, the path is deleted directly."""
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


def test_an_unwritable_cache_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint for a full disk says how to free space."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(BuildFailed, match=r"cannot write to the cache .*file") as found:
        Store(tmp_path / "file").temporary("x")
    assert found.value.hint == "set TORCHKILN_CACHE to a writable folder"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(BuildFailed, match="No space left") as found, Store(tmp_path).lock("a"):
        pytest.fail("the lock is held although its file cannot be opened")
    assert found.value.hint.startswith("free space (torchkiln cache prune), or set")
