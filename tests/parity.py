"""Two images in a Docker engine, path by path and setting by setting; read by `docker export`, not by us.

Imports nothing of ours: the oracle must not ask the accused.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

# All that may differ between what pip installs in a Dockerfile and what we write, each with its reason.
INSTALLER = "names who installed"
REQUESTED = "pip writes it for what its command line names; a lock names everything, and we write none"
RECORD = "its lines for INSTALLER, REQUESTED, itself, and for .pyc files, which pip was told not to make"

_METADATA = re.compile(r"\.dist-info/(INSTALLER|REQUESTED|RECORD)$")
_PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Thing:
    """What is at one path. `text` is a RECORD's, which is compared line by line."""

    kind: str
    mode: int
    owner: tuple[int, int]
    size: int = 0
    sha256: str = ""
    link: str = ""
    text: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Image:
    """What a container of it would see, and its configuration as the engine tells it."""

    tree: Mapping[str, Thing]
    config: Mapping[str, Any]


def read_image(name: str, environ: Mapping[str, str]) -> Image:
    """The image *name* of the engine that *environ* leads to."""

    def docker(*arguments: str) -> str:
        return subprocess.run(
            ["docker", *arguments], env=dict(environ), capture_output=True, text=True, check=True
        ).stdout

    container = docker("create", "--entrypoint", "true", name).strip()
    try:
        argv = ["docker", "export", container]
        with subprocess.Popen(argv, env=dict(environ), stdout=subprocess.PIPE) as export:
            assert export.stdout
            with tarfile.open(fileobj=export.stdout, mode="r|") as archive:
                tree = dict(_things(archive))
        assert export.returncode == 0
    finally:
        docker("rm", container)
    (told,) = json.loads(docker("image", "inspect", name))
    return Image(tree=tree, config=told["Config"])


def differences(theirs: Image, ours: Image) -> list[str]:
    """One sentence for each path or setting that is not the same, but for what is listed above."""
    told = [
        f"{path}: only in theirs"
        for path in sorted(theirs.tree.keys() - ours.tree.keys())
        if not path.endswith(".dist-info/REQUESTED")
    ]
    told += [f"{path}: only in ours" for path in sorted(ours.tree.keys() - theirs.tree.keys())]
    for path in sorted(theirs.tree.keys() & ours.tree.keys()):
        told += _differences_at(path, theirs.tree[path], ours.tree[path])
    for key in sorted(theirs.config.keys() | ours.config.keys()):
        if (their := theirs.config.get(key)) != (our := ours.config.get(key)):
            told.append(f"config {key}: theirs {their!r}, ours {our!r}")
    return told


def _differences_at(path: str, their: Thing, our: Thing) -> Iterator[str]:
    metadata = _METADATA.search(path)
    contents = {"size", "sha256", "text"}
    for name in (found.name for found in fields(Thing)):
        same = getattr(their, name) == getattr(our, name)
        if not same and name != "text" and not (metadata and name in contents):
            yield f"{path}: {name}: theirs {getattr(their, name)!r}, ours {getattr(our, name)!r}"
    if metadata and metadata[1] == "RECORD":
        for row in sorted(_rows(their.text) ^ _rows(our.text)):
            yield f"{path}: line {','.join(row)} is not in both"


def _rows(record: str) -> set[tuple[str, ...]]:
    """The lines of a RECORD that both must have."""
    rows = {tuple(row) for row in csv.reader(io.StringIO(record)) if row}
    return {row for row in rows if not row[0].endswith(".pyc") and not _METADATA.search(row[0])}


def _things(archive: tarfile.TarFile) -> Iterator[tuple[str, Thing]]:
    seen: dict[str, Thing] = {}
    for member in archive:
        path = member.name.removeprefix("./").rstrip("/")
        thing = seen[member.linkname] if member.islnk() else _thing(archive, member, path)
        if member.isfile():
            seen[path] = thing
        yield path, thing


def _thing(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> Thing:
    kind = (
        "folder" if member.isdir() else "link" if member.issym() else "file" if member.isfile() else "other"
    )
    size, digest, text = 0, hashlib.sha256(), b""
    content = archive.extractfile(member) if kind == "file" else None
    while content and (piece := content.read(_PIECE)):
        digest.update(piece)
        size += len(piece)
        if path.endswith(".dist-info/RECORD"):
            text += piece
    return Thing(
        kind=kind,
        mode=0o777 if kind == "link" else member.mode,
        owner=(member.uid, member.gid),
        size=size,
        sha256=digest.hexdigest() if kind == "file" else "",
        link=member.linkname if kind == "link" else "",
        text=text.decode(),
    )
