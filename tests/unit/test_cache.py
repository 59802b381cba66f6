"""The cache folder: which items are used and why, which can be removed, and how leftovers are removed."""

import errno
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.cache.prune import PrunePolicy, expendable, total
from torchkiln.cache.usage import DAY, Entry, cache_usage
from torchkiln.cli.cache import parse_age
from torchkiln.cli.shared.cache_bound import parse_bytes
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

NOW = 1_800_000_000.0
GB = 1_000_000_000


def entry(kind: str, path: str, *, days: float = 1.0, **details: object) -> Entry:
    """An entry of 1 GB that was last used *days* ago."""
    return Entry(kind=kind, path=path, size=GB, used=NOW - days * DAY, **details)  # type: ignore[arg-type]


TAG, PROCESS, SOURCE = ("2.7.1 in dist",), "process 7", math.inf

CACHE = (
    entry("blobs", "torch", users=TAG, shared=True),
    entry("blobs", "unused layer", records=("records/layers/n.json",)),
    entry("blobs", "claimed", busy=PROCESS),
    entry("blobs", "linked elsewhere", users=("an unknown layout",), shared=True),
    entry("blobs", "just made", busy="just created"),
    entry("blobs", "base", users=TAG),
    entry("blobs", "old base", days=400, users=("the lock of 2.6.0",)),
    entry("blobs", "ancient base", days=500),
    entry("wheels", "torch.whl", days=40, lifetime=SOURCE),
    entry("wheels", "old.whl", days=90, lifetime=SOURCE),
    entry("wheels", "forgotten.whl", days=100),
    entry("leftovers", "new.whl.part", busy=PROCESS),
    entry("leftovers", "dead.whl.part"),
    entry("bytecode", "torch.pack", days=41, lifetime=SOURCE),
    entry("rootfs", "fresh", days=6, lifetime=7 * DAY),
    entry("rootfs", "stale", days=8, lifetime=7 * DAY),
    entry("rootfs", "running", days=80, lifetime=7 * DAY, busy="a command is running in it"),
    entry("records", "page", days=31, lifetime=30 * DAY),
    entry("leftovers", "tmp/x", days=0),
)
LEFT = ("dead.whl.part", "tmp/x")


def removed(policy: PrunePolicy) -> list[str]:
    return [one.path for one in expendable(CACHE, policy, now=NOW)]


USELESS = [*LEFT, "ancient base", "forgotten.whl", "page", "stale", "unused layer"]


def test_by_default_unneeded_items_are_removed() -> None:
    """They are removed in the order of last use; items that the build of a lock needs stay."""
    assert removed(PrunePolicy()) == USELESS


def test_size_or_age_of_zero_removes_items_that_no_tag_needs() -> None:
    """Wheels and bytecode are removed, too; locked bases and items in use are not."""
    everything = {*USELESS, "old.whl", "torch.whl", "torch.pack", "fresh"}
    assert set(removed(PrunePolicy(max_size=0))) == everything
    assert set(removed(PrunePolicy(older_than=0))) == everything


def test_older_than_uses_only_the_age() -> None:
    """Items that no tag needs are removed only by age. Leftovers of ended processes are always removed."""
    assert removed(PrunePolicy(older_than=40.5 * DAY)) == [
        *LEFT,
        *("ancient base", "forgotten.whl", "old.whl", "torch.pack"),
    ]


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        (100 * GB, []),
        (17 * GB, []),
        (16 * GB, ["ancient base"]),
        (14 * GB, ["ancient base", "forgotten.whl", "old.whl"]),
    ],
)
def test_max_size_removes_the_oldest_until_it_fits(size: int, taken: list[str]) -> None:
    """No more items are removed than necessary."""
    assert removed(PrunePolicy(max_size=size)) == [*LEFT, *taken]


def test_max_size_and_age_together() -> None:
    """Only items of that age are removed, and only as many as necessary."""
    both = PrunePolicy(max_size=0, older_than=95 * DAY)
    assert removed(both) == [*LEFT, "ancient base", "forgotten.whl"]


def test_a_file_from_the_future_counts_as_just_used() -> None:
    """The clock of another machine may be ahead; an unneeded file is removed all the same."""
    future = [entry("blobs", "a", days=-1), entry("rootfs", "b", days=-1, lifetime=7 * DAY)]
    assert [one.path for one in expendable(future, PrunePolicy(), now=NOW)] == ["a"]


entries = st.lists(
    st.builds(
        Entry,
        kind=st.sampled_from(["blobs", "wheels", "leftovers", "rootfs"]),
        path=st.sampled_from("abcdefgh"),
        size=st.integers(0, 9),
        used=st.floats(NOW - 50 * DAY, NOW),
        users=st.sampled_from([(), TAG]),
        busy=st.sampled_from(["", PROCESS]),
        lifetime=st.sampled_from([0.0, 7 * DAY, math.inf]),
    ),
    unique_by=lambda one: one.path,
)
policies = st.builds(
    PrunePolicy, older_than=st.none() | st.floats(0, 100 * DAY), max_size=st.none() | st.integers(0, 50)
)


@given(entries=entries, policy=policies)
def test_needed_items_are_never_removed(entries: list[Entry], policy: PrunePolicy) -> None:
    """This holds for any policy. A maximum size is reached, or only protected items are left."""
    taken = list(expendable(entries, policy, now=NOW))

    assert not any(one.users or one.busy for one in taken)
    if policy.max_size is not None and policy.older_than is None:
        left = [one for one in entries if one not in taken]
        assert total(left) <= policy.max_size or all(one.protected for one in left)


def test_the_lifetime_of_each_kind(tmp_path: Path) -> None:
    """Files that a layer or an index page can be read from again have one; files of others are not listed."""
    hash_ = "a" * 64
    days = {
        f"blobs/sha256/{hash_}": 0,
        f"wheels/{hash_}/a.whl": 0,
        f"toolkits/{hash_}/a": 0,
        f"debs/{hash_}/a.deb": 90,
        "bytecode/a.pack": 0,
        "rootfs/a": 7,
        "pytest/a": 30,
        "records/pages/a.json": 30,
        "records/evidence/a.json": 30,
    }
    foreign = (
        "letter",
        "blobs/sha256/letter",
        "wheels/mine/a.whl",
        "debs/mine/a.deb",
        "records/smoke/a.json",
    )
    for name in (*days, *foreign):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = cache_usage(Store(tmp_path), (), tmp_path / "images").entries
    assert {one.path: one.lifetime for one in found} == {name: DAY * count for name, count in days.items()}


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
