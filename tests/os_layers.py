"""A parent image with dpkg's database, and a layer with a project's OS packages, for tests of the gate."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace

from tests.oci_samples import Member, tar_of
from tests.project_gate import Scene
from tests.projects import Bench
from tests.stored import put_tar
from torchkiln.model.apt import LockedApt
from torchkiln.model.lock import DebFile
from torchkiln.model.project import ProjectLock
from torchkiln.oci.layout import ImageOnDisk

LIB = "usr/lib/x86_64-linux-gnu"
MODULES = "usr/lib/python3/dist-packages"
STATUS, CACHE, TRIGGERS = "var/lib/dpkg/status", "etc/ld.so.cache", "var/lib/dpkg/triggers/File"
EDITOR, DEBCONF = "var/lib/dpkg/alternatives/editor", "var/cache/debconf/config.dat"
DEBS = tuple(
    DebFile(name=name, version=version, architecture="amd64", source=name, size=100, sha256=letter * 64)
    for name, version, letter in (("libxfake1", "1.0", "a"), ("tool", "1:2.0", "b"))
)


def loader_cache(*pairs: tuple[str, str]) -> bytes:
    """An ld.so.cache of the loader, with these names and paths."""
    texts, entries, start = b"", b"", 48 + 24 * len(pairs)
    for name, path in pairs:
        at = [start + len(texts), start + len(texts) + len(name) + 1]
        entries += struct.pack("<iIIIQ", 0x303, *at, 0, 0)
        texts += f"{name}\0{path}\0".encode()
    return struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(pairs), len(texts)) + entries + texts


def library(soname: str) -> bytes:
    """A shared library that has only a SONAME, without a section table."""
    text = f"\0{soname}\0".encode()
    start = 64 + 2 * 56
    dynamic = struct.pack("<6Q", 5, start + 48, 14, 1, 0, 0)
    size = start + len(dynamic) + len(text)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    found = struct.pack("<IIQQQQQQ", 2, 4, start, start, start, len(dynamic), len(dynamic), 8)
    return head + load + found + dynamic + text


def stanza(name: str, version: str, status: str = "install ok installed") -> str:
    """The entry of a package in dpkg's status file."""
    return f"Package: {name}\nStatus: {status}\nArchitecture: amd64\nVersion: {version}\n\n"


OLD = ("libold.so.1", f"/{LIB}/libold.so.1")
NEW = ("libxfake.so.1", f"/{LIB}/libxfake.so.1")
#: Files of the parent image, besides those of `tiny_root`.
BASE: Mapping[str, bytes] = {
    STATUS: stanza("libc6", "2.36").encode() + stanza("tini", "1").encode(),
    "var/lib/dpkg/info/libc6:amd64.list": b"/.\n",
    TRIGGERS: b"/usr/share/x tini/noawait\n",
    EDITOR: b"auto\n/usr/bin/editor\n\n/bin/nano\n40\n\n",
    DEBCONF: b"Name: tini/x\nTemplate: tini/x\nOwners: tini\n",
    CACHE: loader_cache(OLD),
    f"{LIB}/libold.so.1": b"old",
    "etc/group": b"root:x:0:\nadm:x:4:\nkim:x:1234:\n",
    "etc/gitconfig": b"[safe]\n\tdirectory = *\n",
    "etc/profile.d/a.sh": b"",
    "etc/ld.so.conf.d/a.conf": b"",
    "usr/bin/later": b"",
    "usr/include/stdio.h": b"",
    "usr/lib/gcc/x86_64-linux-gnu/12/cc1": b"",
    "usr/lib/python3.11/os.py": b"",
    f"{MODULES}/known.py": b"",
    f"{LIB}/perl-base/strict.pm": b"",
    "usr/share/doc/libc6/copyright": b"",
}
_LIST = b"/.\n/usr/bin/tool\n/usr/share/tool\n/usr/share/tool/one\n"
#: The files of a valid layer with two OS packages, with a hard link, an account, and changed files of dpkg.
LAYER: Mapping[str, Member] = {
    member.name: member
    for member in (
        Member(name=CACHE, data=loader_cache(NEW, OLD)),
        Member(name="etc/group", data=BASE["etc/group"] + b"tool:x:101:\n"),
        Member(
            name="etc/gitconfig",
            data=BASE["etc/gitconfig"] + b'[filter "lfs"]\n\tclean = git-lfs clean -- %f\n',
        ),
        Member(name="etc/tool/tool.conf", data=b"x", uid=102, gid=101, mode=0o640),
        Member(
            name="etc/passwd",
            data=b"root:x:0:0:root:/root:/bin/sh\nkim:x:1234:1234::/home/kim:/bin/sh\n"
            b"tool:x:102:101::/var/lib/tool:/usr/sbin/nologin\n",
        ),
        Member(name="usr/bin/tool", data=b"#!/bin/sh\n", mode=0o755),
        Member(name="usr/bin/tool2", link="usr/bin/tool", kind=b"1", mode=0o755),
        Member(name="usr/include/tool.h", data=b""),
        Member(name=f"{LIB}/libxfake.so.1", link="libxfake.so.1.0"),
        Member(name=f"{LIB}/libxfake.so.1.0", data=library("libxfake.so.1")),
        Member(name=f"{MODULES}/tooling/__init__.py", data=b""),
        Member(name="usr/share/doc/tool/copyright", data=b"x"),
        *(Member(name=f"usr/share/tool/{number:02}", data=b"x") for number in range(30)),
        Member(name=DEBCONF, data=BASE[DEBCONF] + b"\nName: tool/y\nOwners: tool\n"),
        Member(name=EDITOR, data=BASE[EDITOR] + b"/usr/bin/tool\n20\n\n"),
        Member(name="var/lib/dpkg/info/tool.list", data=_LIST),
        Member(
            name=STATUS,
            data=b"".join([BASE[STATUS], *(stanza(deb.name, deb.version).encode() for deb in DEBS)]),
        ),
        Member(name="var/lib/dpkg/statoverride", data=b"tool tool 640 /etc/tool/tool.conf\n"),
        Member(name=TRIGGERS, data=BASE[TRIGGERS] + b"/usr/share/fonts tool/noawait\n"),
        Member(name="var/lib/tool/", uid=102),
    )
}


def layer_of(members: Iterable[Member]) -> bytes:
    """A layer with *members*, sorted, and the folders above them."""
    found = {member.name.rstrip("/"): member for member in members}
    for path in list(found):
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = "/".join(parts[:count])
            found.setdefault(folder, Member(name=f"{folder}/"))
    return tar_of(found[path] for path in sorted(found))


def changed(*members: Member, without: tuple[str, ...] = ()) -> Callable[[Scene], ImageOnDisk]:
    """An image whose layer of OS packages has *members*, which replace files of the same name."""
    own = {name: member for name, member in LAYER.items() if name not in without}
    return replaced(layer_of((own | {member.name: member for member in members}).values()))


def replaced(*tars: bytes) -> Callable[[Scene], ImageOnDisk]:
    """An image with *tars* in place of the layer of OS packages."""

    def make(there: Scene) -> ImageOnDisk:
        first = len(there.parent.layers)
        rows = [there.stored(tar) for tar in tars]
        return there.mutant(order=lambda found: [*found[:first], *rows, *found[first + 1 :]])

    return make


def rewritten(path: str, old: bytes, new: bytes) -> Callable[[Scene], ImageOnDisk]:
    """An image whose layer of OS packages has *new* in place of *old* in the file *path*."""
    member = LAYER[path]
    assert old in member.data
    return changed(replace(member, data=member.data.replace(old, new)))


def with_packages(small: Bench, lock: ProjectLock) -> ProjectLock:
    """*lock* with two OS packages, whose layer is in the cache."""
    encoded = put_tar(layer_of(LAYER.values()), small.store)
    apt = LockedApt(
        os="debian12",
        requested=("tool",),
        base=small.cell.base.digest,
        debs=DEBS,
        encoder=small.cell.base.encoder,
        **asdict(encoded),
    )
    return replace(lock, apt=apt)
