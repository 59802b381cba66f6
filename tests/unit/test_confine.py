"""A thread that may write below one folder only, by the kernel's word; and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchkiln.oci import confine
from torchkiln.oci.confine import confined


def test_a_confined_thread_writes_below_its_folder_alone(tmp_path: Path) -> None:
    if confine.version() < 2:
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


def test_what_it_returns_and_raises_is_the_callers(tmp_path: Path) -> None:
    assert confined(tmp_path, lambda _check: 7) == 7
    with pytest.raises(ZeroDivisionError):
        confined(tmp_path, lambda _check: 1 // 0)


def test_ctrl_c_ends_the_thread(tmp_path: Path) -> None:
    """The thread notices it when it asks; the process ends as if it had no thread."""
    code = (
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from torchkiln.oci.confine import confined\n"
        # A shell's background job ignores SIGINT, and so would this child.
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
