"""Reads every entry of a layer above those of the parent image; the layer is hashed while it is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchkiln.errors import VerificationFailed, printable
from torchkiln.oci.layout import LayerOnDisk
from torchkiln.oci.opening import open_layer
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import Stream, TarEntry, TarReader, pieces_of

# Python ignores case in the names of these folders.
_ENTRY_POINTS = re.compile(r"[^/]*\.(?i:dist-info|egg-info)/entry_points\.txt")
_LIMIT = 16 << 20  # bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class UpperLayer:
    """The entries of a layer of the project."""

    entries: tuple[TarEntry, ...]
    entry_points: dict[str, str]  # path -> text of each entry_points.txt
    faults: tuple[str, ...]  # entries that unpackers could interpret differently


def read_layer(layer: LayerOnDisk) -> UpperLayer:
    """The entries of *layer*.

    :raises VerificationFailed: it is damaged, or does not have its digest or diff_id.
    """
    hasher, paths = hashlib.sha256(), LayerPaths()
    entries: list[TarEntry] = []
    texts: dict[str, str] = {}
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
                faults += paths.add(entry)
                entries.append(entry)
                if entry.kind != "file" or not _ENTRY_POINTS.search(entry.path):
                    continue
                if entry.size > _LIMIT:
                    faults.append(f"{entry.path}: has more than {_LIMIT >> 20} MiB")
                else:
                    texts[entry.path] = b"".join(tar.content()).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise VerificationFailed(f"{layer.path.name}: {printable(str(error))}") from error
    if (found := f"sha256:{hasher.hexdigest()}") != layer.diff_id:
        raise VerificationFailed(
            f"{layer.path.name}: diff_id mismatch: expected {layer.diff_id}, got {found}"
        )
    return UpperLayer(entries=tuple(entries), entry_points=texts, faults=tuple(map(printable, faults)))


def _demand_digest(layer: LayerOnDisk) -> None:
    """:raises VerificationFailed: the blob does not have its digest."""
    digest = hashlib.sha256()
    try:
        with layer.path.open("rb") as file:
            for piece in pieces_of(file):
                digest.update(piece)
    except OSError as error:
        raise VerificationFailed(f"{layer.path}: {error.strerror}") from error
    if (found := f"sha256:{digest.hexdigest()}") != layer.digest:
        raise VerificationFailed(f"{layer.path}: digest mismatch: expected {layer.digest}, got {found}")
