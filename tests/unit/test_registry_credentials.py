"""Logins from files of Docker and Podman and from real credential helpers; no error shows a secret."""

from __future__ import annotations

import base64
import json
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from torchkiln.errors import ConfigError, KilnError, RegistryError, ToolMissing
from torchkiln.registry.credentials import Login, find_login
from torchkiln.registry.reference import Repository

APP = Repository(host="registry.example:5000", name="team/app")
HUB = Repository(host="docker.io", name="team/app")
SECRET = "correct horse battery"
PACKED = base64.b64encode(f"kim:{SECRET}".encode()).decode()
KIM = Login(user="kim", password=SECRET)
STORE = {"credsStore": "test"}
LACKS = "echo credentials not found in native keychain; exit 1"


def environ(folder: Path, config: Any = None, **more: str) -> dict[str, str]:
    """A user's environment with the Docker configuration *config*, and helper programs in folder/bin."""
    (folder / "docker").mkdir(exist_ok=True)
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "docker/config.json").write_text(text)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder), "DOCKER_CONFIG": str(folder / "docker"), **more}


def helper(folder: Path, name: str, script: str) -> None:
    """Write a credential helper that records its arguments and its input."""
    program = folder / "bin" / f"docker-credential-{name}"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nread key\necho "$@ $key" >> {folder}/called\n{script}\n')
    program.chmod(0o755)


@pytest.mark.parametrize(
    "entry",
    [{"auth": PACKED}, {"username": "kim", "password": SECRET}, {"auth": PACKED, "email": "k@x.test"}],
)
@pytest.mark.parametrize("key", ["registry.example:5000", "https" + "://registry.example:5000/v2/"])
def test_a_login_in_the_file(tmp_path: Path, entry: dict[str, str], key: str) -> None:
    found = find_login(APP, environ(tmp_path, {"auths": {key: entry, "other.example": {"auth": "x"}}}))

    assert found == KIM


@pytest.mark.parametrize(
    ("repository", "config", "expected"),
    [
        (APP, None, None),
        (APP, {}, None),
        (APP, {"auths": {}}, None),
        (APP, {"auths": {"registry.example": {"auth": PACKED}}}, None),  # another port of the same host
        (HUB, {"auths": {"https" + "://index.docker.io/v1/": {"auth": PACKED}}}, KIM),
        (APP, {"auths": {APP.host: {"identitytoken": SECRET}}}, Login(identity_token=SECRET)),
    ],
)
def test_the_login_of_a_repository(
    tmp_path: Path, repository: Repository, config: Any, expected: Login | None
) -> None:
    assert find_login(repository, environ(tmp_path, config)) == expected


def test_the_home_folder_is_the_default(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker/config.json").write_text(json.dumps({"auths": {APP.host: {"auth": PACKED}}}))

    assert find_login(APP, {"HOME": str(tmp_path)}) == KIM


def test_podmans_file_takes_precedence_and_may_name_repositories(tmp_path: Path) -> None:
    team_login = base64.b64encode(b"robot:of-the-team").decode()
    file = tmp_path / "auth.json"
    file.write_text(
        json.dumps({"auths": {APP.host: {"auth": PACKED}, f"{APP.host}/team": {"auth": team_login}}})
    )
    environment = environ(tmp_path, {"auths": {APP.host: {"username": "x", "password": "y"}}})
    environment["REGISTRY_AUTH_FILE"] = str(file)

    assert find_login(APP, environment) == Login(user="robot", password="of-the-team")
    assert find_login(Repository(host=APP.host, name="solo"), environment) == KIM


def answer(user: str) -> str:
    return f"""echo '{json.dumps({"ServerURL": "x", "Username": user, "Secret": SECRET})}'"""


@pytest.mark.parametrize(
    ("config", "script", "expected"),
    [
        (STORE, answer("kim"), KIM),
        ({"credHelpers": {APP.host: "test"}, "credsStore": "no"}, answer("kim"), KIM),
        (STORE, answer("<token>"), Login(identity_token=SECRET)),
        # The helper has no login, so that of the file is used.
        (STORE | {"auths": {APP.host: {"auth": PACKED}}}, LACKS, KIM),
    ],
)
def test_a_helper_is_called_with_the_host(tmp_path: Path, config: Any, script: str, expected: Login) -> None:
    helper(tmp_path, "test", script)

    assert find_login(APP, environ(tmp_path, config)) == expected
    assert (tmp_path / "called").read_text() == f"get {APP.host}\n"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"echo '{SECRET}'; exit 3", "docker-credential-test failed with exit code 3"),
        (f"echo 'no JSON {SECRET}'", "invalid output"),
        (f"""echo '{{"Secret": "{SECRET}"}}'""", "invalid output"),
        ("exec sleep 60", "timed out after 0.2 seconds"),
    ],
)
def test_a_failing_helper_is_reported_without_its_output(tmp_path: Path, script: str, message: str) -> None:
    helper(tmp_path, "test", script)

    with pytest.raises(RegistryError, match=message) as error:
        find_login(APP, environ(tmp_path, {"credsStore": "test"}), patience=0.2)

    assert f"echo {APP.host} | docker-credential-test get" in error.value.hint
    assert SECRET not in "".join(traceback.format_exception(error.value.with_traceback(None)))


def test_a_missing_helper(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="docker-credential-nowhere: executable file not found in PATH"):
        find_login(APP, environ(tmp_path, {"credsStore": "nowhere"}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"auths": [1]}, "auths is not an object"),
        ({"auths": {APP.host: {"auth": SECRET}}}, "is not base64 of user:password"),
        (
            {"auths": {APP.host: {"auth": base64.b64encode(b"nocolon").decode()}}},
            "is not base64 of user:password",
        ),
        ({"auths": {APP.host: {"username": "kim", "password": 7}}}, "malformed"),
        ({"credsStore": "../../bin/sh"}, "invalid name of a credential helper"),
        ({"credHelpers": {APP.host: {"a": 1}}}, "invalid name of a credential helper"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        find_login(APP, environ(tmp_path, config))

    assert "docker/config.json" in error.value.message
    assert SECRET not in error.value.message + error.value.hint


def test_a_login_shows_no_secret() -> None:
    assert SECRET not in repr(Login(user="kim", password=SECRET, identity_token=SECRET))
    assert not isinstance(Login(), KilnError)
