"""SSH into a container, with OpenSSH's client: authentication, and the environment of each session kind."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import READY, Client, sessions
from tests.engine.place import shared
from tests.engine.registry import free_port
from tests.programs import run_program
from tests.workplace import TAG, Workplace, key

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and if it is not cached, the base

MINE = 'a "word" \\ and $more'
LOOK = (
    "python -c 'import sys, numpy; print(sys.prefix)';"
    ' printf \'%s\\n\' $NVIDIA_VISIBLE_DEVICES "$MINE" "${JUPYTER_TOKEN-none}" "$USER"; which nvidia-smi'
)
DRIVER_PROGRAM = "/usr/local/nvidia/bin/nvidia-smi"  # where hosts such as GKE mount it


def expected_output(user: str) -> str:
    """The output that the command LOOK must have in a session of *user*."""
    return f"/opt/venv\nall\n{MINE}\nnone\n{user}\n{DRIVER_PROGRAM}\n"


@pytest.fixture(scope="module")
def client(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An SSH client of a container with two authorized keys; the client has the second key."""
    folder = tmp_path_factory.mktemp("keys")
    (_, first), (place, second) = key(folder), key(folder)
    environment = {
        "SSH_PUBLIC_KEY": f"{first}\n\n# a comment\n{second}",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "MINE": MINE,
        "LINES": "one\ntwo",
        "JUPYTER_TOKEN": "not-for-any-log-0123456789",
    }
    variables = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    with workplace.started("--publish", "127.0.0.1::22", *variables) as container:
        container.says(READY)
        container.inside("install", "-D", "/bin/true", DRIVER_PROGRAM)
        yield Client(container=container, key=place)


@pytest.mark.parametrize("user", ["root", "user"])
@pytest.mark.parametrize("kind", sessions(LOOK))
def test_every_kind_of_session_has_the_environment(client: Client, kind: str, user: str) -> None:
    """The image's variables and those of `-e`, but not Jupyter's token, which may be another user's."""
    command, text, terminal = sessions(LOOK)[kind]
    done = client.ssh(*command, text=text, terminal=terminal, user=user)

    assert done.returncode == 0, done.stderr
    assert expected_output(user) in done.stdout.replace("\r", ""), done.stdout


@pytest.mark.parametrize("locale", ["de_DE.UTF-8", "UTF-8"])
def test_the_clients_locale_is_harmless(client: Client, locale: str) -> None:
    """The image does not have the locales that clients send. UTF-8 is the LC_CTYPE of macOS."""
    names = ("LC_ALL", "LC_CTYPE", "LC_TIME", "LC_NUMERIC", "LANG")
    argv = ["ssh", *client.options(SendEnv="LANG LC_*"), "root@127.0.0.1"]
    code = 'import locale; print(locale.setlocale(locale.LC_ALL, ""))'
    done = run_program(
        [*argv, f"perl -e 'print 1'; python -c '{code}'"], env=os.environ | dict.fromkeys(names, locale)
    )

    assert (done.stdout, done.stderr) == ("1C.UTF-8\n", "")


def test_the_containers_locale_is_kept(workplace: Workplace, tmp_path: Path) -> None:
    """It selects the language of messages."""
    private, public = key(tmp_path)
    options = ("-e", "LC_ALL=zh_CN.UTF-8", "-e", f"SSH_PUBLIC_KEY={public}")
    with workplace.started("--publish", "127.0.0.1::22", *options) as container:
        container.says(READY)
        found = Client(container=container, key=private).ssh("doctor")

    assert "镜像" in found.stdout


def test_other_users_cannot_read_the_variables_of_sessions(client: Client) -> None:
    """Variables contain secrets such as HF_TOKEN."""
    readable = "find / -xdev -type f -readable -newer /etc/hostname 2>/dev/null | xargs grep -lF 'and $more'"
    found = client.ssh(f"{readable} || true", user="user").stdout.split()

    assert found == []
    assert client.ssh(f"{readable} || true").stdout.split() == ["/run/torchkiln/sshd_config"]


@pytest.mark.parametrize("user", ["root", "user"])
def test_doctor_is_a_command(client: Client, user: str) -> None:
    over_ssh = client.ssh("doctor --json", user=user)
    by_exec = client.container.docker("exec", client.container.name, "doctor", "--json", check=False)

    assert json.loads(over_ssh.stdout)["image"] == TAG
    assert json.loads(by_exec.stdout)["image"] == TAG


def test_help_is_a_command(client: Client) -> None:
    """In bash, `help` is bash's own; `env help` is the image's."""
    help_of_image = client.container.inside("help")

    assert "JUPYTER_TOKEN" in help_of_image
    assert client.ssh("env help").stdout == help_of_image
    assert client.ssh("help cd").stdout.startswith("cd: cd ")


def test_files_are_copied_in_both_directions(client: Client, tmp_path: Path) -> None:
    """scp, which uses the SFTP protocol, and sftp copy files into the container and back."""
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(bytes(range(256)) * 1000)
    argv = ["scp", *client.options(), str(sent), "root@127.0.0.1:/workspace/there"]
    subprocess.run(argv, check=True, capture_output=True)

    batch = f"get /workspace/there {shlex.quote(str(back))}\n"
    argv = ["sftp", *client.options(), "-b", "-", "root@127.0.0.1"]
    run_program(argv, check=True, input=batch)
    assert back.read_bytes() == sent.read_bytes()


def test_a_port_is_forwarded(client: Client) -> None:
    """With a forwarded port, Jupyter's port need not be published. Jupyter starts after sshd."""
    client.container.serves()
    port = free_port()
    command = f"curl --silent --noproxy '*' http://127.0.0.1:{port}/api"
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
        environment = run_program(["bash", "-c", command])
        tunnel.kill()
    assert '"version"' in environment.stdout


def test_tmux_outlives_a_dropped_connection(client: Client) -> None:
    """A tmux session, like `nohup python train.py &`, continues when the SSH connection breaks."""
    assert client.ssh("tmux new-session -d -s work 'sleep 600'").returncode == 0
    assert "work:" in client.ssh("tmux ls").stdout
    assert client.ssh("nohup sleep 600 >/dev/null 2>&1 & echo $!").returncode == 0
    assert client.container.inside("pgrep", "-c", "-x", "sleep").strip() == "2"


@pytest.mark.parametrize("how", ["another key", "a password", "keyboard"])
def test_others_cannot_log_in(client: Client, tmp_path: Path, how: str) -> None:
    unknown_key = Client(container=client.container, key=key(tmp_path)[0])
    only = {"a password": "password", "keyboard": "keyboard-interactive"}.get(how)
    more = {"PreferredAuthentications": only, "PubkeyAuthentication": "no"} if only else {}
    done = unknown_key.ssh("true", **more)

    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_each_container_has_its_own_host_keys(client: Client, workplace: Workplace, tmp_path: Path) -> None:
    """Two containers have different host keys, because no layer of the image contains host keys."""
    names = "find / -xdev -name 'ssh_host_*' 2>/dev/null"
    assert workplace.run(command=["sh", "-c", names]).stdout == ""

    with workplace.started("-e", f"SSH_PUBLIC_KEY={key(tmp_path)[1]}") as second:
        second.says(READY)
        shown = ("cat", "/etc/ssh/host_keys/ssh_host_ed25519_key.pub")
        assert second.inside(*shown) != client.container.inside(*shown)


def test_the_printed_fingerprint_matches_the_host_key(client: Client, tmp_path: Path) -> None:
    scanned = tmp_path / "scanned"
    argv = ["ssh-keyscan", "-t", "ed25519", "-p", str(client.container.port(22)), "127.0.0.1"]
    scanned.write_bytes(subprocess.run(argv, capture_output=True, check=True).stdout)
    environment = run_program(["ssh-keygen", "-l", "-f", scanned], check=True)

    assert client.container.says(r"host key (SHA256:\S+)")[1] in environment.stdout


@pytest.mark.parametrize(
    "place", ["/etc/ssh/authorized_keys", "/root/.ssh/authorized_keys", "/home/user/.ssh/authorized_keys"]
)
def test_a_mounted_file_of_keys(workplace: Workplace, tmp_path: Path, shared: Path, place: str) -> None:
    """It may have any owner and mode on the host, although sshd itself would ignore such a file."""
    private, public = key(tmp_path)
    keys = shared / "keys"
    keys.write_text(public + "\n")
    keys.chmod(0o666)
    os.chown(keys, 4711, 4711)
    lets_in = {"/etc/ssh/authorized_keys": {"root", "user"}, "/root/.ssh/authorized_keys": {"root"}}
    with workplace.started("--publish", "127.0.0.1::22", "--volume", f"{keys}:{place}:ro") as container:
        container.says(READY)
        found = Client(container=container, key=private)
        got_in = {user for user in ("root", "user") if found.ssh("true", user=user).returncode == 0}

    assert got_in == lets_in.get(place, {"user"})


def test_sudo_is_an_option(client: Client, workplace: Workplace, tmp_path: Path) -> None:
    """sudo works only if the container was started with this option. It then finds the image's Python."""
    refused = client.ssh("sudo -n id -u", user="user")
    assert (refused.returncode != 0, refused.stdout) == (True, "")

    private, public = key(tmp_path)
    options = ("-e", "TORCHKILN_SUDO=yes", "-e", f"SSH_PUBLIC_KEY={public}")
    with workplace.started("--publish", "127.0.0.1::22", *options) as container:
        container.says(READY)
        found = Client(container=container, key=private)
        command = "sudo -n id -u; sudo -n python -c 'import sys; print(sys.prefix)'"
        assert found.ssh(command, user="user").stdout == "0\n/opt/venv\n"
