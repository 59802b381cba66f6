"""An image in a registry and its lock → the same image, built again here: is it the same digest?

The image is a stranger's, whoever signed it: the Python of its lowest layer runs in a sandbox or not at all.
The build has a cache of its own, which is deleted. Wheels and bases that are here already are lent to it;
nothing comes back, for what that Python compiles would otherwise go into later builds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchkiln.build import build
from torchkiln.build.confined import require_sandbox
from torchkiln.build.cuda_layers import kept_path
from torchkiln.build.environment import Environment
from torchkiln.build.prerequisites import BaseSources
from torchkiln.errors import KilnError, ToolMissing
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.model.lock import LockedBase, LockedCell, LockedTools
from torchkiln.model.progress import Fetcher, Observer
from torchkiln.oci.compression import format_of
from torchkiln.oci.encode import encode
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.oci.opening import bounded, open_layer
from torchkiln.publish.verify import Point
from torchkiln.registry.reading import RepositoryReader
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree

_MOST_LAYER = 8 << 30  # bytes of a base or of tools, packed or not; ours have half a gigabyte


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildMeans:
    """What a build needs beside the lock."""

    matrix: Matrix
    facts: Facts
    store: Store
    index: Callable[[Store], Fetcher]  # where wheels come from that a cache has not
    observer: Observer
    say: Callable[[str], None] = lambda _: None


def rebuilt(
    reading: RepositoryReader,
    image: ImageOnDisk,
    locked: LockedCell,
    means: BuildMeans,
) -> Point:
    """Build *locked* on the image's own lowest layer, with its own layer of tools, and compare the digests.

    Where such a layer is in another form than the lock has it, it is compressed anew by the lock's encoder.

    :raises ToolMissing: this host can make no sandbox.
    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    require_sandbox()
    base = image.layers[0]
    if base.diff_id != locked.base.diff_id:
        return _bad(
            f"its lowest layer is {base.diff_id[:19]}, and the lock's base {locked.base.diff_id[:19]}"
        )
    tools = next((one for one in image.layers if locked.tools and one.diff_id == locked.tools.diff_id), None)
    if locked.tools and tools is None:
        return _bad(f"none of its layers is {locked.tools.diff_id[:19]}, the lock's tools")
    with _own(means.store) as (own, folder):
        _lend(locked, means.store, own)
        try:
            blobs = [
                _taken(reading, layer, artefact, own, folder, means.observer) if layer and artefact else None
                for layer, artefact in ((base, locked.base), (tools, locked.tools))
            ]
        except (OSError, EOFError, ValueError) as error:
            return _bad(f"one of its layers cannot be read: {error}")
        options = build.BuildOptions(
            sources=BaseSources(base_file=blobs[0], tools_file=blobs[1], locked_only=True),
            layer_format=format_of([base.media_type]),
            foreign=True,
        )
        try:
            built = build.build(
                locked,
                means.matrix,
                means.facts,
                folder / "layout",
                Environment(store=own, fetcher=means.index(own), observer=means.observer, say=means.say),
                options=options,
            ).image
        except ToolMissing:
            raise
        except KilnError as error:
            return _bad(error.message)
    if built.manifest == image.manifest:
        return Point(what="rebuild", good=True, text=f"built again from its lock: {built.manifest}")
    if built.config == image.config_digest:
        return Point(
            what="rebuild", good=True, text="built again from its lock: the same but for the layers' packing"
        )
    return _bad(f"built again from its lock it is {built.manifest}")


def _bad(text: str) -> Point:
    return Point(what="rebuild", good=False, text=text)


@contextlib.contextmanager
def _own(store: Store) -> Iterator[tuple[Store, Path]]:
    """An empty cache, and a folder beside it, in *store*'s tmp/: if we are killed, `sweep` finds both."""
    folder = store.temporary("rebuild")
    try:
        with store.writable():
            folder.mkdir(mode=0o700)
        yield Store(folder / "cache"), folder
    finally:
        remove_tree(folder)


def _lend(locked: LockedCell, store: Store, own: Store) -> None:
    """Let *own* have what *store* has of wheels, archives, base and tools; who reads them verifies them."""
    places = [store.wheel(wheel) for wheel in locked.wheels if store.has_wheel(wheel)]
    places += [
        store.blob(one.digest)
        for one in (locked.base, locked.tools)
        if one and store.has_blob(one.digest, one.size)
    ]
    places += [store.root / kept_path(one) for one in locked.archives]
    for place in places:
        if place.is_file():
            lent = own.root / place.relative_to(store.root)
            with own.writable():
                lent.parent.mkdir(parents=True, exist_ok=True)
                _link(place, lent)


def _link(place: Path, lent: Path) -> None:
    try:
        os.link(place, lent)
    except OSError as error:  # a file system without hard links, or another user's file
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(place, lent)


def _taken(
    reading: RepositoryReader,
    layer: LayerOnDisk,
    artefact: LockedBase | LockedTools,
    own: Store,
    folder: Path,
    observer: Observer,
) -> Path | None:
    """The blob of *artefact* out of the image's *layer*; None where *own* has it.

    :raises ValueError: it is too large, or damaged, as OSError and EOFError say too.
    """
    if own.has_blob(artefact.digest, artefact.size):
        return None
    if max(layer.size, artefact.unpacked) > _MOST_LAYER:
        raise ValueError(f"{layer.digest[:19]} has more than {_MOST_LAYER >> 30} GiB")
    what = "tools" if isinstance(artefact, LockedTools) else "base"
    fetched = folder / f"{what}.fetched"
    observer.begin("download", what, layer.size)
    reading.fetch(layer.digest, layer.size, fetched, lambda n: observer.advance("download", what, n))
    observer.end("download", what)
    if layer.digest == artefact.digest:
        return fetched
    blob = folder / f"{what}.tar.gz"
    with open_layer(fetched) as stream:
        encode(bounded(stream, artefact.unpacked, _too_much), blob)
    return blob


def _too_much() -> ValueError:
    return ValueError("it unpacks to more than its lock says")
