"""Writes an image of a layout as one tar file, for `docker load`, `podman load` and `skopeo copy`.

    oci-archive      oci-layout  index.json                 blobs/sha256/...
    docker-archive   oci-layout  index.json  manifest.json  blobs/sha256/...

A docker-archive is an oci-archive with the manifest.json that `docker save` writes: engines that know OCI
read index.json, older ones manifest.json. All of them accept compressed layers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.layer import BuiltImage
from torchkiln.oci.image import canonical_json
from torchkiln.oci.layout import VERSION, ImageOnDisk, open_layout
from torchkiln.oci.platform_index import REF_NAME, entry_of, index_document, platform_of
from torchkiln.oci.tar import END, header, padding
from torchkiln.oci.tar_reader import Stream
from torchkiln.util.files import replacing
from torchkiln.util.strict_json import open_plain

ArchiveFormat = Literal["oci-archive", "docker-archive"]

_COPY = 1 << 20  # bytes that are copied at once


class Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


def archive_image(
    built: BuiltImage, archive_format: ArchiveFormat, *, repository: str, tags: Sequence[str] = ()
) -> Path:
    """Write *built* to `<tag>.<format>.tar` beside its layout, named *repository*:tag for each of *tags*.

    Without *tags* the name has the image's own tag. Raises as `write_archive` does.
    """
    layout = Path(built.layout)
    target = layout.with_name(f"{built.tag}.{archive_format}.tar")
    names = [f"{repository}:{tag}" for tag in tags or (built.tag,)]
    write_archive(open_layout(layout).image(built.ref), target, archive_format, names)
    return target


def write_archive(
    image: ImageOnDisk, target: Path, archive_format: ArchiveFormat, names: Sequence[str] = ()
) -> None:
    """Write *image* to the file *target*, completely or not at all; the same bytes every time.

    *names* are its names after `docker load`, "pytorch-cuda:v2.7". Without them, an oci-archive contains the
    name of the image in its layout.

    :raises BuildFailed: a blob cannot be read or *target* cannot be written.
    """
    try:
        with replacing(target) as temporary, temporary.open("wb") as out:
            stream_archive(image, out, archive_format, names)
    except OSError as error:
        raise BuildFailed(
            f"{target}: the archive cannot be written: {error.strerror or error}",
            hint="free disk space, or choose another folder: --output; `torchkiln verify` checks the layout",
        ) from error


def stream_archive(
    image: ImageOnDisk, out: BinaryIO, archive_format: ArchiveFormat, names: Sequence[str] = ()
) -> None:
    """Write *image* to *out*, which need not be seekable, in constant memory.

    :raises OSError: a blob cannot be read or *out* cannot be written.
    """
    documents: dict[str, Any] = {"oci-layout": VERSION, "index.json": index_of(image, names)}
    if archive_format == "docker-archive":
        paths = [_blob_path(layer.digest) for layer in image.layers]
        found = {"Config": _blob_path(image.config_digest), "RepoTags": list(names), "Layers": paths}
        documents["manifest.json"] = [found]
    blobs = {image.manifest: image.manifest_path, image.config_digest: image.config_path}
    blobs |= {layer.digest: layer.path for layer in image.layers}
    for name, document in documents.items():
        data = canonical_json(document)
        write_member(out, name, BytesIO(data), size=len(data))
    for folder in ("blobs", "blobs/sha256"):
        out.write(header(folder, mode=0o755, mtime=0, directory=True))
    for digest, path in blobs.items():
        with open_plain(path, follow=False) as blob:
            write_member(out, _blob_path(digest), blob, size=os.fstat(blob.fileno()).st_size)
    out.write(END)


def write_member(out: Sink, path: str, source: Stream, *, size: int, mode: int = 0o644) -> None:
    """Write a file of *size* bytes to the tar *out*.

    :raises OSError: *source* has a different length, or *out* cannot be written.
    """
    out.write(header(path, mode=mode, size=size, mtime=0))
    copied = 0
    while piece := source.read(_COPY):
        out.write(piece)
        copied += len(piece)
    if copied != size:
        raise OSError(f"{path} changed while it was read")
    out.write(padding(size))


def index_of(image: ImageOnDisk, names: Sequence[str] = ()) -> dict[str, Any]:
    """index.json of a layout that holds only *image*, with *names* or else its own name."""
    # containerd reads the first annotation, a complete name; other engines read the second.
    annotations = [
        {"io.containerd.image.name": _full_name(name), REF_NAME: name.rpartition(":")[2]} for name in names
    ] or [{REF_NAME: image.ref}]
    size = image.manifest_path.stat().st_size
    entry = entry_of(image.manifest, size, platform_of(image.config))
    return index_document([{**entry, "annotations": found} for found in annotations])


def _full_name(name: str) -> str:
    """*name* as Docker completes it: `pytorch-cuda:v2.7` → `docker.io/library/pytorch-cuda:v2.7`."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _blob_path(digest: Digest) -> str:
    return "blobs/" + digest.replace(":", "/")
