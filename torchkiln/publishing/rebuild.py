"""Rebuilds a published image from its lock, and compares the digests.

The image is not trusted, even if it is signed: the Python of its lowest layer runs only in a sandbox. The
build uses an empty cache, which is deleted afterwards. Wheels and bases are linked into that cache from the
user's cache. Nothing is copied back, because the image's Python could have written it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchkiln.base.confined import require_sandbox
from torchkiln.base.contents import inspect
from torchkiln.engine import build
from torchkiln.engine.cuda_layers import kept_path
from torchkiln.engine.environment import Environment
from torchkiln.engine.prerequisites import BaseSources
from torchkiln.errors import BuildFailed, KilnError, ToolMissing
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.model.lock import LockedBase, LockedCell, LockedStandalone, LockedTools
from torchkiln.model.progress import Fetcher, Observer
from torchkiln.oci.compression import format_of
from torchkiln.oci.encode import encode
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.oci.opening import bounded, open_layer
from torchkiln.publishing.attached import Point
from torchkiln.registry.reading import RepositoryReader
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree

Artefact = LockedBase | LockedTools | LockedStandalone
Kind = Literal["base", "tools", "Python"]

_LAYER_LIMIT = 8 << 30  # maximum bytes of a layer that is read; base and tools have about half a GB


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildContext:
    matrix: Matrix
    facts: Facts
    store: Store
    index: Callable[[Store], Fetcher]  # downloads the wheels that the cache lacks
    observer: Observer
    say: Callable[[str], None] = lambda _: None


def rebuild(
    reading: RepositoryReader, image: ImageOnDisk, locked: LockedCell, context: RebuildContext
) -> Point:
    """Build *locked* on the image's layers of base, tools and Python, and compare the digests.

    A layer in a different format than the lock's is compressed again by the lock's encoder.

    :raises ToolMissing: this host does not support the sandbox.
    :raises RegistryError: a request failed.
    """
    require_sandbox()
    found: dict[Kind, LayerOnDisk] = {}
    for kind, artefact in _artefacts(locked).items():
        layer = next((each for each in image.layers if each.diff_id == artefact.diff_id), None)
        if layer is None:
            return _bad(f"no layer has the diff_id {artefact.diff_id[:19]} of the {kind} in the lock")
        found[kind] = layer
    with _empty_cache(context.store) as (own, folder):
        _link_files(locked, context.store, own)
        try:
            for kind, artefact in _artefacts(locked).items():
                _take_blob(reading, found[kind], (kind, artefact), own, folder, context.observer)
        except (OSError, EOFError, ValueError) as error:
            return _bad(f"cannot read a layer: {error}")
        except BuildFailed as error:
            return _bad(error.message)
        options = build.BuildOptions(
            sources=BaseSources(locked_only=True),
            layer_format=format_of([found["base"].media_type]),
            foreign=True,
        )
        try:
            built = build.build(
                locked,
                context.matrix,
                context.facts,
                folder / "layout",
                Environment(
                    store=own, fetcher=context.index(own), observer=context.observer, say=context.say
                ),
                options=options,
            ).image
        except ToolMissing:
            raise
        except KilnError as error:
            return _bad(error.message)
    if built.manifest == image.manifest:
        return Point("rebuild", True, f"rebuilt from its lock: {built.manifest}")
    if built.config == image.config_digest:
        return Point("rebuild", True, "rebuilt from its lock: same content, other layer compression")
    return _bad(f"rebuilt from its lock: digest mismatch: {built.manifest}")


def _artefacts(locked: LockedCell) -> dict[Kind, Artefact]:
    """What a rebuild takes from the layers of the published image: base, tools and standalone Python."""
    found: dict[Kind, Artefact] = {"base": locked.base}
    if locked.tools:
        found["tools"] = locked.tools
    if locked.standalone:
        found["Python"] = locked.standalone
    return found


def _bad(text: str) -> Point:
    return Point("rebuild", False, text)


@contextlib.contextmanager
def _empty_cache(store: Store) -> Iterator[tuple[Store, Path]]:
    """An empty cache and its folder, in *store*'s tmp/: if this process is killed, `sweep` deletes both."""
    folder = store.temporary("rebuild")
    try:
        with store.writable():
            folder.mkdir(mode=0o700)
        yield Store(folder / "cache"), folder
    finally:
        remove_tree(folder)


def _link_files(locked: LockedCell, store: Store, own: Store) -> None:
    """Link the wheels, archives and artefacts of *locked* from *store* into *own*; readers verify them."""
    paths = [store.wheel(wheel) for wheel in locked.wheels if store.has_wheel(wheel)]
    paths += [
        store.blob(artefact.digest)
        for artefact in locked.artefacts
        if store.has_blob(artefact.digest, artefact.size)
    ]
    paths += [store.root / kept_path(archive) for archive in locked.archives]
    for path in paths:
        if path.is_file():
            link = own.root / path.relative_to(store.root)
            with own.writable():
                link.parent.mkdir(parents=True, exist_ok=True)
                _link(path, link)


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError as error:  # a file system without hard links, or another user's file
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(path, link)


def _take_blob(
    reading: RepositoryReader,
    layer: LayerOnDisk,
    named: tuple[Kind, Artefact],
    own: Store,
    folder: Path,
    observer: Observer,
) -> None:
    """Put the blob of the *named* artefact into *own*, made of the image's *layer*.

    :raises ValueError, OSError, EOFError: it is too large or damaged.
    :raises BuildFailed: it is not the locked blob, or has files that no base may have.
    """
    name, artefact = named
    if own.has_blob(artefact.digest, artefact.size):
        return
    if max(layer.size, artefact.unpacked) > _LAYER_LIMIT:
        raise ValueError(f"{layer.digest[:19]} is larger than {_LAYER_LIMIT >> 30} GiB")
    fetched, blob = folder / f"{name}.fetched", folder / f"{name}.tar.gz"
    observer.begin("download", name, layer.size)
    reading.fetch(layer.digest, layer.size, fetched, lambda n: observer.advance("download", name, n))
    observer.end("download", name)
    # The tar is always compressed again, so that a layer in another format gives the locked blob, too.
    with open_layer(fetched) as stream:
        encoded = encode(bounded(stream, artefact.unpacked, _too_much), blob)
    if encoded.digest != artefact.digest:
        raise ValueError(f"the {name} has the digest {encoded.digest}, not {artefact.digest} as in the lock")
    if name != "Python":
        inspect(blob, name=f"the {name}")
    own.adopt(blob, own.blob(artefact.digest))


def _too_much() -> ValueError:
    return ValueError("its unpacked size exceeds that in the lock")
