"""Containers whose user is not root: unknown to the image, without capabilities, on a sealed root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine.place import shared
from tests.openssh import READY, Client
from tests.workplace import Workplace, key

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base

NOBODY_KNOWS = ("--user", "12345:12345")
# What Kubernetes demands of a pod under the restricted standard; the seccomp profile is the engine's own.
RESTRICTED = (*NOBODY_KNOWS, "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
SEALED = (*RESTRICTED, "--read-only", "--tmpfs", "/tmp")

IDS = ["unknown", "restricted", "sealed", "known"]


@pytest.mark.parametrize("options", [NOBODY_KNOWS, RESTRICTED, SEALED], ids=IDS[:3])
def test_jupyter_runs_as_anybody(workplace: Workplace, options: tuple[str, ...]) -> None:
    with workplace.started(*options) as container:
        container.serves()
        assert container.inside("ps", "-o", "uid=", "-C", "jupyter-lab").split() == ["12345"]
        assert container.inside("sh", "-c", "cd /workspace && touch mine && stat -c %u mine") == "12345\n"


def test_what_is_made_in_a_bound_workspace_is_the_users(workplace: Workplace, shared: Path) -> None:
    """And not root's, whom nobody on the host could ask to delete it."""
    os.chown(shared, 12345, 12345)
    code = "import numpy; numpy.save('made.npy', numpy.arange(3))"
    ran = workplace.run(*NOBODY_KNOWS, "--volume", f"{shared}:/workspace", command=["python", "-c", code])

    assert ran.returncode == 0, ran.stderr
    found = (shared / "made.npy").stat()
    assert (found.st_uid, found.st_gid) == (12345, 12345)


@pytest.mark.parametrize("options", [NOBODY_KNOWS, RESTRICTED, SEALED, ("--user", "user")], ids=IDS)
def test_everybody_has_a_name_and_a_home(workplace: Workplace, options: tuple[str, ...]) -> None:
    """What torch.compile, git, ssh and pip ask for; and a cache that can be written."""
    code = (
        "import getpass, os, pathlib, pwd; home = pathlib.Path.home(); (home / '.cache').mkdir();"
        "print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir == str(home), os.environ['LOGNAME'])"
    )
    ran = workplace.run(
        *options, command=["sh", "-c", f'whoami; python -c "{code}"; git config --global a.b c']
    )

    assert (ran.returncode, ran.stdout) == (0, "user\nuser True user\n"), ran.stderr


@pytest.mark.parametrize("inside", [2222, 22])
def test_ssh_without_root(workplace: Workplace, tmp_path: Path, inside: int) -> None:
    """On a high port; and on 22, where the engine lets everybody listen there: `-p 2222:22` as for root."""
    private, public = key(tmp_path)
    options = (*SEALED, "--publish", f"127.0.0.1::{inside}", "-e", f"SSH_PUBLIC_KEY={public}", "-e", "MINE=1")
    with workplace.started(*options) as container:
        container.says(READY)
        container.serves()
        client = Client(container=container, key=private, inside=inside)
        done = client.ssh("whoami; id -u; echo $MINE; python -c 'import numpy'", user="user")
        assert (done.returncode, done.stdout) == (0, "user\n12345\n1\n"), done.stderr
        assert client.ssh("true", user="root").returncode == 255


def test_a_home_in_a_trap_is_not_taken(workplace: Workplace) -> None:
    """Somebody else was first in /tmp: a link where we would make our folder."""
    trap = "ln -s /workspace /tmp/home-12345; ln -s /workspace /tmp/names-12345"
    with workplace.started(command=["sh", "-c", f"{trap}; echo up; exec sleep 600"]) as container:
        container.says("up")
        ran = container.docker(
            "exec", "--user", "12345", container.name, "/opt/torchkiln/entrypoint", "sh", "-c", "echo $HOME"
        )
        assert ran.stdout == "/\n"
        assert container.inside("ls", "/workspace") == ""


def test_nobody_else_may_write_the_image(workplace: Workplace) -> None:
    """No folder or file of the image is open to a user who is not root, but those that are everybody's."""
    looked = (
        "find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/dev/*' -not -path '/tmp/*'"
    )
    ran = workplace.run(*NOBODY_KNOWS, command=["sh", "-c", f"{looked} 2>/dev/null"])

    assert set(ran.stdout.split()) <= {"/tmp", "/var/tmp", "/workspace", "/run/lock", "/var/lock"}, ran.stdout
