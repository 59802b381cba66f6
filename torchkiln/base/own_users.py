"""Starts a program as root of a user namespace whose users exist nowhere else.

    python -I -S own_users.py FIRST COMMAND...

The ids from 0 in the namespace are those from FIRST on the host, where they own no file and have no
capability. Needs root, and only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_NEWUSER, _COUNT = 0x10000000, 1 << 16
_RANGES = range(8, 28_671)  # of _COUNT ids, which systemd leaves to containers. systemd.io/UIDS-GIDS
ISOLATED = (
    *("--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts", "--propagation=private", "--"),
)


def own_users(folders: Iterable[Path]) -> tuple[tuple[str, ...], str]:
    """The start of a command line, whose user then owns *folders*; or why this host does not allow it."""
    first, folders = secrets.choice(_RANGES) * _COUNT, tuple(folders)
    start = (sys.executable, "-I", "-S", __file__, str(first))
    probe = (*start, "unshare", "--mount", *ISOLATED, "test", "-w", str(folders[0]))
    for folder in folders:
        os.chown(folder, first, first)
    done = subprocess.run(probe, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    if not done.returncode:
        return start, ""
    for folder in folders:
        os.chown(folder, 0, 0)
    return (), done.stderr.strip().rpartition("\n")[2] or f"other users have no access to {folders[0]}"


def main(first: int, argv: list[str]) -> None:
    """Execute *argv* in the namespace."""
    os.get_exec_path()  # imports a module, which the other user may not be allowed to read
    parent, (wait, ready) = os.getpid(), os.pipe()
    if not os.fork():  # only a process outside of the namespace may write the maps
        os.close(ready)
        os.read(wait, 1)  # until the parent is in the namespace
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{parent}/{name}").write_text(f"0 {first} {_COUNT}")
        os._exit(0)
    failed = ctypes.CDLL(None).unshare(_NEWUSER)
    os.close(ready)
    if failed or os.wait()[1]:
        sys.exit("no user namespace can be created")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
