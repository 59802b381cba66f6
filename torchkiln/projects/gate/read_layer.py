"""Reads every entry of a layer of a project's image, and the content that the gate compares.

A layer is hashed while it is read. Files of the parent image are read from its layers, and compared with the
verified list of its files.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torchkiln.elf.sections import BadElf
from torchkiln.elf.soname import soname_of
from torchkiln.errors import VerificationFailed, printable
from torchkiln.oci.layer_index import TreeItem
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.oci.opening import open_layer
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import Stream, TarEntry, TarReader, pieces_of
from torchkiln.projects.gate.entries import LayerEntry
from torchkiln.projects.gate.os_state import FILE_LIMIT, is_read

# Python ignores case in the names of these folders.
_TEXTS = re.compile(r"[^/]*\.((?i:dist-info|egg-info))/(RECORD|METADATA|entry_points\.txt)")
_TEXT_LIMIT = 16 << 20  # bytes
_FILES_LIMIT = 256 << 20  # bytes of all files whose content is compared
_ELF, _ELF_LIMIT = b"\x7fELF", 512 << 20  # bytes; libLLVM has 110 million


@dataclass(frozen=True, kw_only=True, slots=True)
class UpperLayer:
    """The entries of a layer of the project."""

    entries: tuple[LayerEntry, ...]
    texts: Mapping[str, str]  # RECORD, METADATA and entry_points.txt, by path
    faults: tuple[str, ...]  # entries that unpackers could interpret differently
    files: Mapping[str, bytes]  # in the layer of OS packages: files whose content is compared
    sonames: Mapping[str, str | None]  # ELF file -> its SONAME, as in `OsLayer`


def read_layer(layer: LayerOnDisk, *, system: bool = False) -> UpperLayer:
    """The entries of *layer*.

    :param system: *layer* has the OS packages: also read SONAMEs, and the files of dpkg's state.
    :raises VerificationFailed: it is damaged, or does not have its digest or diff_id.
    """
    hasher, paths = hashlib.sha256(), LayerPaths()
    entries: list[LayerEntry] = []
    kept = _Kept(system=system)
    faults: list[str] = []

    def pieces(stream: Stream) -> Iterator[bytes]:
        for piece in pieces_of(stream):
            hasher.update(piece)
            yield piece

    _demand_digest(layer)
    try:
        with open_layer(layer.path, ahead=True) as stream:
            tar = TarReader(pieces(stream))
            for entry in tar:
                if system or entry.kind != "hard link":  # in other layers every hard link is refused
                    faults += paths.add(entry)
                if entry.size > _TEXT_LIMIT and _TEXTS.search(entry.path):
                    faults.append(f"{entry.path}: has more than {_TEXT_LIMIT >> 20} MiB")
                entries.append(_listed(entry, kept.read(entry, tar)))
    except (OSError, ValueError) as error:
        raise VerificationFailed(f"{layer.path.name}: {printable(str(error))}") from error
    if (found := f"sha256:{hasher.hexdigest()}") != layer.diff_id:
        raise VerificationFailed(
            f"{layer.path.name}: diff_id mismatch: expected {layer.diff_id}, got {found}"
        )
    return UpperLayer(
        entries=tuple(entries),
        texts=kept.texts,
        faults=tuple(map(printable, faults)),
        files=kept.files,
        sonames=kept.sonames,
    )


def files_below(
    image: ImageOnDisk, tree: Mapping[str, TreeItem], paths: Collection[str]
) -> Mapping[str, bytes]:
    """The content of *paths*, if they are files of *image*; *tree* is its verified list of files.

    :raises VerificationFailed: a layer is damaged, or a file differs from the list.
    """
    wanted = defaultdict[int, set[str]](set)
    for path in paths & tree.keys():
        if (item := tree[path]).entry.kind == "file" and item.entry.size <= FILE_LIMIT:
            wanted[item.layer].add(path)
    found: dict[str, bytes] = {}
    for number, here in wanted.items():
        layer = image.layers[number]
        try:
            with open_layer(layer.path, ahead=True) as stream:
                tar = TarReader(pieces_of(stream))
                for entry in tar:
                    if entry.path in here and entry.kind == "file":
                        found[entry.path] = b"".join(tar.content())
                        here.discard(entry.path)
                    if not here:
                        break
        except (OSError, ValueError) as error:
            raise VerificationFailed(f"{layer.path.name}: {printable(str(error))}") from error
    for path in sorted(set().union(*wanted.values())):
        raise VerificationFailed(f"{path} is missing in the layer that contained it before")
    for path, data in found.items():
        if hashlib.sha256(data).hexdigest() != tree[path].entry.sha256:
            raise VerificationFailed(f"{path} of the parent image does not have the recorded SHA-256")
    return found


def _demand_digest(layer: LayerOnDisk) -> None:
    """:raises VerificationFailed: the blob does not have its digest."""
    try:
        with layer.path.open("rb") as file:
            digest = hashlib.sha256()
            for piece in pieces_of(file):
                digest.update(piece)
    except OSError as error:
        raise VerificationFailed(f"{layer.path}: {error.strerror}") from error
    if (found := digest.hexdigest()) != layer.digest.removeprefix("sha256:"):
        raise VerificationFailed(
            f"{layer.path}: digest mismatch: expected {layer.digest}, got sha256:{found}"
        )


class _Kept:
    """Reads the entries of a layer, and keeps the content that the gate needs."""

    def __init__(self, *, system: bool) -> None:
        self.texts: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.sonames: dict[str, str | None] = {}
        self._system, self._left = system, _FILES_LIMIT

    def read(self, entry: TarEntry, tar: TarReader) -> str:
        """Read *entry*, and keep its content if needed; returns the SHA-256 of a file, else an empty text."""
        if entry.kind != "file":
            return ""
        text = _TEXTS.search(entry.path) is not None and entry.size <= _TEXT_LIMIT
        file = self._system and is_read(entry.path) and entry.size <= min(FILE_LIMIT, self._left)
        digest, data, keep = hashlib.sha256(), bytearray(), text or file
        for number, piece in enumerate(tar.content()):
            digest.update(piece)
            if self._system and number == 0 and piece[: len(_ELF)] == _ELF:
                self.sonames[entry.path] = None
                keep |= entry.size <= _ELF_LIMIT
            if keep:
                data += piece
        if text:
            self.texts[entry.path] = data.decode("utf-8", "replace")
        if file:
            self.files[entry.path] = bytes(data)
            self._left -= len(data)
        if entry.path in self.sonames and keep:
            self.sonames[entry.path] = _soname(data)
        return digest.hexdigest()


def _soname(data: bytearray) -> str | None:
    try:
        return soname_of(memoryview(data))
    except BadElf:
        return None


def _listed(entry: TarEntry, sha256: str) -> LayerEntry:
    return LayerEntry(
        path=entry.path,
        kind=entry.kind,
        mode=entry.mode & 0o7777,
        uid=entry.uid,
        gid=entry.gid,
        size=entry.size,
        sha256=sha256,
        target=entry.target,
        xattrs=bool(entry.xattrs),
    )
