"""What mmdebstrap is told, and what our hooks do to a root."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from torchkiln.base.mmdebstrap import build, command
from torchkiln.base.recipe import EPOCH, recipe
from torchkiln.base.sources import variables
from torchkiln.errors import ConfigError, ToolMissing
from torchkiln.store.store import Store

MIRROR, SECURITY_MIRROR, KEYRING = variables(recipe("debian12"))
DEFAULT = (
    "deb http://archive.test/debian bookworm main\n"
    "deb http://archive.test/debian bookworm-updates main\n"
    "deb http://security.test/debian-security bookworm-security main\n"
)


def hooks(argv: list[str], stage: str) -> list[str]:
    return [arg.partition("=")[2] for arg in argv if arg.startswith(f"--{stage}-hook=")]


def run_hook(hook: str, root: Path) -> None:
    subprocess.run(["sh", "-c", hook, "exec", root], check=True)


def test_debian12_and_ubuntu_are_known_and_others_named() -> None:
    assert recipe("debian12").suite == "bookworm"
    assert recipe("ubuntu22.04").python == "3.10"
    assert "universe" in recipe("ubuntu22.04").components
    with pytest.raises(ConfigError, match="os 'debian13' is not supported") as caught:
        recipe("debian13")
    assert "debian12, ubuntu22.04" in caught.value.hint


def test_the_key_changes_with_every_field() -> None:
    ours = recipe("debian12")

    assert ours.key() == dataclasses.replace(ours).key()
    for changed in ({"hooks": ()}, {"epoch": EPOCH + 1}, {"packages": ("git",)}, {"dpkg_options": ()}):
        assert dataclasses.replace(ours, **changed).key() != ours.key()


def test_without_a_mirror_no_address_stands_in_the_command() -> None:
    argv = command(recipe("debian12"), {"http_proxy": "http://proxy.test:3128"}, unprivileged=False)

    assert not [arg for arg in argv if "://" in arg or "proxy" in arg]
    assert argv[-2:] == ["bookworm", "-"]
    assert "--mode=root" in argv
    assert "--mode=unshare" in command(recipe("debian12"), {}, unprivileged=True)


@pytest.mark.parametrize(
    ("environ", "during"),
    [
        pytest.param(
            {MIRROR: "https://mirror.test/deb"},
            "deb https://mirror.test/deb bookworm main\n"
            "deb https://mirror.test/deb bookworm-updates main\n"
            "deb http://security.test/debian-security bookworm-security main\n",
            id="main",
        ),
        pytest.param(
            {
                MIRROR: "http://snap.test/main/20260101T000000Z",
                SECURITY_MIRROR: "http://snap.test/security/20260101T000000Z/",
            },
            "deb [check-valid-until=no] http://snap.test/main/20260101T000000Z bookworm main\n"
            "deb [check-valid-until=no] http://snap.test/main/20260101T000000Z bookworm-updates main\n"
            "deb [check-valid-until=no] http://snap.test/security/20260101T000000Z/"
            " bookworm-security main\n",
            id="snapshots",
        ),
    ],
)
def test_a_mirror_serves_the_build_and_is_gone_after(
    tmp_path: Path, environ: dict[str, str], during: str
) -> None:
    sources = tmp_path / "etc/apt/sources.list"
    sources.parent.mkdir(parents=True)
    sources.write_text(DEFAULT)
    argv = command(recipe("debian12"), environ, unprivileged=False)

    for hook in hooks(argv, "setup"):
        run_hook(hook, tmp_path)
    assert sources.read_text() == during

    run_hook(hooks(argv, "customize")[0], tmp_path)
    assert sources.read_text() == DEFAULT
    assert [path.name for path in sources.parent.iterdir()] == ["sources.list"]


@pytest.mark.parametrize("address", ["mirror.test", "http://a b", "http://x'; rm -rf /; '", "http://x|y"])
def test_a_mirror_that_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=MIRROR):
        command(recipe("debian12"), {MIRROR: address}, unprivileged=False)


def test_the_hooks_clean_a_root(tmp_path: Path) -> None:
    gone = ["etc/resolv.conf", "etc/hostname", "etc/hosts", "etc/machine-id", "etc/ssh/ssh_host_rsa_key"]
    gone += [
        "etc/shadow-",
        "etc/subuid-",
        "var/lib/dpkg/status-old",
        "var/log/dpkg.log",
        "var/log/apt/eipp.log.xz",
    ]
    kept = ["etc/shadow", "etc/ssh/sshd_config", "var/lib/dpkg/status", "var/log/wtmp"]
    for name in (*gone, *kept, "var/cache/debconf/config.dat-old"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("this host")
    for hook in recipe("debian12").hooks:
        if "chroot" not in hook:
            run_hook(hook, tmp_path)

    assert [name for name in gone if (tmp_path / name).exists()] == []
    assert [name for name in kept if not (tmp_path / name).exists()] == []
    assert (tmp_path / "var/log/wtmp").read_text() == ""
    assert (tmp_path / "workspace").is_dir()


def test_a_missing_tool_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match="mmdebstrap: command not found") as caught:
        build(recipe("debian12"), Store(tmp_path / "cache"), environ={})
    assert "apt-get install mmdebstrap" in caught.value.hint

    (tmp_path / "mmdebstrap").write_text("#!/bin/sh\n")
    (tmp_path / "mmdebstrap").chmod(0o755)
    ours = dataclasses.replace(recipe("ubuntu22.04"), keyring=tmp_path / "no.gpg")
    with pytest.raises(ToolMissing, match=r"keyring of the archive of ubuntu22\.04 not found") as caught:
        build(ours, Store(tmp_path / "cache"), environ={})
    assert "ubuntu-keyring" in caught.value.hint
