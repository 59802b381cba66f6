"""Unpacks an image in the cache, and verifies the files of an image that was unpacked before."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from torchkiln.errors import BuildFailed, printable
from torchkiln.oci.layer_index import IndexedEntry, TreeItem
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.oci.unpack import LayerBlob, forget_root, root_of, unpacked_root
from torchkiln.runtimes.known_hashes import KnownHashes, load_hashes, save_hashes
from torchkiln.runtimes.layer_indexes import keep_index, kept_tree
from torchkiln.runtimes.runtime import RuntimeListener
from torchkiln.store.store import Store

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_NAMED = 3  # maximum of differences in a message
_PIECE = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITABLE = 0o022  # the mode's bits that let other users than the owner write


def layers_of(image: ImageOnDisk) -> list[LayerBlob]:
    """The layers of *image* for `unpack`."""
    return [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]


def unpacked(image: ImageOnDisk, store: Store, listener: RuntimeListener, *, reuse: bool = True) -> Path:
    """The unpacked *image* in the cache, unpacked at the first call.

    :param reuse: the files of an unpacked parent image may be used.
    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the disk is full or not writable.
    """
    listener.unpacks(image, there=root_of(store, image.manifest).is_dir())
    return unpacked_root(
        image.manifest,
        layers_of(image),
        store,
        indexed=lambda diff_id, index: keep_index(store, diff_id, index),
        reuse=reuse,
    )


def verified(
    image: ImageOnDisk, store: Store, listener: RuntimeListener
) -> tuple[Mapping[str, TreeItem], str]:
    """Compare the unpacked *image* with its layers; return its tree and the time of the comparison, in UTC.

    A copy that differs or has no signed indexes is deleted, and the image is unpacked again.

    :raises VerificationFailed: a layer is damaged.
    :raises BuildFailed: the copy differs while a command runs in it, or differs again after it was unpacked;
        or the disk is full or not writable.
    """
    root, layers = unpacked(image, store, listener), layers_of(image)
    tree = kept_tree(store, layers)
    faults = ["its list of files is missing or not signed by this machine's key"]
    if tree is not None and not (faults := _differences(root, tree, store)):
        return tree, _now()
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
    return tree, _now()


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


def differences(root: Path, tree: Mapping[str, TreeItem], hashes: KnownHashes) -> list[str]:
    """The differences between the files below *root* and *tree*, as sorted sentences.

    If the caller is not root, the expected owner is the caller, and files that the owner cannot read are
    skipped.
    """
    expected = {path: item.entry for path, item in tree.items()}
    found = dict(_walk(root))
    faults = [f"{path}: is missing" for path in expected.keys() - found.keys() if path]
    faults += [f"{path}: is not in the image" for path in found.keys() - expected.keys() if path]
    files: list[tuple[str, os.stat_result]] = []
    for path in found.keys() & expected.keys():
        if fault := _fault(expected[path], found[path], root / path):
            faults.append(f"{path or '/'}: {fault}")
        elif expected[path].kind == "file" and hashes.find(path, found[path]) != expected[path].sha256:
            files.append((path, found[path]))
    files.sort(key=lambda item: -item[1].st_size)  # the longest first, so that all threads end together

    def changed(item: tuple[str, os.stat_result]) -> str:
        path, status = item
        try:
            sha256 = _sha256(root / path, status)
        except PermissionError:
            return "" if os.geteuid() and not status.st_mode & stat.S_IRUSR else f"{path}: cannot be read"
        except OSError as error:
            return f"{path}: cannot be read: {error.strerror}"
        hashes.add(path, status, sha256)
        return "" if sha256 == expected[path].sha256 else f"{path}: its content differs"

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        faults += filter(None, pool.map(changed, files))
    return sorted(faults)


def _fault(expected: IndexedEntry, found: os.stat_result, path: Path) -> str:
    """How the status *found* of *path* differs from *expected*; empty if it does not."""
    kinds = {"file": stat.S_ISREG, "folder": stat.S_ISDIR, "link": stat.S_ISLNK}
    if not kinds[expected.kind](found.st_mode):
        return f"is not a {expected.kind}"
    mode, owner = stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)
    own = (expected.uid, expected.gid) if os.geteuid() == 0 else (os.geteuid(), found.st_gid)
    if owner != own:
        return f"its owner is {owner[0]}:{owner[1]}, expected {own[0]}:{own[1]}"
    if expected.mtime is None:  # no layer contains this folder, so no layer sets its mode
        return f"its mode is {mode:04o}, expected 0755" if mode & _WRITABLE else ""
    if expected.kind == "link":
        target = os.readlink(path)
        return "" if target == expected.target else f"is a link to {target!r}, expected {expected.target!r}"
    if mode != expected.mode:
        return f"its mode is {mode:04o}, expected {expected.mode:04o}"
    if expected.kind == "file" and found.st_size != expected.size:
        return f"has {found.st_size} bytes, expected {expected.size}"
    seconds = found.st_mtime_ns // 1_000_000_000
    return "" if seconds == expected.mtime else f"its time is {seconds}, expected {expected.mtime}"


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The status of everything below *root* by path, without following links."""
    yield "", os.lstat(root)
    folders = [""]
    while folders:
        above = folders.pop()
        with os.scandir(root / above) as listed:
            for entry in listed:
                path = f"{above}/{entry.name}" if above else entry.name
                status = entry.stat(follow_symlinks=False)
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)


def _sha256(path: Path, expected: os.stat_result) -> str:
    """:raises OSError: it cannot be read, or is no longer the file with that status."""
    digest = hashlib.sha256()
    with open(os.open(path, _FLAGS), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != (expected.st_dev, expected.st_ino):
            raise OSError(0, "it was replaced while it was read")
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
