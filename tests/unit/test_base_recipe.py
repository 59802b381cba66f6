"""The command line of mmdebstrap, the secrets for apt, and the reported cause of a failure."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from torchkiln.base import mmdebstrap
from torchkiln.base.complaint import complaint
from torchkiln.base.mmdebstrap import build, command
from torchkiln.base.recipe import EPOCH, recipe, variables
from torchkiln.docker.build_locked import apt_secrets
from torchkiln.errors import BuildFailed, ConfigError, ToolMissing
from torchkiln.model.progress import UNREPORTED
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


def test_unknown_systems_are_refused() -> None:
    assert recipe("debian12").suite == "bookworm"
    assert recipe("ubuntu22.04").python == "3.10"
    assert "universe" in recipe("ubuntu22.04").components
    with pytest.raises(ConfigError, match="os 'debian11' is not supported") as caught:
        recipe("debian11")
    assert "debian12, debian13, ubuntu22.04, ubuntu24.04" in caught.value.hint


def test_the_key_changes_with_every_field() -> None:
    ours = recipe("debian12")

    assert ours.key() == dataclasses.replace(ours).key()
    for changed in ({"hooks": ()}, {"epoch": EPOCH + 1}, {"packages": ("git",)}, {"dpkg_options": ()}):
        assert dataclasses.replace(ours, **changed).key() != ours.key()


def test_without_a_mirror_the_command_contains_no_url() -> None:
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
def test_a_mirror_is_used_for_the_build_and_removed_afterwards(
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
def test_a_mirror_that_is_not_a_url_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=MIRROR):
        command(recipe("debian12"), {MIRROR: address}, unprivileged=False)


def test_a_missing_tool_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


SILENT = """\
Ign:1 http://archive.test/debian bookworm InRelease
Err:1 http://archive.test/debian bookworm InRelease
  Temporary failure resolving 'archive.test'
Reading package lists...
E: Failed to fetch http://archive.test/debian/dists/bookworm/InRelease  {why}
E: Failed to fetch http://archive.test/debian/dists/bookworm-updates/InRelease  {why}
E: Failed to fetch http://user:word@security.test/security/dists/bookworm-security/InRelease  {why}
E: Some index files failed to download. They have been ignored, or old ones used instead.
E: apt-get update --error-on=any -oAPT::Status-Fd=<$fd> -oDpkg::Use-Pty=false failed
I: main() received signal PIPE: waiting for setup...
I: removing tempdir /tmp/torchkiln-base-9b5a9390/mmdebstrap.R0dNytWCbW...
E: mmdebstrap failed to run
"""


def failure_of(lines: str) -> BuildFailed:
    return complaint(
        25,
        dedent(lines).splitlines(),
        os_name="debian12",
        scratch="/var/tmp",
        elsewhere="another one",
        keys="its keys",
    )


def test_an_archive_without_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last line of apt names the file and the server."""
    monkeypatch.setattr(mmdebstrap, "STALLED", 0.5)
    argv = ["sh", "-c", "echo Get:1 http://archive.test/x.deb >&2; sleep 600"]
    env = {"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with (
        pytest.raises(
            BuildFailed, match=r"timed out: no progress in 0\.5 seconds after: Get:1 http://archive"
        ),
        mmdebstrap.running(argv, env, recipe("debian12"), UNREPORTED) as tar,
    ):
        assert tar.read() == b""


def test_an_unreachable_archive_is_named_once_with_a_hint() -> None:
    for why in (
        "Temporary failure resolving 'archive.test'",
        "Could not connect to 127.0.0.1:9 (127.0.0.1). - connect (111: Connection refused)",
        "Could not connect to archive.test:80 (192.0.2.1), connection timed out",
        "Unable to connect to 127.0.0.1:9",
        "Cannot initiate the connection to archive.test:80 (2001:db8::1). "
        "- connect (101: Network is unreachable)",
        "Connection failed",
        "Error reading from server. Remote end closed connection [IP: 192.0.2.1 80]",
        "Invalid response from proxy: HTTP/1.1 407 Proxy Authentication Required",
    ):
        error = failure_of(SILENT.format(why=why))

        assert error.message.splitlines() == [
            "the archive of debian12 cannot be reached:",
            f"  http://archive.test/debian: {why}",
            f"  http://security.test/security: {why}",
        ]
        assert error.hint == (
            "check the network and the proxy (http_proxy, or apt's configuration); another one"
        )


def test_an_http_error_is_not_reported_as_unreachable() -> None:
    error = failure_of(SILENT.format(why="404  Not Found [IP: 192.0.2.1 80]"))

    assert error.message.startswith(
        "mmdebstrap failed with exit status 25:\n  E: Failed to fetch http://arch"
    )
    assert error.hint == "another one"


def test_a_full_disk_is_not_reported_as_a_bad_signature() -> None:
    error = failure_of("""\
        W: GPG error: http://security.test/debian-security bookworm-security InRelease: At least one
        E: The repository 'http://security.test/debian-security bookworm-security InRelease' is not signed.
        E: Write error - write (28: No space left on device)
        E: The package lists or status file could not be parsed or opened.
        E: mmdebstrap failed to run
        """)

    assert error.message == "no space left on device: /var/tmp, where the base of debian12 is built"
    assert "TMPDIR" in error.hint


def test_lines_with_causes_are_shown_and_generic_ones_are_not() -> None:
    error = failure_of("""\
        Setting up passwd (1:4.13+dfsg1-1+deb12u1) ...
        dpkg: error processing package passwd (--install):
        E: Sub-process env returned an error code (1)
        E: apt-get --yes install failed
        I: main() received signal PIPE: waiting for setup...
        E: mmdebstrap failed to run
        """)

    assert error.message.splitlines() == [
        "mmdebstrap failed with exit status 25:",
        "  dpkg: error processing package passwd (--install):",
        "  E: Sub-process env returned an error code (1)",
    ]
    assert failure_of("Killed\n").message.endswith("exit status 25:\n  Killed")
    assert failure_of("").message.endswith("exit status 25:\n  no output")
    assert failure_of("E: http://u:p@m/x is odd\n").message.endswith("25:\n  E: http://m/x is odd")


UNSIGNED = """\
W: http://archive.test/ubuntu/dists/jammy-updates/InRelease: Key is stored in legacy trusted.gpg keyring
W: GPG error: http://u:p@archive.test/ubuntu jammy InRelease: {why}
E: The repository 'http://u:p@archive.test/ubuntu jammy InRelease' is not signed.
E: The repository 'http://archive.test/ubuntu jammy-security Release' is not signed.
E: apt-get update --error-on=any -oAPT::Status-Fd=<$fd> -oDpkg::Use-Pty=false failed
E: mmdebstrap failed to run
"""


def test_an_archive_with_invalid_signatures_is_reported_with_the_reason() -> None:
    """The message gives apt's reason for each suite; for a suite without a signature, it says so."""
    for why in (
        "The following signatures couldn't be verified because the public key is not available: "
        "NO_PUBKEY B7B9DA27CE5EF82E",
        "The following signatures were invalid: BADSIG B7B9DA27CE5EF82E the test archive's key",
    ):
        error = failure_of(UNSIGNED.format(why=why))

        assert error.message.splitlines() == [
            "the signature of the archive of debian12 cannot be verified:",
            f"  http://archive.test/ubuntu jammy: {why}",
            "  http://archive.test/ubuntu jammy-security: it has no signature",
        ]
        assert error.hint == "its keys; another one"


DEBIAN, UBUNTU = recipe("debian12"), recipe("ubuntu22.04")
MIRROR_SECRETS, SECURITY_MIRROR_SECRETS, _ = variables(DEBIAN)


def test_without_settings_apt_gets_no_secrets() -> None:
    assert apt_secrets(DEBIAN, {"HOME": "/root", "http_proxy": ""}, None) == {}


def test_mirrors_proxy_and_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"PEM")
    environ = {
        MIRROR_SECRETS: "https://u:p@mirror:8443/debian",
        SECURITY_MIRROR_SECRETS: "http://mirror/security",
        "https_proxy": "http://u:p@proxy:3128",
        "HTTP_PROXY": "http://proxy:3128",
    }

    assert apt_secrets(DEBIAN, environ, bundle) == {
        "apt-sources": (
            b"deb https://u:p@mirror:8443/debian bookworm main\n"
            b"deb https://u:p@mirror:8443/debian bookworm-updates main\n"
            b"deb http://mirror/security bookworm-security main\n"
        ),
        "apt-ca": b"PEM",
        "apt-config": (
            b'Dir::Etc::SourceList "/run/secrets/apt-sources";\n'
            b'Dir::Etc::SourceParts "-";\n'
            b'Acquire::https::CAInfo "/run/secrets/apt-ca";\n'
            b'Acquire::http::Proxy "http://proxy:3128";\n'
            b'Acquire::https::Proxy "http://u:p@proxy:3128";\n'
        ),
    }


def test_the_suite_and_components_are_the_systems() -> None:
    failure_of = apt_secrets(UBUNTU, {"TORCHKILN_UBUNTU_MIRROR": "untrusted+http://mirror/ubuntu"}, None)

    assert apt_secrets(UBUNTU, {MIRROR_SECRETS: "http://mirror/debian"}, None) == {}
    assert (
        failure_of["apt-sources"].splitlines()[1] == b"deb http://mirror/ubuntu jammy-updates main universe"
    )


@pytest.mark.parametrize(
    "environ",
    [
        {MIRROR_SECRETS: "file:///srv/secret"},
        {MIRROR_SECRETS: "http://mirror/secret\ndeb http://other x y"},
        {MIRROR_SECRETS: 'http://secret";APT::Update::Pre-Invoke {"sh"};'},
        {"http_proxy": "secret proxy"},
        {SECURITY_MIRROR_SECRETS: "http://secret"},
    ],
)
def test_invalid_apt_settings_are_refused_and_not_repeated(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        apt_secrets(DEBIAN, environ, None)

    assert next(iter(environ)) in refused.value.message
    assert "secret" not in refused.value.message


def test_a_missing_ca_bundle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the CA bundle"):
        apt_secrets(DEBIAN, {}, tmp_path / "none.pem")
