"""Unpacks layers to a root file system and verifies each diff_id on the way."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import BuildFailed, VerificationFailed, printable
from torchkiln.model.digest import Digest
from torchkiln.oci.confine import confined
from torchkiln.oci.extract import EntryRefused, Extractor
from torchkiln.oci.opening import open_layer
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree, tree_size


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBlob:
    """A blob on disk and the expected digest of its tar."""

    path: Path
    diff_id: Digest


def root_of(store: Store, manifest: Digest) -> Path:
    """The folder of the unpacked image *manifest*, which may not exist."""
    return store.root / "rootfs" / manifest.removeprefix("sha256:")


def unpacked_root(manifest: Digest, layers: Sequence[LayerBlob], store: Store) -> Path:
    """The unpacked image *manifest* in the cache, unpacked at the first call. It must not be changed.

    :raises VerificationFailed: a layer has another diff_id, or reaches outside the root.
    :raises BuildFailed: the disk is full or not writable.
    """
    root = root_of(store, manifest)
    if not root.is_dir():
        with store.lock(f"rootfs-{root.name}", "unpacks that image"):
            if not root.is_dir():
                _unpack_into_cache(layers, root, store)
    # The record's time is that of the last use; the time of the root is visible in the image.
    store.touch(store.root / "records" / "roots" / f"{root.name}.json")
    return root


def _unpack_into_cache(layers: Sequence[LayerBlob], root: Path, store: Store) -> None:
    """Unpack in tmp/, which `sweep` cleans after a killed process, and record the size."""
    temporary = store.temporary("root")
    try:
        unpack(layers, temporary)
        size, files = tree_size(temporary)
        # Private: set-user-ID programs of the image would work outside of it, too.
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.parent.chmod(0o700)
        store.put_record("roots", root.name, {"bytes": size, "files": files})
        os.replace(temporary, root)
    except OSError as error:
        raise BuildFailed(f"{root} cannot be created: {error.strerror}") from error
    finally:
        remove_tree(temporary)


def unpack(layers: Sequence[LayerBlob], into: Path) -> None:
    """Unpack *layers*, lowest first, to the folder *into*, which appears complete or not at all.

    If the caller is root, files have the owners of the image; else the caller owns them, and a user namespace
    maps it to root. Later layers may add and replace, not delete: whiteouts are refused, as are device nodes
    and entries that would be written through a link.

    :raises VerificationFailed: a layer is damaged, has another diff_id, or has a refused entry; the message
        names it.
    :raises BuildFailed: the disk is full or not writable.
    """
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    except OSError as error:
        raise BuildFailed(f"{into} cannot be created: {error.strerror}") from error
    try:
        confined(work, lambda check: _unpack_all(layers, work, check))
        os.replace(work, into)
    except OSError as error:
        raise BuildFailed(f"{into} cannot be created: {error.strerror}") from error
    finally:
        remove_tree(work)


def _unpack_all(layers: Sequence[LayerBlob], root: Path, check: Callable[[], None]) -> None:
    root.chmod(0o755)
    extractor = Extractor(root)
    try:
        for layer in layers:
            _unpack_layer(layer, extractor, check)
        extractor.finish()
    finally:
        extractor.close()


def _unpack_layer(layer: LayerBlob, extractor: Extractor, check: Callable[[], None]) -> None:
    hasher, paths = hashlib.sha256(), LayerPaths()

    def pieces(stream: BinaryIO) -> Iterator[bytes]:
        for piece in pieces_of(stream):
            check()
            hasher.update(piece)
            yield piece

    try:
        with open_layer(layer.path, ahead=True) as stream:
            tar = TarReader(pieces(stream))
            for entry in tar:
                for fault in paths.add(entry):
                    raise EntryRefused(fault)
                try:
                    extractor.add(entry, tar.content())
                except EntryRefused as error:
                    raise EntryRefused(f"layer entry {entry.path!r} {error}") from None
    except ValueError as error:
        raise VerificationFailed(f"{layer.path.name}: {printable(str(error))}") from error
    if (found := f"sha256:{hasher.hexdigest()}") != layer.diff_id:
        raise VerificationFailed(
            f"{layer.path.name}: diff_id mismatch: expected {layer.diff_id}, got {found}"
        )
