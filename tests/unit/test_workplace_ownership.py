"""The account `user` with the ids of the workspace's owner; which folders get an ACL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workplace import ownership

PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\n"
    "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "user:x:1000:1000:,,,:/home/user:/bin/bash\n"
    "username:x:1001:1001::/home/username:/bin/sh\n"
)
GROUP = "root:x:0:\ndaemon:x:1:\nusers:x:100:user\nuser:x:1000:\n"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away: run it as root")


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(PASSWD)
    (tmp_path / "etc/group").write_text(GROUP)
    return tmp_path / "etc"


@pytest.mark.parametrize(
    ("gid", "group"), [(1234, GROUP.replace("user:x:1000:", "user:x:1234:")), (100, GROUP)]
)
def test_user_gets_other_ids(etc: Path, tmp_path: Path, gid: int, group: str) -> None:
    """Other accounts stay as they are; a group that has the gid keeps its name."""
    assert ownership._rename(1234, gid, etc, tmp_path) == {}

    passwd = (etc / "passwd").read_text().splitlines()
    assert passwd[0] == f"user:x:1234:{gid}:,,,:/home/user:/bin/bash"
    assert passwd[1:] == [line for line in PASSWD.splitlines() if not line.startswith("user:")]
    assert sorted((etc / "group").read_text().split()) == sorted(group.split())
    assert [(etc / name).stat().st_mode & 0o777 for name in ("passwd", "group")] == [0o644, 0o644]


def test_an_account_that_is_preloaded_keeps_other_libraries(
    etc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If /etc is read-only, libnss_wrapper reads the names from the folder of the services."""
    replace = ownership._replace

    def refuse(path: Path, text: str) -> None:
        if path.parent == etc:
            raise OSError(30, "Read-only file system")
        replace(path, text)

    monkeypatch.setattr(ownership, "_replace", refuse)
    monkeypatch.setenv("LD_PRELOAD", "libmine.so")

    assert ownership._rename(1234, 1234, etc, tmp_path) == {
        "NSS_WRAPPER_PASSWD": str(tmp_path / "passwd"),
        "NSS_WRAPPER_GROUP": str(tmp_path / "group"),
        "LD_PRELOAD": "libnss_wrapper.so:libmine.so",
    }
    assert (tmp_path / "passwd").read_text().startswith("user:x:1234:1234:")
    assert (etc / "passwd").read_text() == PASSWD


@needs_root
def test_only_folders_of_user_get_an_acl(tmp_path: Path) -> None:
    """Not those of root, which is named, nor what a link names, nor one that has such an ACL."""
    for name in ("work", "work/mine", "work/mine/below", "work/roots", "work/roots/below", "else"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 0 if "roots" in name else 1234, 0)
    (tmp_path / "work/link").symlink_to(tmp_path / "else")
    own = ownership._default_acl(0o700, 77)
    os.setxattr(tmp_path / "work/mine/below", ownership._ACL, own)

    assert ownership.share(str(tmp_path / "work"), 1234) == str(tmp_path / "work/roots")
    marked = {
        str(path.relative_to(tmp_path)): os.getxattr(path, ownership._ACL)
        for path in tmp_path.rglob("*")
        if path.is_dir() and not path.is_symlink() and ownership._ACL in os.listxattr(path)
    }
    new = ownership._default_acl(0o755, 1234)
    assert marked == {"work": new, "work/mine": new, "work/mine/below": own}


@needs_root
@pytest.mark.parametrize(("mode", "expected"), [(0o755, 0o664), (0o700, 0o660), (0o777, 0o664)])
def test_a_new_file_is_readable_where_the_folder_is(tmp_path: Path, mode: int, expected: int) -> None:
    """The kernel's own answer: `user` may write; the group's bits of the mode are then the ACL's limit."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(mode)
    os.chown(tmp_path / "work", 1234, 0)
    ownership.share(str(tmp_path / "work"), 1234)
    (tmp_path / "work/file").touch()

    assert (tmp_path / "work/file").stat().st_mode & 0o777 == expected
