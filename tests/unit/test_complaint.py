"""Of all that mmdebstrap says when it fails, the reader gets the cause. The lines were said by real ones."""

from __future__ import annotations

from textwrap import dedent

from torchkiln.base.complaint import complaint
from torchkiln.errors import BuildFailed

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


def told(lines: str) -> BuildFailed:
    return complaint(
        25,
        dedent(lines).splitlines(),
        os_name="debian12",
        scratch="/var/tmp",
        elsewhere="another one",
        keys="its keys",
    )


def test_an_archive_that_gives_no_answer_is_named_once_with_what_to_look_at() -> None:
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
        error = told(SILENT.format(why=why))

        assert error.message.splitlines() == [
            "the archive of debian12 cannot be reached:",
            f"  http://archive.test/debian: {why}",
            f"  http://security.test/security: {why}",
        ]
        assert error.hint == (
            "check the network and the proxy (http_proxy, or apt's configuration); another one"
        )


def test_an_answer_is_not_taken_for_silence() -> None:
    error = told(SILENT.format(why="404  Not Found [IP: 192.0.2.1 80]"))

    assert error.message.startswith(
        "mmdebstrap failed with exit status 25:\n  E: Failed to fetch http://arch"
    )
    assert error.hint == "another one"


def test_a_full_disk_is_not_taken_for_a_bad_signature() -> None:
    error = told("""\
        W: GPG error: http://security.test/debian-security bookworm-security InRelease: At least one
        E: The repository 'http://security.test/debian-security bookworm-security InRelease' is not signed.
        E: Write error - write (28: No space left on device)
        E: The package lists or status file could not be parsed or opened.
        E: mmdebstrap failed to run
        """)

    assert error.message == "no space left on device: /var/tmp, where the base of debian12 is built"
    assert "TMPDIR" in error.hint


def test_the_lines_that_tell_stand_and_those_that_only_sigh_do_not() -> None:
    error = told("""\
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
    assert told("Killed\n").message.endswith("exit status 25:\n  Killed")
    assert told("").message.endswith("exit status 25:\n  no output")


UNSIGNED = """\
W: http://archive.test/ubuntu/dists/jammy-updates/InRelease: Key is stored in legacy trusted.gpg keyring
W: GPG error: http://u:p@archive.test/ubuntu jammy InRelease: {why}
E: The repository 'http://u:p@archive.test/ubuntu jammy InRelease' is not signed.
E: The repository 'http://archive.test/ubuntu jammy-security Release' is not signed.
E: apt-get update --error-on=any -oAPT::Status-Fd=<$fd> -oDpkg::Use-Pty=false failed
E: mmdebstrap failed to run
"""


def test_an_archive_that_is_not_signed_by_its_keys_is_told_with_the_reason() -> None:
    """Of each suite; one without any signature has no reason of its own."""
    for why in (
        "The following signatures couldn't be verified because the public key is not available: "
        "NO_PUBKEY B7B9DA27CE5EF82E",
        "The following signatures were invalid: BADSIG B7B9DA27CE5EF82E the stand-in's key",
    ):
        error = told(UNSIGNED.format(why=why))

        assert error.message.splitlines() == [
            "the signature of the archive of debian12 cannot be verified:",
            f"  http://archive.test/ubuntu jammy: {why}",
            "  http://archive.test/ubuntu jammy-security: it has no signature",
        ]
        assert error.hint == "its keys; another one"
