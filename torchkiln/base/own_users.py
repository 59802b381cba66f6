"""Starts a program as root of a user namespace, whose users exist nowhere else. Uses only the standard library.

    python -I -S own_users.py FIRST COMMAND...

The ids from 0 in the namespace are those from FIRST on the host, where they own no file and have no
capability. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import sys

_NEWUSER, _COUNT = 0x10000000, 65536


def main(first: int, argv: list[str]) -> None:
    """Execute *argv* in the namespace."""
    os.get_exec_path()  # imports a module, which the other user may not be allowed to read
    parent, (wait, ready), (mapped, done) = os.getpid(), os.pipe(), os.pipe()
    if not os.fork():  # only a process outside of the namespace may write the maps
        os.close(ready)
        os.read(wait, 1)  # until the parent closes it
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{parent}/{name}", "w") as file:
                file.write(f"0 {first} {_COUNT}")
        os.write(done, b"1")
        os._exit(0)
    os.close(done)
    if ctypes.CDLL(None).unshare(_NEWUSER):
        sys.exit("this host does not allow user namespaces")
    os.close(ready)
    if not os.read(mapped, 1):
        sys.exit("the ids of a user namespace cannot be set")
    os.wait()
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
