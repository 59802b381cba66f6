"""Archives of NVIDIA's toolkit -> layers: fetched and taken apart side by side, then put together.

What an installation takes of an archive is kept in the cache (`toolkits/`), the archive itself is not: the
libraries' archives have 1.1 GB, of which headers and stubs are wanted.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from torchkiln.build.cache_keys import key_of
from torchkiln.build.records import keep as keep_layer
from torchkiln.build.records import there
from torchkiln.cuda.keep import keep
from torchkiln.cuda.layer import write_layer
from torchkiln.cuda.tree import RULE
from torchkiln.errors import BuildFailed
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedArchive
from torchkiln.model.plan import ImagePlan, PlannedLayer, ToolkitLayer
from torchkiln.model.progress import ArchiveSource, Observer
from torchkiln.store.store import Store
from torchkiln.util.files import private_folder
from torchkiln.util.page_cache import PassingFile
from torchkiln.wheel.source import Cancelled

_AT_ONCE = 4  # archives on the way or being unpacked; xz runs without the GIL


def kept_path(archive: LockedArchive) -> str:
    """Where in the cache what is kept of *archive* lies."""
    return f"toolkits/{archive.sha256}/{archive.filename.removesuffix('.xz')}.{RULE}"


def part_path(archive: LockedArchive) -> str:
    """Where it grows while it arrives."""
    return f"toolkits/{archive.sha256}/{archive.filename}.part"


def toolkit_layers(
    specs: Sequence[ToolkitLayer],
    store: Store,
    source: ArchiveSource,
    observer: Observer,
    on_layer: Callable[[Blob], None] = lambda _: None,
) -> dict[PlannedLayer, Blob]:
    """*specs*, each made unless the cache has it; their blobs are in *store* then.

    :param on_layer: hears of each as soon as its blob is there.
    :raises BuildFailed: an archive is refused or cannot be had; no other is begun.
    """
    built: dict[PlannedLayer, Blob] = {}
    with ExitStack() as stack:
        # In the order of their names, so two builds cannot wait for each other.
        for key, spec in sorted(((key_of(one), one) for one in specs), key=lambda pair: pair[0]):
            stack.enter_context(store.lock(f"layer-{key}", f"makes layer {spec.title}"))
        for spec in specs:
            if found := there(spec, store):
                built[spec] = found.blob
                on_layer(found.blob)
        missing = [spec for spec in specs if spec not in built]
        if not missing:
            return built
        source.require(_unkept(missing, store))
        for spec, blob, path in _made(missing, store, source, observer):
            keep_layer(spec, blob, path, store)
            built[spec] = blob
            on_layer(blob)
    return built


def unmade(plan: ImagePlan, store: Store) -> tuple[LockedArchive, ...]:
    """The archives that a build of *plan* will ask for."""
    return _unkept([spec for spec in plan.of(ToolkitLayer) if there(spec, store) is None], store)


def lay_out(
    plan: ImagePlan, store: Store, into: Path, *, archives: ArchiveSource, observer: Observer
) -> Path | None:
    """What the toolkit's layers of *plan* hold, as files below the new folder *into*; None: it has none.

    :raises BuildFailed: an archive is refused or cannot be had, or the disk is full.
    """
    from torchkiln.oci.unpack import LayerBlob, unpack

    specs = plan.of(ToolkitLayer)
    if not specs:
        return None
    layers = toolkit_layers(specs, store, archives, observer)
    unpack(
        [LayerBlob(path=store.blob(layers[one].digest), diff_id=layers[one].diff_id) for one in specs], into
    )
    return into


def _made(
    specs: Sequence[ToolkitLayer], store: Store, source: ArchiveSource, observer: Observer
) -> Iterator[tuple[ToolkitLayer, Blob, Path]]:
    """Each of *specs* with its blob's temporary path, which the caller takes over."""
    off = threading.Event()
    with ThreadPoolExecutor(_AT_ONCE, "archive") as pool:
        ordered = sorted({one for spec in specs for one in spec.archives}, key=lambda one: -one.size)
        coming = {one: pool.submit(_bring, one, store, source, observer, off.is_set) for one in ordered}
        try:
            for spec in specs:
                kept = [(one, coming[one].result()) for one in spec.archives]
                yield spec, *_put_together(spec, kept, store, observer)
        finally:
            off.set()
            pool.shutdown(cancel_futures=True)


def _put_together(
    spec: ToolkitLayer,
    kept: Sequence[tuple[LockedArchive, Path]],
    store: Store,
    observer: Observer,
) -> tuple[Blob, Path]:
    observer.begin("toolkit", spec.title, spec.size)
    out, whole = store.temporary("toolkit"), False
    try:
        with store.writable():
            encoded = write_layer(kept, spec.home, out)
        whole = True
    finally:
        if not whole:
            out.unlink(missing_ok=True)
    observer.advance("toolkit", spec.title, spec.size)
    observer.end("toolkit", spec.title)
    return encoded, out


def _bring(
    archive: LockedArchive,
    store: Store,
    source: ArchiveSource,
    observer: Observer,
    cancelled: Callable[[], bool],
) -> Path:
    """What is kept of *archive*, from the cache or made now."""

    def check() -> None:
        if cancelled():
            raise Cancelled

    place = _kept(archive, store)
    with store.lock(f"archive-{archive.sha256}", f"takes apart {archive.filename}", check=check):
        if place.is_file():
            return place
        part = store.root / part_path(archive)
        with store.writable():
            private_folder(part.parent)
        observer.begin("download", archive.filename, archive.size)
        path = source.archive(
            archive,
            part,
            on_progress=lambda count: observer.advance("download", archive.filename, count),
            cancelled=cancelled,
        )
        observer.end("download", archive.filename)
        if path is None:
            raise Cancelled
        _keep(archive, path, place, store)
        part.unlink(missing_ok=True)
        return place


def _keep(archive: LockedArchive, path: Path, place: Path, store: Store) -> None:
    temporary = store.temporary("kept")
    try:
        with io.BufferedWriter(PassingFile(temporary, "wb"), 1 << 20) as out:
            keep(archive, path, out)
        store.adopt(temporary, place)
    except OSError as error:
        raise BuildFailed(
            f"{archive.filename} cannot be taken apart in {store.root}: {error.strerror}",
            hint="make room (torchkiln cache prune), or set TORCHKILN_CACHE to another folder",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _unkept(specs: Sequence[ToolkitLayer], store: Store) -> tuple[LockedArchive, ...]:
    return tuple(one for spec in specs for one in spec.archives if not _kept(one, store).is_file())


def _kept(archive: LockedArchive, store: Store) -> Path:
    return store.root / kept_path(archive)
