"""Converts layers to EROFS images, which the kernel mounts, so that nothing has to be unpacked.

A folder of them can be a cache of containerd (`layer_content_caches`, from 2.4): the names, the UUID and the
arguments of mkfs.erofs are those of containerd, with the options that it names for the same bytes each time.
github.com/containerd/containerd/blob/main/docs/snapshotters/erofs.md
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.model.digest import Digest
from torchkiln.oci.layer_index import LayerIndex, listed
from torchkiln.oci.piped import ProgramFailed, piped
from torchkiln.oci.tar import END, entry_header, padding
from torchkiln.oci.tar_names import removed_by
from torchkiln.oci.tar_reader import TarEntry
from torchkiln.oci.unpack import LayerBlob, confined, read_layer
from torchkiln.util.files import folder_at, named

PROGRAM = "mkfs.erofs"
_MIN_VERSION = (1, 8, 2)  # the first version with --sort=none
_SIBLINGS = 30_000  # entries of a directory: mkfs.erofs compares each with all others, which takes 13 s
_ARGUMENTS = (
    *("--tar=f", "--aufs", "--quiet", "-Enoinline_data", "-b4096", "--sort=none"),
    *("-zlz4", "-C65536", "-T0", "--mkfs-time"),
)


class Unmountable(Exception):
    """A layer that cannot be mounted, or that, mounted over others, would give another tree than unpacked.

    Such are layers with extended attributes, with opaque whiteouts, or without the parents of their files.
    """

    def __init__(self, reason: str, layer: str = "", *, lasting: bool = False) -> None:
        """*layer*: its diff_id; without it, this host or user cannot mount any.

        :param lasting: it is a property of the layer, not of this attempt, such as a full disk.
        """
        super().__init__(f"layer {layer[:19]}: {reason}" if layer else reason)
        self.layer, self.lasting = layer, lasting


def place_of(folder: Path, diff_id: Digest) -> Path:
    """The path in *folder* of the EROFS image of the layer *diff_id*, as containerd names it."""
    algorithm, _, value = diff_id.partition(":")
    return folder / algorithm / value[:2] / f"{value}.erofs"


def places(folder: Path, pattern: str) -> list[Path]:
    """The files at the places of EROFS images in *folder* that match *pattern*; no link is followed."""
    return [path for path in sorted(folder.glob(f"sha256/??/{pattern}")) if named(path.parent) == path.parent]


def images_in(folder: Path) -> Iterator[tuple[Path, Digest]]:
    """The EROFS images in *folder*, with the diff_ids of their layers; other files are left out."""
    for path in places(folder, "*.erofs"):
        diff_id = Digest(f"sha256:{path.stem}")
        if len(path.stem) == 64 and path == place_of(folder, diff_id):
            yield path, diff_id


def find_mkfs() -> str:
    """The path of mkfs.erofs.

    :raises ToolMissing: it is not installed, or too old.
    """
    hint = (
        "install erofs-utils 1.8.2 or newer (apt-get install erofs-utils; Debian 13 and Ubuntu 25.04 have it)"
    )
    found = shutil.which(PROGRAM)
    if found is None:
        raise ToolMissing(f"{PROGRAM}: command not found", hint=hint)
    try:
        done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolMissing(f"{found} --version failed: {error}", hint=hint) from error
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout + done.stderr)
    version = tuple(int(number or 0) for number in match.groups()) if match else ()
    if version < _MIN_VERSION:
        raise ToolMissing(f"{found} is too old: version {match[0] if match else 'unknown'}", hint=hint)
    return found


def convert(layer: LayerBlob, target: Path, mkfs: str) -> LayerIndex:
    """Write the EROFS image of *layer* to *target*, which exists complete or not at all; return its entries.

    mkfs.erofs reads what may be a stranger's files: if the kernel supports Landlock, it can write only to a
    temporary folder next to *target*.

    :raises Unmountable: mkfs.erofs fails, or as described there.
    :raises VerificationFailed: *layer* is damaged or has another diff_id.
    :raises BuildFailed: the disk is full or not writable, or a link leads to the folder of *target*.
    """
    try:
        with (
            folder_at(target.parent, make=0o777),
            tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder,
        ):
            made = Path(folder, "layer.erofs")
            index = confined(Path(folder), lambda check: _converted(layer, made, mkfs, check))
            _demand_plain(index)
            made.chmod(0o444)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(made, target)
            return index
    except OSError as error:
        raise BuildFailed(f"{target} cannot be created: {error.strerror}") from error


def _converted(layer: LayerBlob, made: Path, mkfs: str, check: Callable[[], None]) -> LayerIndex:
    argv = (mkfs, *_ARGUMENTS, "-U", str(uuid.uuid5(uuid.NAMESPACE_URL, f"erofs:blobs/{layer.diff_id}")))
    try:
        with piped((*argv, str(made)), made.parent) as write:
            index = read_layer(layer, partial(_add, write, Counter()), lambda _: check())
            write(END)
            return index
    except ProgramFailed as error:
        raise Unmountable(str(error)) from error


def _add(
    write: Callable[[bytes], None], siblings: Counter[str], entry: TarEntry, content: Iterable[memoryview]
) -> None:
    """Write *entry* with a new header: mkfs.erofs skips or changes what it does not know in another one.

    :raises Unmountable: it has extended attributes, or its directory too many entries.
    """
    if entry.xattrs:  # unpacking drops them, and EROFS keeps them
        raise Unmountable(f"{entry.path}: has extended attributes", lasting=True)
    folder = entry.path.rpartition("/")[0]
    siblings[folder] += 1
    if siblings[folder] > _SIBLINGS:
        raise Unmountable(f"{folder or '.'}: has more than {_SIBLINGS} entries", lasting=True)
    write(entry_header(listed(entry)))
    for piece in content:
        write(bytes(piece))
    write(padding(entry.size))


def _demand_plain(index: LayerIndex) -> None:
    """:raises Unmountable: see there."""
    folders = {entry.path for entry in index if entry.kind == "folder"} | {""}
    for entry in index:
        parent, _, name = entry.path.rpartition("/")
        if parent not in folders:
            raise Unmountable(f"{entry.path}: the layer does not contain its parent directory", lasting=True)
        if name.startswith(".wh.") and (entry.kind != "file" or entry.size or not removed_by(entry.path)):
            raise Unmountable(f"{entry.path}: a whiteout that is opaque, or not an empty file", lasting=True)
