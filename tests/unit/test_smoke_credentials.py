"""Which files the smoke check `services` reports because they contain a key, a token or a password."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.smoke_suites import SUITE

contents = runpy.run_path(str(SUITE / "probes" / "credentials.py"))["contents"]
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n"


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("etc/ssh/ssh_host_rsa_key", "", "a key or credentials"),
        ("root/.ssh/authorized_keys", "ssh-ed25519 AAAA", "a key or credentials"),
        ("etc/ssh/authorized_keys/root", "ssh-ed25519 AAAA", "a key or credentials"),
        ("root/.netrc", "machine a login b password c", "a key or credentials"),
        ("root/.cache/huggingface/token", "hf_x", "a key or credentials"),
        ("srv/any-name", KEY, "a private key"),
        (
            "etc/pip.conf",
            "[global]\nindex-url = https://me:word@pypi.example/simple\n",
            "a password or token",
        ),
        ("etc/apt/auth.conf", "machine apt.example login a password b\n", "a password or token"),
        ("etc/apt/sources.list.d/a.sources", "URIs: https://a:b@apt.example/\n", "a password or token"),
        ("root/.npmrc", "//npm.example/:_authToken=x\n", "a password or token"),
        ("etc/jupyter/jupyter_server_config.py", "c.ServerApp.token = ''\n", "a password or token"),
        (
            "etc/jupyter/jupyter_server_config.json",
            '{\n  "IdentityProvider": {\n    "hashed_password": "argon2"\n',
            "a password or token",
        ),
    ],
)
def test_a_secret_is_found(path: str, text: str, kind: str, tmp_path: Path) -> None:
    assert found(path, text, tmp_path) == kind


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/ssh/ssh_host_rsa_key.pub", "ssh-rsa AAAA"),
        ("etc/ssh/sshd_config", "PasswordAuthentication no\n"),
        ("etc/ssl/certs/a.pem", "-----BEGIN CERTIFICATE-----\n"),
        ("etc/pip.conf", "[global]\nindex-url = https://pypi.example/simple\n"),
        ("etc/jupyter/jupyter_server_config.py", "# c.ServerApp.token = ''\n"),
        ("etc/login.defs", "PASS_MAX_DAYS 99999\nPASSWORD = x\n"),  # no configuration of a client program
        ("etc/apt/sources.list.d/a.sources", "URIs: https://apt.example/\n"),
    ],
)
def test_other_files_are_not_reported(path: str, text: str, tmp_path: Path) -> None:
    assert found(path, text, tmp_path) is None


def found(path: str, text: str, tmp_path: Path) -> object:
    """What the probe finds in a file at *path* that contains *text*."""
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return contents(str(file))
