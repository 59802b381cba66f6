"""An image in a registry and its lock → the same image, built again here: is it the same digest?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from torchkiln import kiln
from torchkiln.engines.observer import Fetcher, Observer
from torchkiln.errors import KilnError
from torchkiln.facts import Facts
from torchkiln.matrix import Matrix
from torchkiln.nouns import LockedBase, LockedCell, LockedTools
from torchkiln.oci.encode import encode
from torchkiln.oci.image import LAYER_TYPES
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk
from torchkiln.oci.opening import open_layer
from torchkiln.publishing.verify import Point
from torchkiln.registry.reading import Reading
from torchkiln.store import Store
from torchkiln.system import Sources


def rebuilt(
    reading: Reading,
    image: ImageOnDisk,
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    *,
    store: Store,
    fetcher: Fetcher,
    observer: Observer,
    say: Callable[[str], None] = lambda _: None,
) -> Point:
    """Build *locked* on the image's own lowest layer, with its own layer of tools, and compare the digests.

    Where such a layer is in another form than the lock has it, it is compressed anew by the lock's encoder.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    base = image.layers[0]
    if base.diff_id != locked.base.diff_id:
        text = f"its lowest layer is {base.diff_id[:19]}, and the lock's base {locked.base.diff_id[:19]}"
        return Point(what="rebuild", good=False, text=text)
    tools = next((one for one in image.layers if locked.tools and one.diff_id == locked.tools.diff_id), None)
    if locked.tools and tools is None:
        text = f"none of its layers is {locked.tools.diff_id[:19]}, the lock's tools"
        return Point(what="rebuild", good=False, text=text)
    store.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rebuild-", dir=store.root) as folder:
        try:
            blobs = [
                _taken(reading, layer, artefact, store, Path(folder), observer)
                if layer and artefact
                else None
                for layer, artefact in ((base, locked.base), (tools, locked.tools))
            ]
        except (OSError, EOFError, ValueError) as error:
            return Point(what="rebuild", good=False, text=f"one of its layers cannot be read: {error}")
        options = kiln.Options(
            sources=Sources(base_file=blobs[0], tools_file=blobs[1], locked_only=True),
            layer_format="zstd" if base.media_type == LAYER_TYPES["zstd"] else "gzip",
        )
        try:
            built = kiln.build(
                locked,
                matrix,
                facts,
                store=store,
                layout=Path(folder, "layout"),
                fetcher=fetcher,
                observer=observer,
                options=options,
                say=say,
            ).image
        except KilnError as error:
            return Point(what="rebuild", good=False, text=error.message)
    if built.manifest == image.manifest:
        return Point(what="rebuild", good=True, text=f"built again from its lock: {built.manifest}")
    if built.config == image.config_digest:
        return Point(
            what="rebuild", good=True, text="built again from its lock: the same but for the layers' packing"
        )
    return Point(what="rebuild", good=False, text=f"built again from its lock it is {built.manifest}")


def _taken(
    reading: Reading,
    layer: LayerOnDisk,
    artefact: LockedBase | LockedTools,
    store: Store,
    folder: Path,
    observer: Observer,
) -> Path | None:
    """The blob of *artefact* out of the image's *layer*; None where *store* has it.

    :raises OSError: the layer is damaged, as EOFError and ValueError say too.
    """
    if store.has_blob(artefact.digest, artefact.size):
        return None
    what = "tools" if isinstance(artefact, LockedTools) else "base"
    fetched = folder / f"{what}.fetched"
    observer.begin("download", what, layer.size)
    reading.fetch(layer.digest, layer.size, fetched, lambda n: observer.advance("download", what, n))
    observer.end("download", what)
    if layer.digest == artefact.digest:
        return fetched
    blob = folder / f"{what}.tar.gz"
    with open_layer(fetched) as stream:
        encode(stream, blob)
    return blob
