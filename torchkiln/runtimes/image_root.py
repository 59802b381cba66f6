"""Provides the root file system of an image, mounted or unpacked, and verifies its files.

Where this user, the kernel and mkfs.erofs allow it, the layers are mounted; else they are unpacked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.errors import BuildFailed, ToolMissing, printable
from torchkiln.model.report import Root
from torchkiln.oci.erofs import Unmountable, place_of
from torchkiln.oci.layer_index import TreeItem, joined
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.unpack import LayerBlob, forget_root, root_of, unpacked_root
from torchkiln.runtimes.layer_indexes import index_of, keep_index, kept_tree
from torchkiln.runtimes.mounted import FOLDER, MountedLayers, are_kept, demand_equal, mounted_layers
from torchkiln.runtimes.runtime import RuntimeListener
from torchkiln.runtimes.verified_root import differences, load_hashes, save_hashes
from torchkiln.store.store import Store

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_NAMED = 3  # maximum of differences in a message


def layers_of(image: ImageOnDisk) -> list[LayerBlob]:
    """The layers of *image* for `unpack`."""
    return [LayerBlob(path=layer.path, diff_id=layer.diff_id, size=layer.size) for layer in image.layers]


def root_for(image: ImageOnDisk, store: Store, listener: RuntimeListener) -> Path | MountedLayers:
    """The root of *image*: its mounted layers, or a folder. Both are made in the cache at the first call.

    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the disk is full or not writable.
    """
    return _mounted(image, store, listener) or unpacked(image, store, listener)


def is_ready(image: ImageOnDisk, store: Store) -> bool:
    """Whether the root of *image* exists in the cache."""
    return root_of(store, image.manifest).is_dir() or are_kept(layers_of(image), store)


def converted(image: ImageOnDisk, store: Store) -> set[Path]:
    """The EROFS images in the cache of layers of *image*."""
    places = (place_of(store.root / FOLDER, layer.diff_id) for layer in image.layers)
    return {path for path in places if path.exists()}


def discard(image: ImageOnDisk, store: Store, *, but: Collection[Path] = ()) -> None:
    """Delete the root of *image* in the cache, unless a command runs in it.

    :param but: EROFS images that stay, because other images may have the same layers.
    """
    forget_root(store, image.manifest)
    for path in converted(image, store).difference(but):
        path.unlink(missing_ok=True)


def _mounted(
    image: ImageOnDisk, store: Store, listener: RuntimeListener, *, compared: bool = False
) -> MountedLayers | None:
    """The mounted layers of *image*, which replace an unpacked copy; None if it has to be unpacked.

    :param compared: compare the mounted files with the layers, if that was never done.
    """
    layers, is_unpacked = layers_of(image), root_of(store, image.manifest).is_dir()
    try:
        found = mounted_layers(layers, store, making=lambda: listener.say(f"converting {image.ref} to EROFS"))
        if compared:
            demand_equal(found, layers, store)
        if is_unpacked:
            forget_root(store, image.manifest)
        return found
    except ToolMissing:
        return None
    except BuildFailed:  # such as a full disk
        if is_unpacked:
            return None
        raise
    except Unmountable as error:
        if error.layer and not is_unpacked:
            listener.say(f"{image.ref} is unpacked, because it cannot be mounted: {error}")
        return None


def unpacked(image: ImageOnDisk, store: Store, listener: RuntimeListener, *, reuse: bool = True) -> Path:
    """The unpacked *image* in the cache, unpacked at the first call.

    :param reuse: the files of an unpacked parent image may be used.
    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the disk is full or not writable.
    """
    listener.unpacks(image, there=root_of(store, image.manifest).is_dir())
    with listener.progress() as observer:
        return unpacked_root(
            image.manifest,
            layers_of(image),
            store,
            indexed=lambda diff_id, index: keep_index(store, diff_id, index),
            reuse=reuse,
            observer=observer,
        )


def verified(
    image: ImageOnDisk, store: Store, listener: RuntimeListener
) -> tuple[Mapping[str, TreeItem], str, Root]:
    """Compare the files of *image* with its layers; return its tree, the time in UTC, and what was compared.

    An unpacked copy that differs or has no signed indexes is deleted, and the image is unpacked again.

    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the copy differs while a command runs in it, or differs again after it was unpacked;
        or the disk is full or not writable.
    """
    layers = layers_of(image)
    if _mounted(image, store, listener, compared=True):
        return joined([index_of(store, layer) for layer in layers]), _now(), "mounted"
    root = unpacked(image, store, listener)
    tree = kept_tree(store, layers)
    faults = ["its list of files is missing or not signed by this machine's key"]
    if tree is not None and not (faults := _differences(root, tree, store)):
        return tree, _now(), "unpacked"
    listener.say(f"the unpacked image differs from its layers and is unpacked again: {_shortened(faults)}")
    forget_root(store, image.manifest)
    if root.exists():
        raise BuildFailed(
            f"{root} differs from the image, and a command is running in it",
            hint="stop that command, and run again",
        )
    unpacked(image, store, listener, reuse=False)  # a file of the parent image may be damaged
    tree = kept_tree(store, layers)
    if tree is None or (faults := _differences(root, tree, store)):
        raise BuildFailed(
            f"{root} differs from the layers that were just unpacked: {_shortened(faults)}",
            hint="check the disk, and whether another program changes the cache",
        )
    return tree, _now(), "unpacked"


def _differences(root: Path, tree: Mapping[str, TreeItem], store: Store) -> list[str]:
    hashes = load_hashes(store, root)
    found = differences(root, tree, hashes)
    save_hashes(store, root, hashes)
    return found


def _shortened(faults: Sequence[str]) -> str:
    more = f" and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    return printable("; ".join(faults[:_NAMED])) + more


def _now() -> str:
    return datetime.now(timezone.utc).strftime(_TIME)
