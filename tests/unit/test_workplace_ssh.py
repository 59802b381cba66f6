"""SSH in a container: authorized keys, persistent host keys, and a configuration that sshd accepts."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.inside import needs_sshd, sshd
from tests.workplace import key
from workplace import ssh
from workplace.settings import Ssh
from workplace.ssh import KINDS, NoSsh, Prepared, prepare

pytestmark = pytest.mark.skipif(
    not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed: apt-get install openssh-client"
)

UNKNOWN = 54321


@dataclass(kw_only=True)
class Host:
    """A container's files for SSH, all below a folder."""

    folder: Path
    accounts: dict[str, pwd.struct_passwd] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def stored(self) -> Path:
        """The folder that SSH_HOST_KEYS names, in a volume."""
        return self.folder / "volume/keys"

    @property
    def mounted(self) -> Path:
        """The file that is used as /etc/ssh/authorized_keys."""
        return self.folder / "mounted"

    def account(self, name: str, uid: int) -> None:
        """Add a user who has a home folder."""
        home = self.folder / name
        (home / ".ssh").mkdir(parents=True)
        self.accounts[name] = pwd.struct_passwd((name, "x", uid, uid, "", str(home), "/bin/bash"))

    def at_home(self, name: str, text: str) -> None:
        """Write the user's ~/.ssh/authorized_keys."""
        Path(self.accounts[name].pw_dir, ".ssh/authorized_keys").write_text(text)

    def prepare(self, keys: str = "", *, again: bool = False, **environ: str) -> Prepared:
        """Prepare SSH as a container's start does; with *again*, in a new container with the same volume."""
        if again:
            shutil.rmtree(self.run)
        self.run.mkdir(exist_ok=True)
        return prepare(Ssh(keys=keys, ports=(2222, 22), host_keys=self.stored), environ, self.run)

    def refused(self, keys: str = "") -> str:
        """The message that says why SSH is disabled."""
        with pytest.raises(NoSsh) as caught:
            self.prepare(keys)
        return str(caught.value)

    def authorized_keys(self, name: str) -> list[str]:
        """The keys with which one can log in as the user *name*."""
        return (self.run / "authorized_keys" / name).read_text().splitlines()


@pytest.fixture(params=[0, UNKNOWN], ids=["root", "another uid"])
def uid(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def host(tmp_path: Path, uid: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A container that runs as *uid*. The user `user` has this uid, or 1000 if *uid* is that of root."""
    found = Host(folder=tmp_path)
    found.account("user", 1000 if uid == 0 else uid)
    if uid == 0:
        found.account("root", 0)
    by_uid = {account.pw_uid: account for account in found.accounts.values()}
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(pwd, "getpwnam", found.accounts.__getitem__)
    monkeypatch.setattr(pwd, "getpwuid", by_uid.__getitem__)
    monkeypatch.setattr(ssh, "MOUNTED", found.mounted)
    monkeypatch.setattr(ssh, "EMPTY", tmp_path / "empty")
    mask = os.umask(0)
    yield found
    os.umask(mask)


def public(folder: Path) -> str:
    """The public part of a new SSH key."""
    return key(folder)[1]


def print_of(place: Path) -> str:
    """The fingerprint of a key, which `ssh` shows at the first login."""
    argv = ["ssh-keygen", "-l", "-f", str(place)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]


def mode(place: Path) -> int:
    return stat.S_IMODE(place.stat().st_mode)


def test_keys_of_every_source_are_authorized(host: Host, tmp_path: Path) -> None:
    """Keys in the variable or the mounted file open every account; keys in a home, only its user's."""
    one, two, three, four = (public(tmp_path) for _ in range(4))
    host.mounted.write_text(f"# of the team\n\n{three}\n")
    host.at_home("user", four)
    found = host.prepare(f"{one}\n{two}")

    assert host.authorized_keys("user") == [one, two, three, four]
    assert set(found.users) == set(host.accounts)
    for name in host.accounts.keys() - {"user"}:
        assert host.authorized_keys(name) == [one, two, three]
    assert found.notes == ()


def test_a_key_at_home_authorizes_only_its_account(host: Host, tmp_path: Path) -> None:
    host.at_home("user", public(tmp_path))

    assert host.prepare().users == ("user",)


def test_a_duplicate_key_counts_once(host: Host, tmp_path: Path) -> None:
    one = public(tmp_path)
    host.mounted.write_text(f"  {one}  \r\n")

    host.prepare(one)
    assert host.authorized_keys("user") == [one]


@pytest.mark.parametrize(
    ("kind", "options"),
    [("ed25519", ""), ("ecdsa", ""), ("rsa", ""), ("ed25519", 'command="echo only this",no-pty ')],
)
def test_every_kind_of_key_is_accepted(host: Host, tmp_path: Path, kind: str, options: str) -> None:
    place = tmp_path / "key"
    size = ("-b", "1024") if kind == "rsa" else ()  # a larger RSA key would take long to generate
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *size, "-N", "", "-f", str(place)], check=True)
    line = options + place.with_suffix(".pub").read_text().strip()

    host.prepare(line)
    assert host.authorized_keys("user") == [line]


def test_an_invalid_line_is_named_and_not_shown(host: Host, tmp_path: Path) -> None:
    """The message has the line's number. Keys in other lines are used."""
    one, two = public(tmp_path), public(tmp_path)
    host.mounted.write_text(f"{one}\nssh-ed25519 verysecret\n\n# a comment\nverysecret\n{two}\n")
    found = host.prepare()

    assert host.authorized_keys("user") == [one, two]
    assert len(found.notes) == 2
    assert [number in note for number, note in zip(("line 2", "line 5"), found.notes, strict=True)] == [
        True
    ] * 2
    assert all(str(host.mounted) in note for note in found.notes)
    assert "verysecret" not in repr(found)


def test_a_private_key_is_refused_and_not_shown(host: Host, tmp_path: Path) -> None:
    place, one = key(tmp_path)
    private = place.read_text()
    why = host.refused(private)
    host.mounted.write_text(one)
    found = host.prepare(private)

    assert "SSH_PUBLIC_KEY" in why
    assert "private key" in why
    assert host.authorized_keys("user") == [one]
    assert "private key" in found.notes[0]
    assert not [line for line in private.split() if len(line) > 9 and line in why + repr(found)]


def test_a_private_key_of_putty_is_not_shown(host: Host) -> None:
    """A private key of PuTTY begins with a different header than one of OpenSSH."""
    why = host.refused("PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nverysecret")

    assert "line 3" in why
    assert "verysecret" not in why


@pytest.mark.parametrize("keys", ["", "# nothing but words", "\n\n"])
def test_without_a_key_there_is_no_ssh(host: Host, keys: str) -> None:
    """The message says how to set a key."""
    assert "SSH_PUBLIC_KEY" in host.refused(keys)
    assert not (host.run / "sshd_config").exists()


@pytest.mark.parametrize("uid", [0])
def test_a_base_without_user_authorizes_root(host: Host, tmp_path: Path) -> None:
    del host.accounts["user"]

    assert host.prepare(public(tmp_path)).users == ("root",)


@pytest.mark.parametrize("uid", [UNKNOWN])
def test_a_uid_without_a_name_has_no_ssh(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: UNKNOWN + 1)

    assert str(UNKNOWN + 1) in host.refused(public(tmp_path))


def test_host_keys_are_made_once_and_kept(host: Host, tmp_path: Path) -> None:
    """A client's known_hosts file is therefore valid for the next container, too."""
    one = public(tmp_path)
    first, second, third = host.prepare(one), host.prepare(one), host.prepare(one, again=True)

    assert first.fingerprint == print_of(host.stored / f"ssh_host_{KINDS[0]}_key.pub")
    assert first.fingerprint.startswith("SHA256:")
    assert (second, third) == (first, first)
    assert first.notes == ()


def test_without_a_volume_each_container_has_its_own_host_keys(host: Host, tmp_path: Path) -> None:
    """Everybody who has the image could read a host key in its layers."""
    one = public(tmp_path)
    first = host.prepare(one).fingerprint
    shutil.rmtree(host.stored)

    assert host.prepare(one, again=True).fingerprint != first


def test_host_keys_that_cannot_be_stored_are_used(host: Host, tmp_path: Path) -> None:
    """They are used until the container is removed, also after a restart. One warning is printed."""
    one = public(tmp_path)
    (tmp_path / "volume").write_text("a file where a folder should be")
    first, second = host.prepare(one), host.prepare(one)

    assert len([note for note in first.notes if str(host.stored) in note]) == 1
    assert second.fingerprint == first.fingerprint


def test_unreadable_host_keys_are_not_replaced(host: Host, tmp_path: Path) -> None:
    """SSH clients reject a host whose keys change. Here, a folder stands for an unreadable file."""
    name = f"ssh_host_{KINDS[0]}_key"
    (host.stored / name).mkdir(parents=True)

    assert name in host.refused(public(tmp_path))


def test_a_broken_host_key_is_named_and_the_other_is_used(host: Host, tmp_path: Path) -> None:
    one = public(tmp_path)
    before = host.prepare(one)
    broken = host.stored / f"ssh_host_{KINDS[0]}_key"
    broken.write_text("half a key")
    found = host.prepare(one, again=True)

    assert found.fingerprint == print_of(host.stored / f"ssh_host_{KINDS[1]}_key.pub") != before.fingerprint
    assert any(str(broken) in note and "delete it" in note for note in found.notes)
    assert str(host.run / f"host_keys/{broken.name}") not in (host.run / "sshd_config").read_text()
    assert broken.read_text() == "half a key"


def test_two_broken_host_keys_disable_ssh(host: Host, tmp_path: Path) -> None:
    """Otherwise sshd would find no host key and exit after each restart."""
    host.prepare(public(tmp_path))
    for kind in KINDS:
        (host.stored / f"ssh_host_{kind}_key").write_text("")

    message = host.refused(public(tmp_path))
    assert all(str(host.stored / f"ssh_host_{kind}_key") in message for kind in KINDS)


def test_a_host_key_of_the_user_is_used(host: Host, tmp_path: Path) -> None:
    """The mode of the mounted file makes no difference."""
    place, _ = key(tmp_path)
    host.stored.mkdir(parents=True)
    shutil.copyfile(place, host.stored / f"ssh_host_{KINDS[0]}_key")

    assert host.prepare(public(tmp_path)).fingerprint == print_of(place)


def test_secret_files_are_private(host: Host, tmp_path: Path) -> None:
    """They are the host keys and sshd's configuration, which contains the container's variables."""
    for again in (False, True):
        host.prepare(public(tmp_path), again=again, MINE="value")
        private = [*host.run.glob("host_keys/*_key"), *host.stored.glob("*_key"), host.run / "sshd_config"]

        assert [place for place in private if mode(place) != 0o600] == []
        assert len(private) == 2 * len(KINDS) + 1
        assert {mode(place) & 0o022 for place in (host.run / "authorized_keys").rglob("*")} == {0}


def test_a_variable_that_cannot_be_passed_on_is_named(host: Host, tmp_path: Path) -> None:
    found = host.prepare(public(tmp_path), TWO="a\nb", MINE="value", JUPYTER_TOKEN="a\nb")

    assert ["TWO" in note for note in found.notes] == [True]
    assert "MINE" not in found.notes[0]
    assert "JUPYTER_TOKEN" not in found.notes[0]


def test_without_write_access_ssh_is_disabled(host: Host, tmp_path: Path) -> None:
    host.run.mkdir()
    (host.run / "authorized_keys").write_text("a file where a folder should be")

    assert "authorized_keys" in host.refused(public(tmp_path))


@pytest.mark.parametrize(
    "script", [None, "exit 1", 'case "$*" in *-t*) exit 3 ;; esac'], ids=["absent", "broken", "makes none"]
)
def test_without_ssh_keygen_there_is_no_ssh(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    """For example, the user has another base, or the disk is full."""
    one, program = public(tmp_path), tmp_path / "ssh-keygen"
    if script:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setattr(ssh, "KEYGEN", str(program))

    assert host.refused(one)


@needs_sshd
def test_sshd_accepts_the_configuration(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchkiln's ports, host keys, key files and variables have precedence over the system's. PAM is off."""
    found = host.prepare(public(tmp_path), MINE='a "word"', ODD=os.fsdecode(b"\xe9"))
    configuration = found.command[found.command.index("-f") + 1]
    monkeypatch.undo()  # sshd must see the real users of this machine
    tested = sshd("-t", "-f", configuration)
    message = sshd("-T", "-f", configuration, "-C", "user=user,host=x,addr=127.0.0.1").stdout.splitlines()

    assert (tested.returncode, tested.stderr) == (0, b"")
    allowed = f"authorizedkeysfile {host.run}/authorized_keys/%u .ssh/authorized_keys"
    used = {f"hostkey {host.run}/host_keys/ssh_host_{kind}_key".encode() for kind in KINDS}
    expected = {b"port 2222", b"port 22", b"usepam no", b'setenv MINE=a "word"', b"setenv ODD=\xe9"}
    assert {*expected, *used, allowed.encode()} <= set(message)
    assert {line for line in message if line.startswith((b"port ", b"hostkey "))} <= expected | used


def test_the_owner_of_files_is_checked_if_root_authorizes_others(
    host: Host, tmp_path: Path, uid: int
) -> None:
    """Without root, StrictModes would refuse files below /tmp. Only root's sshd needs the folder `empty`."""
    host.prepare(public(tmp_path))

    assert ("StrictModes no" in (host.run / "sshd_config").read_text()) is (uid != 0)
    assert (tmp_path / "empty").is_dir() is (uid == 0)


def test_the_systems_configuration_comes_after_ours(host: Host, tmp_path: Path) -> None:
    """sshd uses the first value of a setting, so the system's file can only add other settings."""
    host.prepare(public(tmp_path))

    assert (host.run / "sshd_config").read_text().splitlines()[-1] == "Include /etc/ssh/sshd_config"
