"""An image in a layout -> one tar file of it, for `docker load`, `podman load` and `skopeo copy`.

    oci-archive      oci-layout  index.json                 blobs/sha256/...
    docker-archive   oci-layout  index.json  manifest.json  blobs/sha256/...

The second is the first with the list that Docker's own `save` writes in front: engines that know OCI read
the index, older ones manifest.json; both find the same blobs, and compressed layers suit all of them.

One image of a layout → a layout that holds it alone, for programs that take the first they find.
"""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.image import BuiltImage
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, descriptor
from torchkiln.oci.layout import INDEX_TYPE, REF_NAME, VERSION, ImageOnDisk, open_layout
from torchkiln.util.files import replacing

ArchiveFormat = Literal["oci-archive", "docker-archive"]

_LARGEST = 8 << 30  # bytes of a member of a USTAR archive
_COPY = 1 << 20  # bytes at once


class Source(Protocol):
    """What is read from."""

    def read(self, size: int, /) -> bytes: ...


class Sink(Protocol):
    """What is written to."""

    def write(self, data: bytes, /) -> object: ...


def archive_image(
    built: BuiltImage, form: ArchiveFormat, *, repository: str, tags: Sequence[str] = ()
) -> Path:
    """The archive of *built* beside its layout, `<tag>.<form>.tar`, as *repository*:tag for each of *tags*.

    Without *tags* it is known by its own tag. Raises as `write_archive` does.
    """
    layout = Path(built.layout)
    target = layout.with_name(f"{built.tag}.{form}.tar")
    names = [f"{repository}:{tag}" for tag in tags or (built.tag,)]
    write_archive(open_layout(layout).image(built.ref), target, form, names)
    return target


def write_archive(image: ImageOnDisk, target: Path, form: ArchiveFormat, names: Sequence[str] = ()) -> None:
    """Write *image* to the file *target*, whole or not at all; the same bytes every time.

    *names* are what `docker load` shall call it, "pytorch-cuda:v2.7"; an oci-archive carries the layout's
    own name when there are none.

    :raises BuildFailed: a blob cannot be read, or *target* not be written.
    """
    try:
        with replacing(target) as temporary, temporary.open("wb") as out:
            stream_archive(image, out, form, names)
    except OSError as error:
        raise BuildFailed(
            f"{target}: the archive cannot be written: {error.strerror or error}",
            hint="free space, or choose another folder with --output; `verify` tells if the layout is whole",
        ) from error


def stream_archive(image: ImageOnDisk, out: BinaryIO, form: ArchiveFormat, names: Sequence[str] = ()) -> None:
    """Write *image* to *out*, which need not be seekable. Memory: one piece of a blob.

    :raises OSError: a blob cannot be read, or *out* not be written.
    """
    documents: dict[str, Any] = {"oci-layout": VERSION, "index.json": index_of(image, names)}
    if form == "docker-archive":
        documents["manifest.json"] = _docker_manifest(image, names)
    blobs = {image.manifest: image.manifest_path, image.config_digest: image.config_path}
    blobs |= {layer.digest: layer.path for layer in image.layers}
    for name, document in documents.items():
        data = canonical_json(document)
        put(out, _file(name, len(data)), BytesIO(data))
    for folder in ("blobs", "blobs/sha256"):
        put(out, _folder(folder), BytesIO())
    for digest, path in blobs.items():
        with path.open("rb") as blob:
            put(out, _file(_place(digest), os.fstat(blob.fileno()).st_size), blob)
    out.write(bytes(2 * tarfile.BLOCKSIZE))


def put(out: Sink, info: tarfile.TarInfo, source: Source) -> None:
    """Write one member to *out*.

    :raises OSError: *source* is shorter than *info* says, or *out* cannot be written.
    """
    # USTAR holds files up to 8 GB, and no layer has more than 5. Not TarFile.addfile: it copies by 16 KB.
    if info.size >= _LARGEST:
        raise OSError(errno.EFBIG, f"{info.name}: more than 8 GiB do not fit into the archive")
    out.write(info.tobuf(tarfile.USTAR_FORMAT))
    copied = 0
    while piece := source.read(_COPY):
        out.write(piece)
        copied += len(piece)
    if copied != info.size:
        raise OSError(f"{info.name} changed while it was read")
    out.write(bytes(-copied % tarfile.BLOCKSIZE))


def index_of(image: ImageOnDisk, names: Sequence[str] = ()) -> dict[str, Any]:
    entry = {
        **descriptor(MANIFEST_TYPE, image.manifest, image.manifest_path.stat().st_size),
        "platform": LINUX_AMD64.oci,
    }
    # containerd imports by the first annotation and wants the name in full; others read the second.
    annotations = [
        {"io.containerd.image.name": _full_name(name), REF_NAME: name.rpartition(":")[2]} for name in names
    ]
    return {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [{**entry, "annotations": found} for found in annotations or [{REF_NAME: image.ref}]],
    }


def _docker_manifest(image: ImageOnDisk, names: Sequence[str]) -> list[dict[str, Any]]:
    layers = [_place(layer.digest) for layer in image.layers]
    return [{"Config": _place(image.config_digest), "RepoTags": list(names), "Layers": layers}]


def _full_name(name: str) -> str:
    """`pytorch-cuda:v2.7` as Docker completes it."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _place(digest: Digest) -> str:
    return "blobs/" + digest.replace(":", "/")


def _file(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    return info


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def alone(image: ImageOnDisk, folder: Path) -> None:
    """Make *folder* a layout of *image*, without a name. The blobs are links to those of its own layout.

    Symbolic ones: they cost nothing on whatever file system, and need no right to the blobs but to read them.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for path in {image.manifest_path, image.config_path, *(layer.path for layer in image.layers)}:
        (blobs / path.name).symlink_to(path.resolve())
    entry = descriptor(MANIFEST_TYPE, image.manifest, image.manifest_path.stat().st_size)
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [{**entry, "platform": LINUX_AMD64.oci}],
    }
    (folder / "index.json").write_bytes(canonical_json(index))
    (folder / "oci-layout").write_bytes(canonical_json(VERSION))
