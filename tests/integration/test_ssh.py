"""SSH into a container, by OpenSSH's own client: who gets in, and what each kind of session finds there."""

from __future__ import annotations

import shlex
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workplace import Container, Workplace, key

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base

READY = r"Server listening on 0\.0\.0\.0 port (\d+)"
LOOK = "python -c 'import sys, numpy; print(sys.prefix)'; echo $NVIDIA_VISIBLE_DEVICES $MINE"
SEEN = "/opt/venv\nall\n"


@dataclass(frozen=True, kw_only=True)
class Client:
    """OpenSSH's, which knows one key."""

    container: Container
    key: Path

    def options(self, **more: str) -> list[str]:
        """For ssh, scp and sftp; nothing of this machine's user."""
        told = {
            "IdentityFile": str(self.key),
            "IdentitiesOnly": "yes",
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "Port": str(self.container.port(22)),
        }
        return [
            "-F",
            "none",
            *(word for name, value in (told | more).items() for word in ("-o", f"{name}={value}")),
        ]

    def ssh(
        self, *command: str, text: str = "", terminal: bool = False, user: str = "root", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """One session, to its end."""
        flags = ["-tt"] if terminal else []
        argv = ["ssh", *flags, *self.options(**more), f"{user}@127.0.0.1", *command]
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def client(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Into a container that was given two keys; the client has the second."""
    folder = tmp_path_factory.mktemp("keys")
    (_, first), (place, second) = key(folder), key(folder)
    variables = ("-e", f"SSH_PUBLIC_KEY={first}\n{second}", "-e", "NVIDIA_VISIBLE_DEVICES=all")
    with workplace.started("--publish", "127.0.0.1::22", *variables) as container:
        container.says(READY)
        yield Client(container=container, key=place)


def sessions() -> Mapping[str, tuple[list[str], str, bool]]:
    """Each kind: the command, the input, whether there is a terminal."""
    return {
        "login": ([], f"stty -echo; PS1=; {LOOK}; exit\n", True),
        "interactive": (["bash", "-i"], f"stty -echo; PS1=; {LOOK}; exit\n", True),
        "command": ([LOOK], "", False),
        "a shell that a tool starts": (["sh"], LOOK + "\n", False),
        "a bash that a tool starts": (["bash", "--noprofile", "--norc"], LOOK + "\n", False),
    }


@pytest.mark.parametrize("kind", sessions())
def test_every_kind_of_session_has_the_environment(client: Client, kind: str) -> None:
    command, text, terminal = sessions()[kind]
    done = client.ssh(*command, text=text, terminal=terminal)

    assert done.returncode == 0, done.stderr
    assert SEEN in done.stdout.replace("\r", ""), done.stdout


def test_files_go_both_ways(client: Client, tmp_path: Path) -> None:
    """By scp, which speaks sftp, and by sftp itself."""
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(bytes(range(256)) * 1000)
    argv = ["scp", *client.options(), str(sent), "root@127.0.0.1:/workspace/there"]
    subprocess.run(argv, check=True, capture_output=True)

    batch = f"get /workspace/there {shlex.quote(str(back))}\n"
    argv = ["sftp", *client.options(), "-b", "-", "root@127.0.0.1"]
    subprocess.run(argv, check=True, capture_output=True, input=batch, text=True)
    assert back.read_bytes() == sent.read_bytes()


def test_a_port_is_forwarded(client: Client) -> None:
    """To Jupyter, which then need not be published."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    asked = f"curl --silent --noproxy '*' http://127.0.0.1:{port}/api"
    argv = [
        "ssh",
        *client.options(ExitOnForwardFailure="yes"),
        "-L",
        f"{port}:127.0.0.1:8888",
        "root@127.0.0.1",
        "cat",
    ]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tunnel:
        assert tunnel.stdin
        assert tunnel.stdout
        tunnel.stdin.write(b"up\n")
        tunnel.stdin.flush()
        assert tunnel.stdout.readline() == b"up\n"
        told = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=False)
        tunnel.kill()
    assert '"version"' in told.stdout


def test_tmux_outlives_a_dropped_connection(client: Client) -> None:
    """As `nohup python train.py &` does."""
    assert client.ssh("tmux new-session -d -s work 'sleep 600'").returncode == 0
    assert "work:" in client.ssh("tmux ls").stdout
    assert client.ssh("nohup sleep 600 >/dev/null 2>&1 & echo $!").returncode == 0
    assert client.container.inside("pgrep", "-c", "-x", "sleep").strip() == "2"


@pytest.mark.parametrize("how", ["another key", "a password", "keyboard"])
def test_nobody_else_gets_in(client: Client, tmp_path: Path, how: str) -> None:
    stranger = Client(container=client.container, key=key(tmp_path)[0])
    only = {"a password": "password", "keyboard": "keyboard-interactive"}.get(how)
    more = {"PreferredAuthentications": only, "PubkeyAuthentication": "no"} if only else {}
    done = stranger.ssh("true", **more)

    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_host_keys_are_each_containers_own(client: Client, workplace: Workplace, tmp_path: Path) -> None:
    """None lies in a layer."""
    names = "ls /etc/ssh | grep -c '^ssh_host_' || true"
    assert workplace.run(command=["sh", "-c", names]).stdout == "0\n"

    with workplace.started("-e", f"SSH_PUBLIC_KEY={key(tmp_path)[1]}") as other:
        other.says(READY)
        shown = ("cat", "/etc/ssh/ssh_host_ed25519_key.pub")
        assert other.inside(*shown) != client.container.inside(*shown)


def test_without_a_key_there_is_no_ssh(workplace: Workplace) -> None:
    with workplace.started() as container:
        container.says("SSH: off")
        container.says("is running at")
        assert "sshd" not in container.inside("ps", "-eo", "args=")
