"""Containers: start and stop, other users, and installs by pip and uv."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.clients import READY, Client
from tests.engine.place import shared
from tests.needs import nightly, outward
from tests.workplace import TAG, Workplace, key
from torchkiln.util.places import ROOTFS

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and if it is not cached, the base

KEEP = ("sh", "-c", "echo up; exec sleep 600")


def test_a_command_replaces_the_services(workplace: Workplace) -> None:
    ran = workplace.run("-e", "MINE=1", command=["sh", "-c", "echo $MINE $VIRTUAL_ENV; pwd; exit 42"])

    assert (ran.returncode, ran.stdout) == (42, "1 /opt/venv\n/workspace\n")
    assert "Jupyter" not in ran.stderr


@pytest.mark.parametrize(("command", "code"), [("nowhere", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_run_has_the_shells_exit_code(
    workplace: Workplace, command: str, code: int
) -> None:
    ran = workplace.run(command=[command])

    assert ran.returncode == code
    assert command in ran.stderr


def test_a_signal_reaches_the_command(workplace: Workplace) -> None:
    """The command's exit code is the container's."""
    loop = "trap 'echo stopping; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    with workplace.started(command=["bash", "-c", loop]) as container:
        container.says("up")
        container.docker("stop", "--time", "20", container.name)

        assert container.code() == 7
        assert "stopping" in container.logs()


def test_orphans_are_reaped(workplace: Workplace) -> None:
    """PID 1 is tini, so orphaned child processes do not become zombies."""
    with workplace.started(command=KEEP) as container:
        container.says("up")
        container.inside("sh", "-c", "(sleep 0 & exec sleep 0.2) & exit 0")
        end = time.monotonic() + 300
        while "Z" in container.inside("ps", "-eo", "stat="):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert container.inside("ps", "-p", "1", "-o", "comm=") == "tini\n"


def test_services_stop_on_request(workplace: Workplace, tmp_path: Path) -> None:
    """All services end with exit code 0 within two seconds, before the engine would kill them."""
    options = ("-e", f"SSH_PUBLIC_KEY={key(tmp_path)[1]}", "-e", "TENSORBOARD_LOGDIR=/workspace")
    with workplace.started(*options) as container:
        container.says("is running at")
        container.says(READY)
        container.docker("stop", "--time", "2", container.name)

        assert container.code() == 0
        assert "error" not in container.logs().lower()


def test_a_service_that_dies_is_restarted(workplace: Workplace) -> None:
    """It gets the same token. After three exits in a minute, the container ends with its exit code."""
    kill = ("pkill", "-KILL", "-f", "jupyter-lab")
    with workplace.started() as container:
        for times in range(1, 3):
            container.says(rf"(?s)(is running at.*){{{times}}}")
            container.inside(*kill)
            container.says(rf"(?s)(jupyter was killed by SIGKILL.*restarting it.*){{{times}}}")
        container.says(r"(?s)(is running at.*){3}")
        tokens = set(re.findall(r"token=(\w{32,})", container.logs()))
        assert len(tokens) == 1
        container.inside(*kill)

        assert container.code() == 137
        assert "3 times within 60 s: the container exits" in container.logs()


def test_the_start_prints_its_findings(workplace: Workplace) -> None:
    """The log has the URL, the login, facts about the machine, and warnings with a remedy."""
    with workplace.started("--memory", "900m", "--shm-size", "64m") as container:
        for expected in (
            rf"torchkiln: {TAG}: torch 2\.6\.0\+cu124",
            r"Jupyter: http://127\.0\.0\.1:8888/lab\?token=\w{32,}",
            r"SSH: off: no public key \(-e SSH_PUBLIC_KEY=",
            r"GPUs: none",
            r"900 MiB of memory \(limited\), /dev/shm 64 MiB; uid 0 can write to /workspace, /root, /tmp",
            r"warning: no GPU was passed to this container: add --gpus all",
            r"warning: /dev/shm has 64 MiB.*--shm-size=8g",
        ):
            container.says(expected)


def test_a_read_only_root_is_enough(workplace: Workplace) -> None:
    """The container needs only a tmpfs for each folder to which services write."""
    with workplace.started(
        "--read-only", "--tmpfs", "/run", "--tmpfs", "/tmp", "--tmpfs", "/root"
    ) as container:
        container.serves()


REFUSED = "torchkiln: this image keeps numpy=="
FREE = ("-e", "PIP_CONSTRAINT=", "-e", "UV_CONSTRAINT=")
PROGRAMS = {"pip": ["pip", "install", "--dry-run"], "uv": ["uv", "pip", "install", "--dry-run"]}


@pytest.fixture
def options(workplace: Workplace, shared: Path) -> list[str]:
    """Options for network access, and a constraint on numpy in place of torch, which the slim image lacks."""
    ran = workplace.run(command=["python", "-c", "import numpy; print(numpy.__version__)"])
    (shared / "constraints.txt").write_text(f"numpy=={ran.stdout.strip()}\n")
    return [*outward(shared), "--volume", f"{shared / 'constraints.txt'}:/etc/torchkiln/constraints.txt:ro"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_tested_packages_are_not_replaced(workplace: Workplace, options: list[str], program: str) -> None:
    """pip and uv refuse another version of a tested package. The command in their message works."""
    command = [*PROGRAMS[program], "numpy==2.3.0"]
    refused = workplace.run(*options, command=command)
    assert refused.returncode != 0
    assert REFUSED in refused.stderr
    assert f"PIP_CONSTRAINT= UV_CONSTRAINT= {' '.join(command[:-2])} ..." in refused.stderr
    assert len([line for line in refused.stderr.splitlines() if "torchkiln" in line]) == 1

    free = workplace.run(*options, *FREE, command=command)
    assert free.returncode == 0, free.stderr
    assert "2.3.0" in free.stdout + free.stderr


KEPT = "torchkiln: this image keeps torch==2.6.0 (/etc/torchkiln/constraints.txt), because "


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("pip install --dry-run torch==2.5.0", KEPT),
        ("pip install --dry-run torch==2.6.0+cu118", KEPT),
        ("pip install --dry-run torch==2.6.0+cu124", "torchkiln: this image already has torch==2.6.0+cu124"),
        (
            "uv pip install --dry-run torch==2.6.0+cu124",
            "torchkiln: this image already has torch==2.6.0+cu124",
        ),
        ("pip install --dry-run torchvision==0.20.0", KEPT),  # it needs torch 2.5.0
        ("uv pip install --dry-run torchvision==0.20.0", KEPT),
        ("uv add torch==2.5.0", KEPT),
        ("pip install --dry-run no-such-package-of-torchkiln", ""),
        ("uv pip install --dry-run no-such-package-of-torchkiln", ""),
        ("uv add no-such-package-of-torchkiln", ""),
        ("pip install --dry-run torch==2.6.0 no-such-package-of-torchkiln", ""),
    ],
)
def test_the_guard_speaks_only_of_its_own_refusals(
    workplace: Workplace, shared: Path, command: str, expected: str
) -> None:
    """One line: what the image keeps, why, and what to do."""
    (shared / "constraints.txt").write_text("# a comment\ntorch==2.6.0\nnumpy<3\n")
    (shared / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\n'
    )
    mounted = [f"{shared}:/workspace", f"{shared / 'constraints.txt'}:/etc/torchkiln/constraints.txt:ro"]
    options = [*outward(shared), *(word for volume in mounted for word in ("--volume", volume))]
    ran = workplace.run(*options, command=command.split())
    spoken = [line for line in ran.stderr.splitlines() if "torchkiln:" in line]

    assert ran.returncode != 0
    assert [line[: len(expected)] for line in spoken] == ([expected] if expected else []), ran.stderr


@nightly
def test_the_advice_does_not_change_the_image(workplace: Workplace, options: list[str]) -> None:
    """The other version is installed in a separate environment; the image's environment does not change."""
    advice = "python -m venv ~/other && PIP_CONSTRAINT= ~/other/bin/pip install"
    assert f"{advice} ...;" in (ROOTFS / "opt/torchkiln/guard").read_text()
    other = f"{advice} -q numpy==2.3.0"
    shown = "-c 'import numpy; print(numpy.__version__)'"
    ran = workplace.run(
        *options, command=["sh", "-c", f"{other} && ~/other/bin/python {shown}; python {shown}"]
    )

    new_version, ours = ran.stdout.split()
    assert (new_version, ours != new_version) == ("2.3.0", True)


def test_an_interactive_shell_explains_it_too(workplace: Workplace, options: list[str]) -> None:
    """pip in `bash -i` prints the same explanation, and installs a package that needs no tested package."""
    installed = "pip install -q iniconfig; python -c 'import iniconfig'; exit $?"
    lines = f"pip install -q numpy==2.3.0; echo code $?; {installed}\n"
    with workplace.started(*options, command=["sleep", "600"]) as container:
        done = container.docker(
            "exec", "--interactive", container.name, "bash", "-i", text=lines, check=False
        )

    assert (done.returncode, "code 1\n" in done.stdout) == (0, True), done.stderr
    assert done.stderr.count(REFUSED) == 1


def test_a_user_without_write_access_installs_into_the_user_site(
    workplace: Workplace, options: list[str]
) -> None:
    """Programs of the user site are on PATH. Its packages cannot shadow packages of the image."""
    shown = "python -c 'import tabulate; print(tabulate.__file__)'"
    script = (
        f"pip install -q tabulate && command -v tabulate && {shown};"
        "pip install -q --force-reinstall --no-deps pygments || echo refused"
    )
    ran = workplace.run(*options, "--user", "12345:12345", command=["sh", "-c", script])

    assert ran.stdout.splitlines() == [
        "/tmp/home-12345/.local/bin/tabulate",
        "/tmp/home-12345/.local/lib/python3.11/site-packages/tabulate/__init__.py",
        "refused",
    ], ran.stderr


UNKNOWN_USER = ("--user", "12345:12345")
# Options for the "restricted" pod security standard of Kubernetes, with the engine's seccomp profile.
RESTRICTED = (*UNKNOWN_USER, "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
SEALED = (*RESTRICTED, "--read-only", "--tmpfs", "/tmp")

IDS = ["unknown", "restricted", "sealed", "known"]


@pytest.mark.parametrize(
    "options",
    [pytest.param(UNKNOWN_USER, marks=nightly), pytest.param(RESTRICTED, marks=nightly), SEALED],
    ids=IDS[:3],
)
def test_jupyter_runs_as_any_user(workplace: Workplace, options: tuple[str, ...]) -> None:
    with workplace.started(*options) as container:
        container.serves()
        assert container.inside("ps", "-o", "uid=", "-C", "jupyter-lab").split() == ["12345"]
        assert container.inside("sh", "-c", "cd /workspace && touch mine && stat -c %u mine") == "12345\n"


def test_files_in_a_bound_workspace_belong_to_the_user(workplace: Workplace, shared: Path) -> None:
    """They do not belong to root, because the user could not delete them."""
    os.chown(shared, 12345, 12345)
    code = "import numpy; numpy.save('made.npy', numpy.arange(3))"
    ran = workplace.run(*UNKNOWN_USER, "--volume", f"{shared}:/workspace", command=["python", "-c", code])

    assert ran.returncode == 0, ran.stderr
    found = (shared / "made.npy").stat()
    assert (found.st_uid, found.st_gid) == (12345, 12345)


@pytest.mark.parametrize("options", [UNKNOWN_USER, RESTRICTED, SEALED, ("--user", "user")], ids=IDS)
def test_every_user_has_a_name_and_a_home(workplace: Workplace, options: tuple[str, ...]) -> None:
    """torch.compile, git, ssh and pip require name and home. The cache folder is writable."""
    code = (
        "import getpass, os, pathlib, pwd; home = pathlib.Path.home(); (home / '.cache').mkdir();"
        "print(getpass.getuser(), pwd.getpwuid(os.getuid()).pw_dir == str(home), os.environ['LOGNAME'])"
    )
    ran = workplace.run(
        *options, command=["sh", "-c", f'whoami; python -c "{code}"; git config --global a.b c']
    )

    assert (ran.returncode, ran.stdout) == (0, "user\nuser True user\n"), ran.stderr


@pytest.mark.parametrize("inside", [pytest.param(2222, marks=nightly), 22])
def test_ssh_without_root(workplace: Workplace, tmp_path: Path, inside: int) -> None:
    """sshd listens on a high port, or on port 22 (`-p 2222:22`) if the engine allows this for all users."""
    private, public = key(tmp_path)
    options = (*SEALED, "--publish", f"127.0.0.1::{inside}", "-e", f"SSH_PUBLIC_KEY={public}", "-e", "MINE=1")
    with workplace.started(*options) as container:
        container.says(READY)
        container.serves()
        client = Client(container=container, key=private, inside=inside)
        done = client.ssh("whoami; id -u; echo $MINE; python -c 'import numpy'", user="user")
        assert (done.returncode, done.stdout) == (0, "user\n12345\n1\n"), done.stderr
        assert client.ssh("true", user="root").returncode == 255


def test_a_planted_home_is_not_used(workplace: Workplace) -> None:
    """Another user has made a link in /tmp at the path of the home that torchkiln would make."""
    trap = "ln -s /workspace /tmp/home-12345; ln -s /workspace /tmp/names-12345"
    with workplace.started(command=["sh", "-c", f"{trap}; echo up; exec sleep 600"]) as container:
        container.says("up")
        ran = container.docker(
            "exec", "--user", "12345", container.name, "/opt/torchkiln/entrypoint", "sh", "-c", "echo $HOME"
        )
        assert ran.stdout == "/\n"
        assert container.inside("ls", "/workspace") == ""


def test_other_users_cannot_write_the_image(workplace: Workplace) -> None:
    """No folder or file of the image is writable for other users, except for folders like /tmp."""
    looked = (
        "find / -xdev -writable -not -type l -not -path '/proc/*' -not -path '/dev/*' -not -path '/tmp/*'"
    )
    ran = workplace.run(*UNKNOWN_USER, command=["sh", "-c", f"{looked} 2>/dev/null"])

    assert set(ran.stdout.split()) <= {"/tmp", "/var/tmp", "/workspace", "/run/lock", "/var/lock"}, ran.stdout
