"""Writes an image's files as one squashfs, which pyxis, enroot and Apptainer start from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from torchkiln.errors import BuildFailed, ToolMissing
from torchkiln.oci.layer_index import IndexedEntry, LayerIndex, joined
from torchkiln.oci.piped import ProgramFailed, piped
from torchkiln.oci.tar import END, entry_header, padding
from torchkiln.oci.tar_reader import TarEntry
from torchkiln.oci.unpack import LayerBlob, read_layer

PROGRAM = "tar2sqfs"
# A thread for each core; the result does not depend on their number.
_ARGUMENTS = (
    *("--quiet", "--no-skip", "--compressor", "zstd", "--comp-extra", "level=3", "--block-size", "131072"),
)
_VARIABLES = "etc/environment"


def find_tar2sqfs() -> str:
    """The path of tar2sqfs.

    :raises ToolMissing: it is not installed.
    """
    found = shutil.which(PROGRAM)
    if found is None:
        raise ToolMissing(f"{PROGRAM}: command not found", hint="apt-get install squashfs-tools-ng")
    return found


def write_squashfs(
    layers: Sequence[LayerBlob],
    indexes: Sequence[LayerIndex],
    env: Mapping[str, str],
    target: Path,
    program: str,
) -> None:
    """Write the files of the image with *layers* to *target*, which exists complete or not at all.

    The same image gives the same bytes with the same version of *program*.

    :param indexes: the entries of each layer.
    :param env: the image's variables, for /etc/environment, from which Enroot reads them.
    :raises VerificationFailed: a layer is damaged or has another diff_id.
    :raises BuildFailed: the disk is full or not writable, or *program* fails.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            made = Path(folder, "image.squashfs")
            own = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
            argv = (program, *_ARGUMENTS, "--force", str(made))
            # If tar2sqfs fails, it deletes the file. While the file is open, a full disk can be recognized.
            with made.open("wb"), piped(argv, Path(folder), own) as write:
                write_tar(layers, indexes, env, write)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.chmod(0o644)
            os.replace(made, target)
    except (OSError, ProgramFailed) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BuildFailed(f"{target} cannot be created: {reason}") from error


def write_tar(
    layers: Sequence[LayerBlob],
    indexes: Sequence[LayerIndex],
    env: Mapping[str, str],
    write: Callable[[bytes], object],
) -> None:
    """Write the tree of an image as one tar: its folders, then the other entries of each layer, lowest first.

    The file /etc/environment has the variables *env* instead of its content in the image.

    :raises VerificationFailed: a layer is damaged or has another diff_id.
    :raises BuildFailed: a variable has a line break, and would be two in the file.
    """
    tree = joined(indexes)
    for path in sorted(path for path, item in tree.items() if item.entry.kind == "folder"):
        write(entry_header(tree[path].entry))
    if odd := next((name for name, value in env.items() if "\n" in name + value), None):
        raise BuildFailed(f"/{_VARIABLES} cannot contain the variable {odd!r}: it has a line break")
    lines = "".join(f"{name}={value}\n" for name, value in sorted(env.items())).encode()
    write(entry_header(IndexedEntry(_VARIABLES, "file", mode=0o644, size=len(lines))))
    write(lines + padding(len(lines)))
    for number, (layer, index) in enumerate(zip(layers, indexes, strict=True)):
        own = {path: item.entry for path, item in tree.items() if item.layer == number and path != _VARIABLES}
        read_layer(layer, partial(_add, own, _names(index, own), write), lambda _: None)
    write(END)


def _names(index: LayerIndex, own: Mapping[str, IndexedEntry]) -> Mapping[str, str]:
    """For each file of a layer, the first of its names that is in the image, which gets the content.

    :param own: the entries that the image has from the layer; the other names were replaced or removed.
    """
    names: dict[str, str] = {}
    for row in index:
        if row.path in own and row.kind in ("file", "hard link"):
            names.setdefault(row.target or row.path, row.path)
    return names


def _add(
    own: Mapping[str, IndexedEntry],
    names: Mapping[str, str],
    write: Callable[[bytes], object],
    entry: TarEntry,
    content: Iterable[memoryview],
) -> None:
    """Write an entry of a layer if it is in the image."""
    name = names.get(entry.target if entry.kind == "hard link" else entry.path)
    if entry.kind == "file" and name:
        write(entry_header(own[name]))
        for piece in content:
            write(bytes(piece))
        write(padding(entry.size))
    elif entry.path in own and entry.path != name and entry.kind in ("link", "hard link"):
        item = own[entry.path]
        linked = replace(item, kind="hard link", target=name) if entry.kind == "hard link" and name else item
        write(entry_header(linked))
    deque(content, maxlen=0)
