"""The services that the settings start: their commands, their log lines, and their shared folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inside import PACKAGE, image
from tests.workplace import key
from workplace import services, ssh
from workplace.settings import Jupyter, TensorBoard

TOKENS = st.text("".join(map(chr, range(ord("!"), ord("~") + 1))), min_size=1)
# Does what a container's first process does, with all paths below a temporary folder.
CONTAINER = """
import os, sys; sys.path.insert(0, {package!r})
from pathlib import Path
from workplace import image, services, settings
services.VENV, services.runtime_folder = {venv!r}, lambda: Path({run!r})
sys.exit(services.run(settings.read(os.environ, root=False), image.load(Path({facts!r}))))
"""


def lab(**more: object) -> Jupyter:
    """Jupyter's default settings, with the changes *more*."""
    defaults: dict[str, object] = {"token": None, "port": 8888, "base_url": "/", "origin": ""}
    return Jupyter(**defaults | more)  # type: ignore[arg-type]


def container(folder: Path, script: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the services until they end. The shell script *script* is in Jupyter's place."""
    (folder / "bin").mkdir()
    (folder / "bin/jupyter").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin/jupyter").chmod(0o755)
    wheels = [{"name": name, "version": version} for name, version in image().wheels]
    (folder / "image.json").write_text(json.dumps(asdict(image()) | {"wheels": wheels}))
    places = {"venv": folder / "bin", "run": folder / "run", "facts": folder / "image.json"}
    code = CONTAINER.format(package=str(PACKAGE.parent), **{name: str(at) for name, at in places.items()})
    env = {"PATH": os.environ["PATH"], "SSH": "off", "TORCHKILN_RESTART": "no"} | environ
    argv = [sys.executable, "-IBc", code]
    return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)


@given(TOKENS)
def test_a_set_token_is_neither_in_the_process_list_nor_in_the_log(token: str) -> None:
    """The token is passed in the environment, so command and log line are the same for every token."""
    service, line = services.jupyter(lab(token=token), {"MINE": "value"})
    with_another_token, same = services.jupyter(lab(token="quite another"), {})

    assert (service.command, line) == (with_another_token.command, same)
    assert service.command == services.jupyter(lab(), {})[0].command
    assert service.environ["JUPYTER_TOKEN"] == token
    assert service.environ["MINE"] == "value"


def test_a_generated_token_is_in_the_log() -> None:
    service, line = services.jupyter(lab(), {})

    assert line.endswith(f"/lab?token={service.environ['JUPYTER_TOKEN']}")


def test_without_a_token_each_start_generates_one() -> None:
    """A generated token has 192 bits."""
    made = {services.jupyter(lab(), {})[0].environ["JUPYTER_TOKEN"] for _ in range(5)}

    assert len(made) == 5
    assert all(re.fullmatch("[0-9a-f]{48}", token) for token in made)


def test_disabled_authentication_is_logged() -> None:
    """An option disables it, because Jupyter ignores an empty variable."""
    service, line = services.jupyter(lab(token=""), {})

    assert "--IdentityProvider.token=" in service.command
    assert "no login" in line
    assert "no login" not in services.jupyter(lab(), {})[1]
    assert not [word for word in services.jupyter(lab(), {})[0].command if "token" in word]


def test_jupyter_gets_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    service, _ = services.jupyter(lab(port=9999, base_url="/lab/anna/", origin="https://lab.example"), {})
    plain, _ = services.jupyter(lab(), {})
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    users, _ = services.jupyter(lab(), {})

    expected = {
        "--port=9999",
        "--ServerApp.base_url=/lab/anna/",
        "--ServerApp.allow_origin=https://lab.example",
    }
    assert expected <= set(service.command)
    assert (service.port, service.path) == (9999, "/lab/anna/api")
    assert not [word for word in plain.command if "origin" in word]
    assert "--allow-root" not in users.command


def test_tensorboard_gets_its_settings() -> None:
    service = services.tensorboard(TensorBoard(logdir="/workspace/runs", port=7007), {"MINE": "value"})

    assert {"--logdir=/workspace/runs", "--port=7007", "--host=0.0.0.0"} <= set(service.command)
    assert (service.port, service.path, dict(service.environ)) == (7007, "/", {"MINE": "value"})


def test_the_container_has_the_exit_code_of_its_service(tmp_path: Path) -> None:
    """The health check's list is written. The log has the image, the token, and why the service ended."""
    done = container(tmp_path, 'echo "$JUPYTER_TOKEN" >>token; exit 7', JUPYTER_PORT="9999")
    (token,) = (tmp_path / "token").read_text().split()  # no second start, because restarts are disabled
    defaults = done.stderr.splitlines()

    assert (done.returncode, done.stdout) == (7, "")
    assert image().tag in defaults[0]
    assert f"127.0.0.1:9999/lab?token={token}" in defaults[1]
    assert "status 7" in done.stderr
    assert json.loads((tmp_path / "run/services.json").read_text()) == [
        {"name": "jupyter", "port": 9999, "path": "/api"}
    ]


def test_a_container_without_services_ends(tmp_path: Path) -> None:
    done = container(tmp_path, JUPYTER="off")

    assert done.returncode == 1
    assert "no service to run" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"JUPYTER_PORT": "6006", "TENSORBOARD_LOGDIR": "runs"}, ("JUPYTER_PORT", "TENSORBOARD_PORT")),
        ({"JUPYTER_PORT": "2222", "SSH": "on", "SSH_PORT": "2222"}, ("JUPYTER_PORT", "SSH_PORT")),
        ({"SSH": "on", "SSH_PORT": "6006", "TENSORBOARD_LOGDIR": "x"}, ("SSH_PORT", "TENSORBOARD_PORT")),
    ],
)
def test_two_services_on_one_port_are_refused(
    tmp_path: Path, environ: dict[str, str], names: tuple[str, str]
) -> None:
    if "SSH" in environ and not Path(ssh.KEYGEN).exists():
        pytest.skip("ssh-keygen is not installed: apt-get install openssh-client")
    _, public = key(tmp_path)
    done = container(tmp_path, "exec sleep 9", **environ, SSH_PUBLIC_KEY=public)

    assert done.returncode == 2
    assert f"{names[0]} and {names[1]} are both" in done.stderr
    assert "address already in use" in done.stderr
    assert not (tmp_path / "run/services.json").exists()


def test_a_port_of_a_service_that_is_off_is_free(tmp_path: Path) -> None:
    done = container(tmp_path, "exit 7", JUPYTER_PORT="2222", SSH="on", SSH_PORT="2222")

    assert done.returncode == 7


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """For example, the container's file system is read-only, and no tmpfs is mounted."""
    (tmp_path / "run").write_text("a file where a folder should be")
    done = container(tmp_path)

    assert done.returncode == 1
    assert str(tmp_path / "run") in done.stderr
    assert "--tmpfs" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_shared_folder_is_private(tmp_path: Path) -> None:
    """It is created if it is missing, and used again after a restart."""
    for _ in range(2):
        services._make_private(tmp_path / "deep/run")

    assert (tmp_path / "deep/run").stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("what", ["link", "others", "group", "owner"])
def test_a_planted_folder_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can create a folder in /tmp, and the files in this one give access to accounts."""
    place = tmp_path / "run"
    (tmp_path / "elsewhere").mkdir()
    if what == "link":
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        place.chmod({"others": 0o757, "group": 0o775, "owner": 0o755}[what])
    if what == "owner":
        monkeypatch.setattr(os, "getuid", lambda: 54321)

    with pytest.raises(OSError) as refused:
        services._make_private(place)
    assert refused.value.filename == str(place)
