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
from torchkiln.nouns import LockedCell
from torchkiln.oci.encode import encode
from torchkiln.oci.image import LAYER_TYPES
from torchkiln.oci.layout import ImageOnDisk
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
    """Build *locked* on the base that is the image's own lowest layer, and compare the digests.

    Where that layer is in another form than the lock has it, it is compressed anew by the lock's encoder.

    :raises RegistryError: the registry refuses, or cannot be reached.
    """
    base = image.layers[0]
    if base.diff_id != locked.base.diff_id:
        text = f"its lowest layer is {base.diff_id[:19]}, and the lock's base {locked.base.diff_id[:19]}"
        return Point(what="rebuild", good=False, text=text)
    store.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rebuild-", dir=store.root) as folder:
        blob = Path(folder, "base.tar.gz")
        if not store.has_blob(locked.base.digest, locked.base.size):
            fetched = blob if base.digest == locked.base.digest else Path(folder, "base")
            observer.begin("download", "base", base.size)
            reading.fetch(base.digest, base.size, fetched, lambda n: observer.advance("download", "base", n))
            observer.end("download", "base")
            if fetched != blob:
                try:
                    with open_layer(fetched) as stream:
                        encode(stream, blob)
                except (OSError, EOFError, ValueError) as error:
                    return Point(what="rebuild", good=False, text=f"its lowest layer cannot be read: {error}")
        options = kiln.Options(
            sources=Sources(base_file=blob if blob.exists() else None, locked_only=True),
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
