"""Makes the layers of the CUDA toolkit: downloads and extracts archives in parallel, and writes the layers.

The cache (`toolkits/`) keeps the files that are installed from an archive, not the archive. The archives of
the libraries have 1.1 GB, but only their headers and stubs are installed.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from torchkiln.cuda.layer import keep, write_layer
from torchkiln.cuda.tree import RULE
from torchkiln.engine.cache_keys import cached_record, key_of, store_layer
from torchkiln.errors import BuildFailed
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedArchive
from torchkiln.model.plan import ImagePlan, PlannedLayer, ToolkitLayer
from torchkiln.model.progress import ArchiveSource, Observer, Transfer
from torchkiln.store.store import Store
from torchkiln.util.files import PassingFile, private_folder
from torchkiln.wheel.source import Cancelled

_PARALLEL = 4  # archives; xz runs without the GIL


def kept_path(archive: LockedArchive) -> str:
    return f"toolkits/{archive.sha256}/{archive.filename.removesuffix('.xz')}.{RULE}"


def part_path(archive: LockedArchive) -> str:
    """The path in the cache of *archive* during the download."""
    return f"toolkits/{archive.sha256}/{archive.filename}.part"


def toolkit_layers(
    specs: Sequence[ToolkitLayer],
    store: Store,
    source: ArchiveSource,
    observer: Observer,
    on_layer: Callable[[Blob], None] = lambda _: None,
) -> dict[PlannedLayer, Blob]:
    """The layers of *specs*, made if they are not cached, with their blobs in *store*.

    :param on_layer: called with each blob as soon as it is in *store*.
    :raises BuildFailed: an archive is invalid or cannot be downloaded; the others are cancelled.
    """
    built: dict[PlannedLayer, Blob] = {}
    with ExitStack() as stack:
        # Sorted, so that two builds cannot deadlock.
        for key, spec in sorted(((key_of(spec), spec) for spec in specs), key=lambda pair: pair[0]):
            stack.enter_context(store.lock(f"layer-{key}", f"makes layer {spec.title}"))
        for spec in specs:
            if found := cached_record(spec, store):
                built[spec] = found.blob
                on_layer(found.blob)
        missing = [spec for spec in specs if spec not in built]
        if not missing:
            return built
        source.require(_not_cached(missing, store))
        for spec, blob, path in _made(missing, store, source, observer):
            store_layer(spec, blob, path, store)
            built[spec] = blob
            on_layer(blob)
    return built


def missing_archives(plan: ImagePlan, store: Store) -> tuple[LockedArchive, ...]:
    """The archives that a build of *plan* has to download."""
    return _not_cached([spec for spec in plan.of(ToolkitLayer) if cached_record(spec, store) is None], store)


def lay_out(
    plan: ImagePlan, store: Store, into: Path, *, archives: ArchiveSource, observer: Observer
) -> Path | None:
    """Unpack the toolkit layers of *plan* to the new folder *into*; None if it has none.

    :raises BuildFailed: an archive is invalid or cannot be downloaded, or the disk is full.
    """
    from torchkiln.oci.unpack import LayerBlob, unpack

    specs = plan.of(ToolkitLayer)
    if not specs:
        return None
    layers = toolkit_layers(specs, store, archives, observer)
    unpack(
        [LayerBlob(path=store.blob(layers[spec].digest), diff_id=layers[spec].diff_id) for spec in specs],
        into,
    )
    return into


def _made(
    specs: Sequence[ToolkitLayer], store: Store, source: ArchiveSource, observer: Observer
) -> Iterator[tuple[ToolkitLayer, Blob, Path]]:
    """Each of *specs* with its blob and the blob's temporary path, which the caller may move."""
    cancelled = threading.Event()
    with ExitStack() as stack, ThreadPoolExecutor(_PARALLEL, "archive") as pool:
        archives = {archive for spec in specs for archive in spec.archives}
        futures = {
            archive: pool.submit(_extracted, archive, store, source, observer, cancelled.is_set)
            for archive in sorted(archives, key=lambda archive: -archive.size)
        }
        try:
            for spec in specs:
                kept = [(archive, futures[archive].result()) for archive in spec.archives]
                observer.begin("toolkit", spec.title, spec.size)
                out = store.temporary("toolkit")
                stack.callback(out.unlink, missing_ok=True)  # unless the caller has moved it
                with store.writable():
                    blob = write_layer(kept, spec.home, out)
                observer.advance("toolkit", spec.title, spec.size)
                observer.end("toolkit", spec.title)
                yield spec, blob, out
        finally:
            cancelled.set()
            pool.shutdown(cancel_futures=True)


def _extracted(
    archive: LockedArchive,
    store: Store,
    source: ArchiveSource,
    observer: Observer,
    cancelled: Callable[[], bool],
) -> Path:
    """The extracted files of *archive*, from the cache or downloaded now."""

    def check() -> None:
        if cancelled():
            raise Cancelled

    kept = _kept(archive, store)
    with store.lock(f"archive-{archive.sha256}", f"extracts {archive.filename}", check=check):
        if kept.is_file():
            return kept
        part = store.root / part_path(archive)
        with store.writable():
            private_folder(part.parent)
        observer.begin("download", archive.filename, archive.size)
        advanced = partial(observer.advance, "download", archive.filename)
        path = source.archive(archive, part, Transfer(advanced, cancelled))
        observer.end("download", archive.filename)
        if path is None:
            raise Cancelled
        _extract(archive, path, kept, store)
        part.unlink(missing_ok=True)
        return kept


def _extract(archive: LockedArchive, path: Path, target: Path, store: Store) -> None:
    temporary = store.temporary("kept")
    try:
        with io.BufferedWriter(PassingFile(temporary, "wb"), 1 << 20) as out:
            keep(archive, path, out)
        store.adopt(temporary, target)
    except OSError as error:
        raise BuildFailed(
            f"{archive.filename} cannot be extracted to {store.root}: {error.strerror}",
            hint="free disk space (torchkiln cache prune), or set TORCHKILN_CACHE to another folder",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _not_cached(specs: Sequence[ToolkitLayer], store: Store) -> tuple[LockedArchive, ...]:
    archives = (archive for spec in specs for archive in spec.archives)
    return tuple(archive for archive in archives if not _kept(archive, store).is_file())


def _kept(archive: LockedArchive, store: Store) -> Path:
    return store.root / kept_path(archive)
