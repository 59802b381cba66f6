"""The first process in the engine's namespaces (mount, pid, cgroup): prepares the root, executes the daemon.

`python inside.py ROOT PLACE DAEMON ...`; PLACE is mounted on /srv, and PLACE/etc over the root's /etc.
These mounts are invisible outside, and end with this process.
"""

import os
import subprocess
import sys
from pathlib import Path

_PRESERVED = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def main(root: str, place: str, *daemon: str) -> None:
    mount("--bind", root, root)
    os.chdir(root)
    for kernel in ("dev", "sys"):
        mount("--rbind", f"/{kernel}", kernel)
    mount("-t", "proc", "proc", "proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "run")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "tmp")
    mount("--bind", place, "srv")
    for file in Path(place, "etc").rglob("*"):
        if file.is_file():
            mount("--bind", str(file), str(Path("etc") / file.relative_to(Path(place, "etc"))))
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        own_cgroups()
    Path("run/old").mkdir()
    subprocess.run(["pivot_root", ".", "run/old"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "-l", "/run/old"], check=True)
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    environ |= {name: os.environ[name] for name in _PRESERVED if name in os.environ}
    os.execvpe("tini-static", ["tini-static", "--", *daemon], environ)


def own_cgroups() -> None:
    """Mount cgroup v1 again in the new namespace, so that containers stay below the caller's cgroups."""
    subprocess.run(["umount", "-l", "sys/fs/cgroup"], check=True)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        controllers = line.split(":")[1]
        if controllers:
            folder = Path("sys/fs/cgroup", controllers.removeprefix("name="))
            options = f"none,{controllers}" if controllers.startswith("name=") else controllers
            folder.mkdir()
            if subprocess.run(["mount", "-t", "cgroup", "-o", options, "cgroup", str(folder)]).returncode:
                folder.rmdir()


if __name__ == "__main__":
    main(*sys.argv[1:])
