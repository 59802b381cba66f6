"""Makes files in the workspace editable for root and `user`: the ids of `user`, the folder's owner, its ACLs.

See docs/adr/0054-who-owns-the-workspace.md. Only a container that runs as root can do this.
"""

from __future__ import annotations

import os
import pwd
import stat
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NAME = "user"
WORKSPACE = "/workspace"  # the image's volume; a folder of root elsewhere is not given to `user`
AS_USER = ("/bin/sh", "-c", '. /opt/torchkiln/account && exec "$@"', "sh")  # before a command
SERVERS = ".local/share/jupyter/runtime"  # in a home: where JupyterLab lists its servers
MOST_FOLDERS = 10_000  # that get an ACL at a start
_ACL = "system.posix_acl_default"
_EVERYONE = 0xFFFFFFFF  # in an entry without an id


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """`user`, who owns the workspace. `environ`: variables by which programs find its name."""

    uid: int
    gid: int
    home: str
    environ: dict[str, str] = field(default_factory=dict)


def settle(workspace: str, folder: Path, etc: Path = Path("/etc")) -> Account | None:
    """Make `user` the owner of *workspace*; None if it is not: a folder of root that has files, or an engine
    that does not allow it. If /etc is read-only, the names are written into *folder*.
    """
    try:
        known = pwd.getpwnam(NAME)
    except KeyError:  # another base image may not have it
        return None
    found = os.stat(workspace)
    try:
        if found.st_uid == 0 and _is_new(workspace):
            os.chown(workspace, known.pw_uid, known.pw_gid)
            # Without the sticky bit: with it, the kernel can refuse root and `user` the files of each other
            # (fs.protected_regular).
            os.chmod(workspace, found.st_mode & 0o777)
            found = os.stat(workspace)
    except OSError:  # an NFS server, for example, can refuse it
        return None
    uid, gid = found.st_uid, found.st_gid or known.pw_gid
    if uid == 0 or not _can_write(uid, gid, workspace):
        return None
    environ = {}
    if (uid, gid) != (known.pw_uid, known.pw_gid):
        environ = _rename(uid, gid, etc, folder)
        _give_home(known, uid, gid)
    return Account(uid=uid, gid=gid, home=known.pw_dir, environ=environ)


def environ_of(account: Account) -> dict[str, str]:
    """What a program of *account* needs in its environment, apart from *AS_USER*."""
    return {**account.environ, "HOME": account.home, "USER": NAME, "LOGNAME": NAME}


def show_servers_to_root(account: Account) -> None:
    """`docker exec CONTAINER jupyter server list` runs as root: let it find the server of *account*."""
    argv = [*AS_USER, "sh", "-c", f'mkdir -p "$HOME/{SERVERS}" && printf %s "$HOME/{SERVERS}"']
    made = subprocess.run(
        argv,
        env={**os.environ, **environ_of(account)},
        user=account.uid,
        group=account.gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    place = Path.home() / SERVERS
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not made.returncode:
            place.symlink_to(made.stdout)
    except OSError:  # it exists, or the file system is read-only
        return


def _is_new(workspace: str) -> bool:
    """Whether it is a new volume, or a folder that Docker made for a mount.

    In a user namespace, such as that of a rootless engine, root is a user of the host and keeps the folder.
    """
    if workspace != WORKSPACE or not set(os.listdir(workspace)) <= {"lost+found"}:
        return False
    return Path("/proc/self/uid_map").read_text().split()[:2] == ["0", "0"]


def _can_write(uid: int, gid: int, workspace: str) -> bool:
    """Also False if this container cannot start programs as another user."""
    argv = ["/usr/bin/test", "-w", workspace]
    try:
        return subprocess.run(argv, user=uid, group=gid, extra_groups=[], check=False).returncode == 0
    except OSError:
        return False


def _rename(uid: int, gid: int, etc: Path, folder: Path) -> dict[str, str]:
    """Give `user` the ids in /etc/passwd and /etc/group, or else in files that libnss_wrapper reads.

    The line of `user` comes first: another account can have the same uid.
    """
    passwd, group = (etc / "passwd").read_text("utf-8"), (etc / "group").read_text("utf-8")
    (mine,), others = _split(passwd)
    *_, about, home, shell = mine.split(":")
    passwd = "\n".join([f"{NAME}:x:{uid}:{gid}:{about}:{home}:{shell}", *others, ""])
    if str(gid) not in [line.split(":")[2] for line in group.splitlines() if line.count(":") == 3]:
        group = "\n".join([*_split(group)[1], f"{NAME}:x:{gid}:", ""])
    try:
        _replace(etc / "group", group)
        _replace(etc / "passwd", passwd)
    except OSError:
        _replace(folder / "passwd", passwd)
        _replace(folder / "group", group)
        preloaded = os.environ.get("LD_PRELOAD")
        return {
            "NSS_WRAPPER_PASSWD": str(folder / "passwd"),
            "NSS_WRAPPER_GROUP": str(folder / "group"),
            "LD_PRELOAD": f"libnss_wrapper.so:{preloaded}" if preloaded else "libnss_wrapper.so",
        }
    return {}


def _split(text: str) -> tuple[list[str], list[str]]:
    """The lines for `user`, and the others."""
    lines = text.splitlines()
    mine = [line for line in lines if line.startswith(f"{NAME}:")]
    return mine, [line for line in lines if line not in mine]


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.torchkiln")
    part.write_text(text, "utf-8")
    part.chmod(0o644)
    part.replace(path)


def _give_home(known: pwd.struct_passwd, uid: int, gid: int) -> None:
    """Give the home of `user` to its new ids: files of the old uid, on the file system of the home."""
    for descriptor, names in _folders(known.pw_dir):
        try:
            for name in names:
                if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid == known.pw_uid:
                    os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
            if os.stat(descriptor).st_uid == known.pw_uid:
                os.chown(descriptor, uid, gid)
        except OSError:  # a read-only file system
            return


def _folders(top: str) -> Iterator[tuple[int, list[str]]]:
    """A descriptor of each folder from *top* on, and its other entries; links are not followed.

    Descriptors, not paths: who can write to a mounted folder from outside could replace a part of a path by a
    link to a folder of root.
    """
    device = None
    for _, folders, names, descriptor in os.fwalk(top):
        found = os.fstat(descriptor).st_dev
        device = found if device is None else device
        if found != device:
            folders.clear()
        else:
            links = [name for name in folders if _is_link(name, descriptor)]
            yield descriptor, [*names, *links]


def _is_link(name: str, descriptor: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)


def share(workspace: str, uid: int) -> str:
    """Let `user`, with *uid*, edit what root creates in *workspace* from now on: default ACLs on its folders.

    Only folders of `user`, at most MOST_FOLDERS, and none that has such an ACL. Returns a folder of root.
    """
    device, ours = os.stat(workspace).st_dev, ""
    for number, (above, folders, _, descriptor) in enumerate(os.fwalk(workspace)):
        found = os.fstat(descriptor)
        if found.st_uid == 0:
            ours = ours or above
        if found.st_uid != uid or found.st_dev != device:
            folders.clear()
            continue
        try:
            if _ACL not in os.listxattr(descriptor):
                os.setxattr(descriptor, _ACL, _default_acl(found.st_mode, uid))
        except OSError:  # a file system without ACLs
            break
        if number + 1 == MOST_FOLDERS:
            break
    return ours


def _default_acl(mode: int, uid: int) -> bytes:
    """As the kernel stores it, see acl(5): `user` may write; *mode* says if group and others may read."""
    entries = (
        (0x01, 7, _EVERYONE),  # the owner
        (0x02, 7, uid),
        (0x04, mode >> 3 & 5, _EVERYONE),  # the owner's group
        (0x10, 7, _EVERYONE),  # the mask
        (0x20, mode & 5, _EVERYONE),  # others
    )
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
