"""Starts an untrusted command, which may start others, in an unpacked image. A separate program.

    python -I -S -c "import enclosed; enclosed.main()"    with the folder of this file on sys.path

The spec is JSON on stdin; the command's stdin is empty. All namespaces are new, so the command has no
network, and sees no process and no file of the host. It sees the image and the bound folders, which are
read-only. What it writes is in memory, in a file system of limited size, and is discarded. It runs as the
user nobody, without capabilities, and cannot make user namespaces; a seccomp filter and resource limits
apply. An error before the command starts goes to stderr, with exit code 125.
"""

from __future__ import annotations

import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from torchkiln.runtimes import enter
else:
    import enter  # this is a program: its folder is on sys.path, not the package


def main() -> NoReturn:
    """Prepare, run the command as process 1 of a namespace, and exit with its code."""
    spec = json.load(sys.stdin)
    os.get_exec_path()  # imports a module, which is impossible after the root has changed
    try:
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        enter.die_with_parent()
        private_user = os.geteuid() != 0
        enter.unshare(private_user)
        enter.call("unshare", enter.NEWNET | enter.NEWCGROUP)
        child = os.fork()
        if child == 0:
            enter.die_with_parent()
            _prepare(spec, private_user)
            enter.set_limits(spec["limits"])
            _become_nobody(private_user)
            enter.install_filter(spec["filter"])
            os.execve(spec["argv"][0], spec["argv"], spec["env"])
    except (OSError, ValueError) as error:
        os.write(2, f"{error}\n".encode())
        os._exit(125)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, enter.SIGKILL))
    enter.exit_as(child)


def _prepare(spec: dict[str, Any], private_user: bool) -> None:
    """Make the image the root; written files go to memory, into a file system of limited size."""
    enter.mount(None, "/", None, enter.REC | enter.PRIVATE)
    options = f"mode=755,size={spec['space']}"
    enter.mount("tmpfs", spec["scratch"], "tmpfs", enter.NOSUID | enter.NODEV, options)
    enter.prepare(
        {
            "root": spec["root"],
            "nodes": [],
            "libraries": [],
            "tools": [],
            "binds": [(source, target, False) for source, target in spec["binds"]],
            "scratch": spec["scratch"],
            "scratch_is_ours": True,  # the tmpfs above
            "files": {},
            "shm_size": spec["space"],
            "hostname": "sandbox",
            "env": {},
        },
        private_user,
    )
    enter.mount("tmpfs", "/sys", "tmpfs", enter.RDONLY, "mode=555,size=4k")  # hides the host's /sys
    os.makedirs(spec["workdir"], mode=0o1777, exist_ok=True)
    os.chmod(spec["workdir"], 0o1777)
    os.chdir(spec["workdir"])
    os.umask(0o022)


def _become_nobody(private_user: bool) -> None:
    """Become the user nobody, without capabilities and unable to gain any."""
    if private_user:
        enter.call("unshare", enter.NEWUSER)
        enter.map_ids(f"{enter.NOBODY} 0 1", f"{enter.NOBODY} 0 1")
    enter.drop_privileges(private_user)
