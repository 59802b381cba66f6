"""Checks that other users cannot change the contents of a folder, as OpenSSH's StrictModes does for ~/.ssh.

The folder, each of its parents and each link on its path must belong to the current user or to root, and no
other user may write there. A parent with the sticky bit (/tmp) may be writable by all, because no other user
can rename the user's files in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from torchkiln.errors import ConfigError

_LINKS = 40  # the kernel's limit
_OVERFLOW = 65534  # the owner that a user namespace shows for unmapped users
_ALL = 4294967295


def require_private(path: Path, what: str, below: Sequence[str] = (), *, hint: str) -> None:
    """Check the folder *path* and the names *below* in it; it need not exist.

    :raises ConfigError: other users could change its contents.
    """
    if reason := fault(path) or fault_below(path, below):
        raise ConfigError(f"{what} {path} can be changed by other users: {reason}", hint=hint)


def fault(path: Path) -> str:
    """Why other users could change the contents of the folder *path*, as a sentence; empty if they cannot.

    A missing folder is no fault, because torchkiln creates it with mode 0700.
    """
    parts = list(reversed(path.absolute().parts[1:]))
    here, links = Path("/"), 0
    while not (reason := _of_folder(here, last=not parts)) and parts:
        name = parts.pop()
        if name == "..":
            here = here.parent
            continue
        try:
            found = (here / name).lstat()
        except OSError:  # it is missing, or the code that opens it reports the error
            return ""
        if not stat.S_ISLNK(found.st_mode):
            here /= name
            continue
        links += 1
        if links > _LINKS:
            return f"{here / name}: too many levels of symbolic links"
        if not _is_trusted(found.st_uid):
            return f"{here / name} is a symbolic link owned by {_user(found.st_uid)}"
        target = Path(os.readlink(here / name))
        here = Path("/") if target.is_absolute() else here
        parts += [part for part in reversed(target.parts) if part != "/"]
    return reason


def fault_below(root: Path, names: Sequence[str]) -> str:
    """As `fault`, for *names* below a *root* without faults; symbolic links are faults too."""
    for name in names:
        try:
            found = (root / name).lstat()
        except OSError:  # it does not exist yet
            continue
        if stat.S_ISLNK(found.st_mode):
            return f"{root / name} is a symbolic link"
        if reason := _of_folder(root / name, last=True):
            return reason
    return ""


def fault_of_secret(found: os.stat_result) -> str:
    """Why a file with a private key must not be used; empty if it may."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a regular file"
    if found.st_uid != os.geteuid():
        return f"it is owned by {_user(found.st_uid)}"
    if found.st_mode & 0o077:
        return f"other users can read or write it (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _of_folder(path: Path, *, last: bool) -> str:
    try:
        found = path.lstat()
    except OSError:
        return ""
    if not _is_trusted(found.st_uid) and (last or not _is_unknown(found.st_uid)):
        return f"{path} is owned by {_user(found.st_uid)}"
    mode = stat.S_IMODE(found.st_mode)
    if mode & stat.S_ISVTX and not last:
        return ""
    if mode & 0o002:
        return f"every user can write {path} (mode {mode:04o})"
    if mode & 0o020 and not _is_only_ours(path, found.st_gid):
        return f"the group {found.st_gid} can write {path} (mode {mode:04o})"
    return ""


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())


@cache
def _is_unknown(uid: int) -> bool:
    """Whether this user namespace does not map *uid*, as is usual for the host's root."""
    try:
        lines = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
        mapped = [(int(first), int(count)) for first, _, count in lines]
    except (OSError, ValueError):
        return False
    if any(count == _ALL for _, count in mapped):
        return False
    return uid == _OVERFLOW and not any(first <= uid < first + count for first, count in mapped)


def _is_only_ours(path: Path, gid: int) -> bool:
    """Whether *gid* is the private group of this user, as Debian, Ubuntu and Fedora create for each user.

    Their umask is 002, so a folder that this group can write is still private.
    """
    with suppress(OSError):
        if os.geteuid() == 0 or "system.posix_acl_access" in os.listxattr(path):
            return False
    return _is_private_group(os.geteuid(), gid)


@cache
def _is_private_group(uid: int, gid: int) -> bool:
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        user.pw_gid == gid
        and group.gr_name == user.pw_name
        and set(group.gr_mem) <= {user.pw_name}
        and not any(other.pw_gid == gid and other.pw_uid != uid for other in pwd.getpwall())
    )


def _user(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user id {uid}"
