"""Who may edit what in /workspace: what one person in a container writes, the others can edit.

The people: JupyterLab's file browser and terminal, SSH as `user` and as root, and `docker exec`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from websockets.sync.client import ClientConnection, connect

from tests.clients import READY, Client
from tests.engine.place import shared
from tests.workplace import Container, Workplace, key

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and if it is not cached, the base

PORTS = ("--publish", "127.0.0.1::8888", "--publish", "127.0.0.1::22")
READ_ONLY = ("--read-only", "--tmpfs", "/run", "--tmpfs", "/tmp:exec", "--tmpfs", "/root")
EVERYONE = ("lab", "terminal", "ssh user", "ssh root", "exec")
DIRECT = {"http": ""}
# Mounted folder: its owner on the host; options; who works in the container.
CASES: dict[str, tuple[int | None, tuple[str, ...], tuple[str, ...]]] = {
    "made by Docker": (None, (), EVERYONE),
    "uid 1000": (1000, (), EVERYONE),
    "uid 1234": (1234, (), EVERYONE),
    "a named volume": (None, (), EVERYONE),
    "--user": (54321, ("--user", "54321:54321"), ("lab", "terminal", "ssh user", "exec")),
    "read-only": (1234, READ_ONLY, EVERYONE),
    "read-only, made by Docker": (None, READ_ONLY, EVERYONE),
}


@dataclass(frozen=True)
class Work:
    """A container, and how each of its people appends a line to a file."""

    container: Container
    client: Client
    token: str
    terminal: ClientConnection

    def appends(self, person: str, path: str, line: str) -> None:
        """Append *line* to *path*, a file in /workspace, or create it."""
        command = f"echo {line} >>/workspace/{path}"
        ways: Mapping[str, Callable[[], object]] = {
            "lab": lambda: self._edit(path, line),
            "terminal": lambda: self._type(command),
            "exec": lambda: self.container.docker(
                "exec", self.container.name, "sh", "-c", command, check=False
            ),
        }
        if person in ways:
            ways[person]()
        else:
            self.client.ssh(command, user=person.removeprefix("ssh "))

    def _edit(self, path: str, line: str) -> None:
        """As JupyterLab's editor does: load the file, and save it."""
        url = f"http://127.0.0.1:{self.container.port(8888)}/api/contents/{path}"
        headers = {"Authorization": f"token {self.token}"}
        found = requests.get(url, headers=headers, timeout=300, proxies=DIRECT)
        text = found.json()["content"] if found.status_code == 200 else ""
        body = {"type": "file", "format": "text", "content": f"{text}{line}\n"}
        requests.put(url, json=body, headers=headers, timeout=300, proxies=DIRECT)

    def _type(self, command: str) -> None:
        """In the one terminal, which is slow to start."""
        self.terminal.send(json.dumps(["stdin", f"{command}; echo done-$((40 + 2))\r"]))
        screen = ""
        while "done-42" not in screen:
            kind, *more = json.loads(self.terminal.recv(timeout=300))
            screen += more[0] if kind == "stdout" else ""


@contextmanager
def at_work(workplace: Workplace, folder: Path, *options: str) -> Iterator[Work]:
    """A container that serves JupyterLab and SSH."""
    private, public = key(folder)
    with workplace.started(*PORTS, *options, "-e", f"SSH_PUBLIC_KEY={public}") as container:
        token = container.says(r"token=(\w{32,})")[1]
        container.says(READY)
        container.serves()
        base, headers = f"127.0.0.1:{container.port(8888)}", {"Authorization": f"token {token}"}
        made = requests.post(f"http://{base}/api/terminals", headers=headers, timeout=300, proxies=DIRECT)
        url = f"ws://{base}/terminals/websocket/{made.json()['name']}"
        with connect(url, additional_headers=headers, proxy=None, open_timeout=300) as terminal:
            yield Work(container, Client(container=container, key=private), token, terminal)


@pytest.mark.parametrize("case", CASES)
def test_what_one_writes_the_others_can_edit(
    workplace: Workplace, shared: Path, tmp_path: Path, case: str
) -> None:
    """In the workspace itself, in a folder that one of them made, and in one that was there before."""
    owner, options, people = CASES[case]
    volume = f"work-{tmp_path.name}-{os.getpid()}" if case == "a named volume" else ""
    folders = ["", "made/"]
    if owner is not None:
        (shared / "work/before").mkdir(parents=True)
        for folder in (shared / "work", shared / "work/before"):
            os.chown(folder, owner, owner)
        folders.append("before/")
    found = {}
    try:
        with at_work(
            workplace, tmp_path, *options, "--volume", f"{volume or shared / 'work'}:/workspace"
        ) as work:
            # With a sticky bit, fs.protected_regular can refuse root and `user` the files of each other.
            assert work.container.inside("find", "/workspace", "-maxdepth", "0", "-perm", "-1000") == ""
            work.container.inside("mkdir", "/workspace/made")
            for path in [f"{folder}{at}" for folder in folders for at in range(len(people))]:
                writer = int(path[-1])
                for person in (*people[writer:], *people[:writer]):
                    work.appends(person, path, person)
                found[path] = work.container.inside("cat", f"/workspace/{path}").splitlines()
    finally:
        if volume:
            argv = ["docker", "volume", "rm", volume]
            subprocess.run(argv, env=dict(workplace.environ), capture_output=True, check=False)

    assert found == {path: [*people[int(path[-1]) :], *people[: int(path[-1])]] for path in found}
    assert len(found) == len(folders) * len(people)


def test_git_works_in_a_repository_of_another_uid(workplace: Workplace, shared: Path, tmp_path: Path) -> None:
    """git calls such a repository dubious, and then does nothing in it."""
    (shared / "work").mkdir()
    os.chown(shared / "work", 1000, 1000)
    with at_work(workplace, tmp_path, "--volume", f"{shared / 'work'}:/workspace") as work:
        work.container.inside("git", "init", "--quiet", "--initial-branch=main", "/workspace/repository")
        work.container.inside("chown", "-R", "4711:4711", "/workspace/repository")
        look = "git -C /workspace/repository status --short --branch"
        over_ssh = work.client.ssh(look, user="user")
        by_exec = work.container.docker("exec", work.container.name, *look.split(), check=False)

    assert (over_ssh.stdout, over_ssh.stderr) == ("## No commits yet on main\n", "")
    assert (by_exec.stdout, by_exec.stderr) == ("## No commits yet on main\n", "")


def test_jupyter_as_root(workplace: Workplace, shared: Path, tmp_path: Path) -> None:
    """If a setting asks for it; `user` can edit its files all the same."""
    (shared / "work").mkdir()
    os.chown(shared / "work", 1234, 1234)
    mounted = ("--volume", f"{shared / 'work'}:/workspace", "-e", "JUPYTER_USER=root")
    with at_work(workplace, tmp_path, *mounted) as work:
        work.appends("lab", "made", "one")
        work.appends("ssh user", "made", "two")

    assert (shared / "work/made").stat().st_uid == 0
    assert (shared / "work/made").read_text() == "one\ntwo\n"


def test_a_folder_of_root_with_files_is_left_alone(
    workplace: Workplace, shared: Path, tmp_path: Path
) -> None:
    """It can be any folder of the host. JupyterLab runs as root there, and the log says why."""
    (shared / "work").mkdir()
    (shared / "work/file").touch()
    before = (shared / "work").stat()
    with at_work(workplace, tmp_path, "--volume", f"{shared / 'work'}:/workspace") as work:
        work.container.says("JupyterLab runs as root, because `user` does not own /workspace")
        work.appends("lab", "file", "one")
    after = (shared / "work").stat()

    assert (after.st_uid, after.st_mode) == (0, before.st_mode)
    assert os.listxattr(shared / "work") == []
    assert (shared / "work/file").read_text() == "one\n"
