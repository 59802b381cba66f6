"""Keeps the layers of images in the cache as EROFS images, and mounts them.

An image is checked when it is made: it comes from the verified bytes of its layer. Later it counts as
unchanged if its size, times and inode are those in a record that this machine signed, and the file system is
local; else its SHA-256 is compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchkiln.attest import machine_key
from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.erofs import Unmountable, convert, find_mkfs, place_of
from torchkiln.oci.layer_index import joined
from torchkiln.oci.tar_names import removed_by
from torchkiln.oci.unpack import LayerBlob
from torchkiln.runtimes import erofs_mount
from torchkiln.runtimes.layer_indexes import index_of, keep_index
from torchkiln.runtimes.verified_root import KnownHashes, Stamp, differences, hashed, is_local, stamp_of
from torchkiln.store.store import Store

FOLDER = RECORDS = "erofs"
_TYPE = "application/vnd.torchkiln.erofs"  # payload type
_TICK = 0.02  # seconds; two changes of a file within a tick of the kernel's clock may have the same ctime


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerImage:
    """An EROFS image in the cache, whose content was checked."""

    path: Path
    diff_id: Digest
    stamp: Stamp
    sha256: str
    compared: bool = False  # the mounted files were compared with the layer

    def opened(self) -> int:
        """A descriptor of the file.

        :raises BuildFailed: it is missing, or was changed after it was checked.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise BuildFailed(f"{self.path}: {error.strerror}", hint="run again") from error
        if stamp_of(os.fstat(descriptor)) != self.stamp:
            os.close(descriptor)
            raise BuildFailed(f"{self.path} was changed after it was checked", hint="run again")
        return descriptor


@dataclass(frozen=True, kw_only=True, slots=True)
class MountedLayers:
    """The layers of an image, lowest first."""

    layers: tuple[LayerImage, ...]

    @contextlib.contextmanager
    def mounts(self) -> Iterator[tuple[int, ...]]:
        """A mount for each layer, see `erofs_mount.mounts`.

        :raises BuildFailed: see `LayerImage.opened`.
        :raises OSError: the kernel refuses one.
        """
        with contextlib.ExitStack() as stack:
            images = []
            for layer in self.layers:
                images.append(layer.opened())
                stack.callback(os.close, images[-1])
            yield stack.enter_context(erofs_mount.mounts(images))


def are_kept(layers: Sequence[LayerBlob], store: Store) -> bool:
    """Whether *store* has an EROFS image of each of *layers*."""
    return all(place_of(store.root / FOLDER, layer.diff_id).exists() for layer in layers)


def mounted_layers(
    layers: Sequence[LayerBlob], store: Store, *, making: Callable[[], None] = lambda: None
) -> MountedLayers:
    """The EROFS images of *layers*, made at the first call, several side by side.

    :param making: called before the first one is made.
    :raises Unmountable: a layer, this host or this user does not allow it.
    :raises ToolMissing: mkfs.erofs is missing or too old.
    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the disk is full or not writable.
    """
    if reason := erofs_mount.fault():
        raise Unmountable(reason)
    if not are_kept(layers, store):
        find_mkfs()
        for layer in layers:
            _demand_no_fault(layer.diff_id, _record(store, layer.diff_id))
        making()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = MountedLayers(layers=tuple(pool.map(lambda layer: _kept(layer, store), layers)))
    try:
        with found.mounts():
            return found
    except OSError as error:
        raise Unmountable(f"the kernel cannot mount an EROFS image: {error.strerror}") from error


def demand_equal(mounted: MountedLayers, layers: Sequence[LayerBlob], store: Store) -> MountedLayers:
    """Compare the mounted files of *layers* with the layers, once for each layer of this cache.

    :raises Unmountable: a file differs, so that mkfs.erofs reads that layer in another way than torchkiln.
    """
    with mounted.mounts() as mounts:
        for layer, image, mount in zip(layers, mounted.layers, mounts, strict=True):
            if image.compared:
                continue
            index = index_of(store, layer)
            removed = [path for entry in index if (path := removed_by(entry.path))]
            root = Path(f"/proc/self/fd/{mount}")
            if faults := differences(root, joined([index]), KnownHashes(), removed=removed):
                forget(store, layer.diff_id, faults[0])
                raise Unmountable(
                    f"{len(faults)} mounted files differ from the layer: {faults[0]}", layer.diff_id
                )
            keep(store, replace(image, compared=True))
    return mounted


def _kept(layer: LayerBlob, store: Store) -> LayerImage:
    path = place_of(store.root / FOLDER, layer.diff_id)
    with store.lock(f"erofs-{path.stem}", "converts that layer to EROFS"):
        known = _record(store, layer.diff_id)
        _demand_no_fault(layer.diff_id, known)
        if found := _unchanged(path, layer.diff_id, known):
            if found.stamp != tuple(known["stamp"]):
                keep(store, found)
            store.touch(store.root / "records" / RECORDS / f"{path.stem}.json")
            return found
        store.private(FOLDER)
        temporary = store.temporary("erofs")  # after a crash, the next process deletes it
        try:
            index = convert(layer, temporary, find_mkfs())
            with store.writable():
                store.adopt(temporary, path)
        except Unmountable as error:
            if error.lasting:
                forget(store, layer.diff_id, str(error))
            raise Unmountable(str(error), layer.diff_id) from error
        finally:
            temporary.unlink(missing_ok=True)
        keep_index(store, layer.diff_id, index)
        made = _hashed(path, layer.diff_id)
        keep(store, made)
        return made


def _demand_no_fault(diff_id: Digest, known: dict[str, Any]) -> None:
    """:raises Unmountable: it is *known* that the layer *diff_id* cannot be mounted."""
    if known.get("fault"):
        raise Unmountable(known["fault"], diff_id)


def keep(store: Store, image: LayerImage) -> None:
    """Store what is known of *image*, signed by this machine."""
    known = {
        "diff_id": image.diff_id,
        "stamp": image.stamp,
        "sha256": image.sha256,
        "compared": image.compared,
    }
    _put(store, image.diff_id, known)


def forget(store: Store, diff_id: Digest, fault: str) -> None:
    """Delete the image of the layer *diff_id*, which has the *fault*, so that it is not made again."""
    path = place_of(store.root / FOLDER, diff_id)
    path.unlink(missing_ok=True)
    _put(store, diff_id, {"diff_id": diff_id, "fault": fault})


def _put(store: Store, diff_id: Digest, known: dict[str, Any]) -> None:
    payload = json.dumps(known, separators=(",", ":")).encode()
    store.put_record(RECORDS, diff_id.partition(":")[2], machine_key.signed(store, _TYPE, payload))


def _record(store: Store, diff_id: Digest) -> dict[str, Any]:
    """What this machine signed about the image of the layer *diff_id*; empty if there is nothing."""
    record = store.record(RECORDS, diff_id.partition(":")[2])
    payload = machine_key.verified(store, _TYPE, record, where=f"EROFS of {diff_id}") if record else None
    found: dict[str, Any] = json.loads(payload) if payload else {}
    return found if found.get("diff_id") == diff_id else {}


def _unchanged(path: Path, diff_id: Digest, known: dict[str, Any]) -> LayerImage | None:
    """The image in the file *path* if it is the *known* one."""
    if not known or path.is_symlink() or not path.is_file():
        return None
    stamp, compared = tuple(known["stamp"]), bool(known["compared"])
    if is_local(path) and stamp_of(path.lstat()) == stamp:
        return LayerImage(path=path, diff_id=diff_id, stamp=stamp, sha256=known["sha256"], compared=compared)
    found = _hashed(path, diff_id)
    return replace(found, compared=compared) if found.sha256 == known["sha256"] else None


def _hashed(path: Path, diff_id: Digest) -> LayerImage:
    """The image in the file *path*, read now."""
    status = path.lstat()
    if abs(time.time() - status.st_ctime) < _TICK:
        time.sleep(_TICK)
    return LayerImage(path=path, diff_id=diff_id, stamp=stamp_of(status), sha256=hashed(path, status))
