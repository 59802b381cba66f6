"""Completes a bundle that was made with `--have FILE`: runs on the GPU host, and uses earlier bundles there.

A layer is hashed and then hard-linked. If the earlier bundle is on another file system, the layer is hashed
while it is copied. All layers are hashed again when the image is unpacked.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from torchkiln.errors import BuildFailed, ConfigError, KilnError, VerificationFailed
from torchkiln.model.digest import Digest
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layout import Layout, open_layout
from torchkiln.smoke.bundle.held import HeldLayer
from torchkiln.util.files import replacing
from torchkiln.util.strict_json import open_plain

LAYOUT = "layout"
_BLOBS = f"{LAYOUT}/blobs/sha256"
_CHUNK = 1 << 20


class _Unusable(Exception):
    """A file is not the layer that its name states; the message says why."""


def bundles_beside(bundle: Path) -> list[Path]:
    """The other bundles in the parent folder of *bundle*."""
    try:
        beside = sorted(bundle.parent.iterdir())
    except OSError:
        return []
    return [folder for folder in beside if folder.name != bundle.name and _is_bundle(folder)]


def named_bundles(folders: Sequence[Path]) -> list[Path]:
    """*folders* as a list, if each is the folder of a bundle.

    :raises ConfigError: one of them is not the folder of a bundle.
    """
    faults = [f"--from {folder}: not the folder of a bundle" for folder in folders if not _is_bundle(folder)]
    if faults:
        raise ConfigError.of(faults, hint="name the folder that contains its run.py")
    return list(folders)


def _is_bundle(folder: Path) -> bool:
    return os.path.isdir(folder / _BLOBS)  # also False for a folder that this user cannot read


def missing_layers(bundle: Path, held: Sequence[HeldLayer]) -> list[HeldLayer]:
    """The layers in *held* (which *bundle* was made without) that are not in the bundle yet."""
    layout = Layout(bundle / LAYOUT)
    return [layer for layer in held if not os.path.lexists(layout.blob(layer.digest))]


def complete(bundle: Path, tag: str, missing: Sequence[HeldLayer], folders: Sequence[Path]) -> None:
    """Add the *missing* layers of the image *tag* to *bundle*, from the bundles in *folders*.

    Each layer appears complete or not at all.

    :raises VerificationFailed: layers are missing or damaged in all *folders*; the message names each layer.
    :raises BuildFailed: the disk is full or not writable.
    """
    layout = Layout(bundle / LAYOUT)
    faults = []
    for layer in missing:
        if (wrong := _search(layer, layout.blob(layer.digest), folders)) is not None:
            known = f", which the image {layer.tag} has" if layer.tag else ""
            faults += [
                f"  layer {layer.digest}{known}:",
                *(f"    {fault}" for fault in wrong or ["not found"]),
            ]
    if faults:
        searched = ", ".join(map(str, folders)) or f"no other bundle in {bundle.parent}"
        raise VerificationFailed(
            "\n".join((f"the bundle of {tag} lacks layers: it was made for a host that has them", *faults)),
            hint=f"searched: {searched}; name the folders of earlier bundles: python3 run.py --from FOLDER;"
            " or recreate this bundle with the list of `python3 run.py --have`, or without --have",
        )


def _search(layer: HeldLayer, target: Path, folders: Sequence[Path]) -> list[str] | None:
    """Take *layer* from one of *folders*; return None, or the faults of its files if none is usable."""
    faults = []
    for folder in folders:
        source = Layout(folder / LAYOUT).blob(layer.digest)
        try:
            with open_plain(source, follow=False) as file:
                _take(file, layer, target)
            return None
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            faults.append(f"{source}: {error.strerror}")
        except _Unusable as error:
            faults.append(f"{source}: {error}")
    return faults


def _take(file: BinaryIO, layer: HeldLayer, target: Path) -> None:
    """Link or copy *file* to *target*, after a check that it is *layer*.

    :raises _Unusable: it is not *layer*.
    :raises BuildFailed: *target* cannot be written.
    """
    if (size := os.fstat(file.fileno()).st_size) != layer.size:
        raise _Unusable(f"size mismatch: expected {layer.size} bytes, got {size}")
    try:
        if _same_device(file, target.parent):
            _check(file, layer.digest, lambda chunk: None)
            if _linked(file, target):
                return
        with replacing(target) as temporary, temporary.open("wb") as out:
            _check(file, layer.digest, out.write)
    except OSError as error:
        raise BuildFailed(
            f"{target}: {error.strerror or error}", hint="free disk space, or move the bundle to another disk"
        ) from error


def _same_device(file: BinaryIO, folder: Path) -> bool:
    return os.fstat(file.fileno()).st_dev == os.stat(folder).st_dev


def _check(file: BinaryIO, digest: Digest, use: Callable[[bytes], object]) -> None:
    """Pass the content of *file* to *use*.

    :raises _Unusable: the file has a different digest, or cannot be read.
    """
    hasher = hashlib.sha256()
    file.seek(0)
    while True:
        try:
            chunk = file.read(_CHUNK)
        except OSError as error:
            raise _Unusable(str(error.strerror)) from error
        if not chunk:
            break
        hasher.update(chunk)
        use(chunk)
    if (found := f"sha256:{hasher.hexdigest()}") != digest:
        raise _Unusable(f"checksum mismatch: got {found}")


def _linked(file: BinaryIO, target: Path) -> bool:
    """Hard-link *target* to the open file, even if its path was replaced; return whether that worked."""
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", target.name, dst_dir_fd=folder)  # follows the link in /proc
        return True
    except FileExistsError:
        return True  # another process linked it, and checked the layer, too
    except OSError:  # hard links are not supported, the file has too many, or it belongs to another user
        return False
    finally:
        os.close(folder)


def layers_of(folders: Sequence[Path], say: Callable[[str], None]) -> dict[Digest, str]:
    """The undamaged layers in *folders*, each with its image's tag; *say* gets a message for each bad one."""
    held: dict[Digest, str] = {}
    for folder in folders:
        try:
            image = open_layout(folder / LAYOUT).image()
        except KilnError as error:
            say(f"{folder}: left out: {error.message}")
            continue
        for layer in image.layers:
            if layer.digest in held:
                continue
            try:
                with open_plain(layer.path, follow=False) as file:
                    _check(file, layer.digest, lambda chunk: None)
            except FileNotFoundError:
                continue
            except OSError as error:
                say(f"{layer.path}: left out: {error.strerror}")
            except _Unusable as error:
                say(f"{layer.path}: left out: {error}")
            else:
                held[layer.digest] = tag_in(image)
    return held
