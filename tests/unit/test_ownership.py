"""A folder that other users can change is refused, and a confined thread can write to one folder only."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from torchkiln import cli
from torchkiln.cli.shared.options import layout_option
from torchkiln.errors import ConfigError
from torchkiln.oci import unpack
from torchkiln.oci.unpack import confined
from torchkiln.store.store import Store
from torchkiln.util.ownership import fault, fault_below
from torchkiln.util.scratch import scratch

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: changes owners of folders")
OTHER_UID = 4711


def _mode(mode: int, at: str = "") -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / at).mkdir(parents=True, exist_ok=True)
        (root / at).chmod(mode)

    return change


def _owner(at: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / at).mkdir(parents=True, exist_ok=True)
        os.chown(root / at, OTHER_UID, OTHER_UID)

    return change


def _elsewhere(at: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root.parent / "elsewhere").mkdir()
        (root / at).parent.mkdir(parents=True, exist_ok=True)
        (root / at).symlink_to(root.parent / "elsewhere")

    return change


def _swapped_link(root: Path) -> None:
    """In a folder with the sticky bit, the cache is a link that another user made."""
    root.rmdir()
    (root.parent / "real").mkdir()
    root.symlink_to(root.parent / "real")
    os.chown(root, OTHER_UID, OTHER_UID, follow_symlinks=False)


def _link_into_the_open(root: Path) -> None:
    """The cache is our link to a folder that all users can write to."""
    root.rmdir()
    (root.parent / "open").mkdir()
    (root.parent / "open").chmod(0o777)
    root.symlink_to(root.parent / "open")


def _link_through_the_open(root: Path) -> None:
    """The cache is our link to a path in a folder where other users can replace that path."""
    root.rmdir()
    (root.parent / "open" / "inner").mkdir(parents=True)
    (root.parent / "open").chmod(0o777)
    root.symlink_to("open/inner")


CASES = {
    "all-write": _mode(0o777),
    "others-write": _mode(0o702),
    "group-writes": _mode(0o770),
    "sticky-is-not-enough": _mode(0o1777),
    "parent-all-write": lambda root: root.parent.chmod(0o777),
    "parent-group-writes": lambda root: root.parent.chmod(0o775),
    "grandparent-all-write": lambda root: root.parent.parent.chmod(0o777),
    "other-user": _owner(""),
    "parent-other-user": lambda root: os.chown(root.parent, OTHER_UID, -1),
    "other-users-link": _swapped_link,
    "link-to-open": _link_into_the_open,
    "link-through-open": _link_through_the_open,
}
BELOW = {
    "blobs-all-write": _mode(0o777, "blobs"),
    "blobs-sha256-all-write": _mode(0o777, "blobs/sha256"),
    "blobs-linked": _elsewhere("blobs"),
    "blobs-sha256-linked": _elsewhere("blobs/sha256"),
    "blobs-other-user": _owner("blobs"),
}
IN_THE_CACHE = {
    "records-all-write": _mode(0o777, "records"),
    "records-smoke-group-writes": _mode(0o775, "records/smoke"),
    "records-pages-linked": _elsewhere("records/pages"),
    "keys-all-write": _mode(0o777, "keys"),
    "rootfs-linked": _elsewhere("rootfs"),
    "interpreters-other-user": _owner("interpreters"),
    "bytecode-all-write": _mode(0o777, "bytecode"),
    "tmp-sticky": _mode(0o1777, "tmp"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A private folder; the folders above it are private, too."""
    made = tmp_path / "above" / "next" / "folder"
    made.mkdir(parents=True)
    return made


@needs_root
@pytest.mark.parametrize("case", [*CASES, *BELOW, *IN_THE_CACHE])
def test_a_cache_that_others_can_change_is_refused(root: Path, case: str) -> None:
    Store(root)
    (CASES | BELOW | IN_THE_CACHE)[case](root)
    with pytest.raises(ConfigError, match="can be changed by other users") as refused:
        Store(root)
    assert "TORCHKILN_CACHE_SHARED" in refused.value.hint
    assert refused.value.exit_code == 2


@needs_root
@pytest.mark.parametrize("case", [*CASES, *BELOW])
def test_an_output_folder_that_others_can_change_is_refused(root: Path, case: str) -> None:
    option = layout_option()(lambda output: output)
    convert = option.__click_params__[0].type.convert
    assert convert(root, None, None) == root
    (CASES | BELOW)[case](root)
    with pytest.raises(ConfigError, match=r"the output folder .* can be changed by other users"):
        convert(root, None, None)


@needs_root
def test_a_layout_with_an_index_that_others_can_write_is_refused(root: Path) -> None:
    (root / "index.json").write_text("{}")
    (root / "index.json").chmod(0o666)
    assert "index.json" in fault_below(root, ("index.json",))


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o711, 0o750])
def test_a_folder_that_others_can_only_read_is_accepted(root: Path, mode: int) -> None:
    """For example, an older release made such a cache."""
    root.chmod(mode)
    (root / "blobs").mkdir()
    Store(root)


def test_our_folder_in_a_sticky_folder_is_accepted(root: Path) -> None:
    """The sticky bit of /tmp, for example, prevents that other users rename our files."""
    root.parent.chmod(0o1777)
    assert fault(root) == ""


def test_our_own_link_to_our_own_folder_is_accepted(root: Path) -> None:
    """For example, ~/.cache may be a link to another disk."""
    (root.parent / "link").symlink_to(root)
    (root.parent / "further").symlink_to("link")
    assert fault(root.parent / "further") == ""


def test_a_loop_of_links_is_reported(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert "symbolic links" in fault(root / "a" / "cache")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_files_of_the_cache_are_private_for_every_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "new" / "cache")
        store.put_record("smoke", "key", {"a": 1})
        store.temporary("x").write_bytes(b"")
    finally:
        os.umask(before)
    made = [tmp_path / "new", *(path for path in (tmp_path / "new").rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    Store(tmp_path / "new" / "cache")


def test_a_cache_that_another_user_creates_first_is_refused(tmp_path: Path) -> None:
    """Between the check and the first file, as is possible in /tmp."""
    store = Store(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(ConfigError, match="can be changed by other users"):
        store.put_record("smoke", "key", {"a": 1})


@needs_root
@pytest.mark.parametrize(
    "argv",
    [
        ["cache", "show"],
        ["cache", "prune"],
        ["gate", "x", "--output", "{}"],
        ["smoke", "x", "--output", "{}"],
    ],
)
def test_the_command_exits_with_2(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    root.chmod(0o777)
    monkeypatch.setenv("TORCHKILN_CACHE", str(root))
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # pytest keeps its handlers
    with pytest.raises(SystemExit) as left:
        cli.main([word.format(root) for word in argv])
    stderr = capsys.readouterr().err
    assert left.value.code == 2
    assert "can be changed by other users" in stderr
    assert "Traceback" not in stderr


@needs_root
def test_a_temporary_folder_that_others_could_swap_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a sticky bit, other users could rename our files in a world-writable $TMPDIR."""
    root.chmod(0o777)
    with pytest.raises(ConfigError, match="every user can write") as refused, scratch("test", root):
        pass
    assert "TMPDIR" in refused.value.hint
    root.chmod(0o1777)
    with scratch("test", root) as made:
        assert made.stat().st_mode & 0o777 == 0o700
    assert list(root.iterdir()) == []


def test_a_confined_thread_writes_only_below_its_folder(tmp_path: Path) -> None:
    if unpack.version() < 2:
        pytest.skip("this kernel has no Landlock (CONFIG_SECURITY_LANDLOCK, or lsm= without landlock)")
    (inside := tmp_path / "inside").mkdir()
    (tmp_path / "there").write_text("untouched")

    def work(_check: object) -> list[str]:
        (inside / "folder").mkdir()
        (inside / "folder/file").write_text("1")
        os.link(inside / "folder/file", inside / "twin")
        os.symlink("../there", inside / "link")
        (inside / "folder/file").unlink()
        failed = []
        for name, step in {
            "write": lambda: (tmp_path / "there").write_text("x"),
            "through a link": lambda: (inside / "link").write_text("x"),
            "create": lambda: (tmp_path / "new").write_text("x"),
            "delete": lambda: (tmp_path / "there").unlink(),
            "move out": lambda: os.rename(inside / "twin", tmp_path / "twin"),
            "link in": lambda: os.link(tmp_path / "there", inside / "stolen"),
            "folder": lambda: (tmp_path / "folder").mkdir(),
            "pipe": lambda: os.mkfifo(inside / "pipe"),
        }.items():
            try:
                step()
            except OSError:
                failed.append(name)
        return failed

    assert confined(inside, work) == [
        *("write", "through a link", "create", "delete", "move out", "link in", "folder", "pipe")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "there"]
    (tmp_path / "new").write_text("the caller's own thread may")


def test_a_confined_thread_returns_and_raises_to_the_caller(tmp_path: Path) -> None:
    assert confined(tmp_path, lambda _check: 7) == 7
    with pytest.raises(ZeroDivisionError):
        confined(tmp_path, lambda _check: 1 // 0)


def test_ctrl_c_stops_the_thread(tmp_path: Path) -> None:
    """The thread stops at its next check; the process then ends as a process without threads does."""
    code = (
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from torchkiln.oci.unpack import confined\n"
        # Background jobs of a shell ignore SIGINT, and their child processes inherit this.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def work(check):\n"
        "    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "    while True:\n"
        "        check()\n"
        "        time.sleep(0.01)\n"
        "try: confined(Path(sys.argv[1]), work)\n"
        "except KeyboardInterrupt: print('interrupted', threading.active_count())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("interrupted"), done.stderr


class Finalized:
    """Records the thread that runs its finalizer."""

    threads: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.itself = self  # only the garbage collector finds it

    def __del__(self) -> None:
        self.threads.append(threading.current_thread().name)


def test_no_finalizer_of_another_thread_runs_in_a_restricted_thread(tmp_path: Path) -> None:
    """multiprocessing's finalizers delete semaphores, which this thread could not do."""
    Finalized.threads.clear()

    def work(_: Callable[[], None]) -> None:
        Finalized()
        for _ in range(100):
            [[] for _ in range(10_000)]

    confined(tmp_path, work)
    assert gc.isenabled()
    gc.collect()
    assert Finalized.threads == [threading.current_thread().name]
