"""A parent image with dpkg's database, and a layer with a project's OS packages, for tests of the gate."""

from __future__ import annotations

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
STATUS = "var/lib/dpkg/status"
DEBS = tuple(
    DebFile(name=name, version=version, architecture="amd64", source=name, size=100, sha256=letter * 64)
    for name, version, letter in (("libxfake1", "1.0", "a"), ("tool", "1:2.0", "b"))
)


def stanza(name: str, version: str) -> bytes:
    """The entry of a package in dpkg's status file."""
    text = f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n\n"
    return text.encode()


#: Files of the parent image, besides those of `tiny_root`.
BASE: Mapping[str, bytes] = {
    STATUS: stanza("libc6", "2.36") + stanza("tini", "1"),
    "var/lib/dpkg/info/libc6:amd64.list": b"/.\n",
    "usr/share/doc/libc6/copyright": b"",
}
#: The files of a layer with two OS packages.
LAYER: Mapping[str, Member] = {
    member.name: member
    for member in (
        Member(name="usr/bin/tool", data=b"#!/bin/sh\n", mode=0o755),
        Member(name=f"{LIB}/libxfake.so.1", link="libxfake.so.1.0"),
        Member(name=f"{LIB}/libxfake.so.1.0", data=b"x"),
        Member(name="usr/share/doc/tool/copyright", data=b"x"),
        Member(name="var/lib/dpkg/info/tool.list", data=b"/.\n/usr/bin/tool\n"),
        Member(name=STATUS, data=BASE[STATUS] + b"".join(stanza(deb.name, deb.version) for deb in DEBS)),
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


def second_layer(there: Scene) -> ImageOnDisk:
    """An image with a second layer of OS packages above the layer with the project's code."""
    tar = layer_of([LAYER["usr/bin/tool"]])
    return there.mutant(tar, order=lambda rows: [*rows[:-2], rows[-1], rows[-2]])


#: What the gate refuses, because no build made such a layer: its content, number or order.
MUTANTS: Mapping[str, Callable[[Scene], ImageOnDisk]] = {
    "another file": changed(Member(name="etc/ld.so.preload", data=b"x")),
    "another content": changed(Member(name=STATUS, data=LAYER[STATUS].data + stanza("evil", "1"))),
    "another mode": changed(replace(LAYER["usr/bin/tool"], mode=0o4755)),
    "another owner": changed(replace(LAYER["usr/bin/tool"], uid=102)),
    "capabilities": changed(replace(LAYER["usr/bin/tool"], xattrs=("security.capability",))),
    "another link": changed(Member(name=f"{LIB}/libxfake.so.1", link="/app/x.so")),
    "a whiteout": changed(Member(name="usr/bin/.wh.env")),
    "a file is missing": changed(without=(STATUS,)),
    "a second layer above the code": second_layer,
    "no layer": replaced(),
}


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
