"""layers → a root file system in a folder, each diff_id verified while its bytes pass."""

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
from torchkiln.oci.extract import Extractor, Refused
from torchkiln.oci.opening import open_layer
from torchkiln.oci.tar_names import Names
from torchkiln.oci.tar_reader import TarReader, pieces_of
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree, tree_size


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBlob:
    """A blob on disk and the digest of the tar in it."""

    path: Path
    diff_id: Digest


def root_of(store: Store, manifest: Digest) -> Path:
    """Where the unpacked image *manifest* lies, if it does."""
    return store.root / "rootfs" / manifest.removeprefix("sha256:")


def unpacked_root(manifest: Digest, layers: Sequence[LayerBlob], store: Store) -> Path:
    """The unpacked image *manifest* in the cache; unpacked at the first call. Nobody may write into it.

    :raises VerificationFailed: a layer is not what its diff_id says, or reaches outside the root.
    :raises BuildFailed: the disk is full or not writable.
    """
    place = root_of(store, manifest)
    if not place.is_dir():
        with store.lock(f"rootfs-{place.name}", "unpacks that image"):
            if not place.is_dir():
                _keep(layers, place, store)
    # The record's time is that of the last use; the root's own is seen inside.
    store.touch(store.root / "records" / "roots" / f"{place.name}.json")
    return place


def _keep(layers: Sequence[LayerBlob], place: Path, store: Store) -> None:
    """Unpack in tmp/, where `sweep` finds what is left of it if we are killed; and note how much it is."""
    temporary = store.temporary("root")
    try:
        unpack(layers, temporary)
        size, files = tree_size(temporary)
        # Nobody else may reach what is in it: programs that run as root are set-user-id outside of it too.
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.parent.chmod(0o700)
        store.put_record("roots", place.name, {"bytes": size, "files": files})
        os.replace(temporary, place)
    except OSError as error:
        raise BuildFailed(f"{place} cannot be made: {error.strerror}") from error
    finally:
        remove_tree(temporary)


def unpack(layers: Sequence[LayerBlob], into: Path) -> None:
    """Unpack *layers*, lowest first, to the folder *into*, which appears whole or not at all.

    As root the owners are the image's; else everything is the caller's, which a user namespace maps to root.
    Later layers may add and replace, not delete: whiteouts are refused, as are device nodes and whatever
    would be written through a link.

    :raises VerificationFailed: a layer is damaged, not what its diff_id says, or refused; names it.
    :raises BuildFailed: the disk is full or not writable.
    """
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    except OSError as error:
        raise BuildFailed(f"{into} cannot be made: {error.strerror}") from error
    try:
        confined(work, lambda check: _unpack_all(layers, work, check))
        os.replace(work, into)
    except OSError as error:
        raise BuildFailed(f"{into} cannot be made: {error.strerror}") from error
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
    hasher, names = hashlib.sha256(), Names()

    def pieces(stream: BinaryIO) -> Iterator[bytes]:
        for piece in pieces_of(stream):
            check()
            hasher.update(piece)
            yield piece

    try:
        with open_layer(layer.path, ahead=True) as stream:
            tar = TarReader(pieces(stream))
            for entry in tar:
                for fault in names.add(entry):
                    raise Refused(fault)
                try:
                    extractor.add(entry, tar.content())
                except Refused as error:
                    raise Refused(f"layer entry {entry.path!r} {error}") from None
    except ValueError as error:
        raise VerificationFailed(f"{layer.path.name}: {printable(str(error))}") from error
    if (found := f"sha256:{hasher.hexdigest()}") != layer.diff_id:
        raise VerificationFailed(f"{layer.path.name}: its tar is {found}, not {layer.diff_id}")
