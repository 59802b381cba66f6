"""ProgramLayer -> its layer blob: the locked file, held against its hash, and what goes with it."""

from __future__ import annotations

from pathlib import Path

from torchkiln.index.download import fetch_verified
from torchkiln.model.lock import LockedWheel
from torchkiln.model.plan import OverlayFile, ProgramLayer
from torchkiln.model.progress import Fetcher, Observer
from torchkiln.oci import tar
from torchkiln.oci.encode import encode_bytes
from torchkiln.oci.layer import Written
from torchkiln.plan.micromamba import program_path
from torchkiln.recipe import WHEEL_EPOCH
from torchkiln.store.store import Store
from torchkiln.util.files import private_folder


def make_program(
    spec: ProgramLayer, store: Store, fetcher: Fetcher, observer: Observer
) -> tuple[Written, Path]:
    """The layer of *spec*, and its blob's temporary path, which the caller takes over.

    :raises BuildFailed: the file is not the locked one, or cannot be had.
    """
    file = spec.program
    place = _fetched(file, store, fetcher, observer)
    observer.begin("convert", spec.title, file.size)
    program = OverlayFile(path=program_path(file), mode=0o755, data=place.read_bytes())
    blob, encoded = encode_bytes(
        tar.archive((program, *spec.files, *spec.links), mtime=WHEEL_EPOCH, folders=spec.folders)
    )
    out = store.temporary("program")
    out.write_bytes(blob)
    observer.end("convert", spec.title)
    return (
        Written(digest=encoded.digest, diff_id=encoded.diff_id, size=encoded.size, unpacked=encoded.unpacked),
        out,
    )


def _fetched(file: LockedWheel, store: Store, fetcher: Fetcher, observer: Observer) -> Path:
    with store.lock(f"wheel-{file.sha256}", f"fetches {file.filename}"):
        if store.has_wheel(file):
            return store.wheel(file)
        part = store.part(file)
        private_folder(part.parent)
        observer.begin("download", file.filename, file.size)
        fetch_verified(
            fetcher.fetch,
            file,
            part,
            on_progress=lambda count: observer.advance("download", file.filename, count),
        )
        observer.end("download", file.filename)
        return store.adopt(part, store.wheel(file))
