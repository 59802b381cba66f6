"""Writes images to an OCI layout folder and reads them.

    oci-layout  index.json  blobs/sha256/<hex>  locks/<hex of a manifest>.json  .lock

A name is added to index.json, under a lock, only after all blobs of its image are complete. So an interrupted
build changes no name, and parallel builds keep each other's names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.matrix.tags import preferred_name
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.layer import DEFAULT_FORMAT, BuiltImage, ImageLayer, LayerFormat
from torchkiln.model.plan import ImagePlan
from torchkiln.model.platform import LINUX_AMD64, Platform
from torchkiln.oci import platform_index
from torchkiln.oci.compression import format_of
from torchkiln.oci.documents import check_directory, check_file, descriptors, diff_ids, read_document
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, describe, digest_of
from torchkiln.oci.platform_index import INDEX_TYPE, REF_NAME, index_document, name_in
from torchkiln.util.files import folder_at, named, replacing
from torchkiln.util.schema import shown
from torchkiln.util.strict_json import holds

_LOCKS = "locks"
_LISTED = 20  # most names in a message
VERSION = {"imageLayoutVersion": "1.0.0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerOnDisk:
    digest: Digest
    diff_id: Digest
    size: int
    media_type: str
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageOnDisk:
    """An image in a layout. `config` is the parsed config JSON."""

    ref: str
    manifest: Digest
    manifest_path: Path
    config_digest: Digest
    config_path: Path
    config: Mapping[str, Any] = field(hash=False)
    layers: tuple[LayerOnDisk, ...]

    @property
    def layer_format(self) -> LayerFormat:
        """The layer format, by the media types of the layers."""
        return format_of(layer.media_type for layer in self.layers)


def write_image(
    layout: Path,
    plan: ImagePlan,
    layers: Sequence[ImageLayer],
    blob_path: Callable[[Digest], Path],
    *,
    refs: Sequence[str] = (),
    layer_format: LayerFormat = DEFAULT_FORMAT,
    lock: bytes = b"",
) -> BuiltImage:
    """Write the image to *layout* (created if missing) under each of *refs*, by default under the plan's tag.

    *lock* is the lock of the image, as a file. Layers are hard links to *blob_path*, or copies if it is on
    another file system. Blobs and locks that a replaced name leaves unused are deleted.

    :raises BuildFailed: a layer is missing or has a different size, or the folder cannot be written.
    :raises VerificationFailed: the folder exists but is not a readable layout.
    """
    names = tuple(refs) or (plan.tag,)
    documents = describe(plan, layers, layer_format)
    with _writing(layout) as target:
        _sweep(target)
        for layer in layers:
            _place(blob_path(layer.blob.digest), target.blob(layer.blob.digest), layer)
        for document in (documents.config, documents.manifest):
            _replace(target.blob(digest_of(document)), document)
        if lock:
            _replace(target.lock(documents.manifest_digest), lock)
        size, platform = len(documents.manifest), plan.locked.platform
        if target.name_image(names, documents.manifest_digest, size, platform):
            # An unreadable image may need any blob: then all are kept, and `verify` reports it.
            with contextlib.suppress(VerificationFailed):
                _prune(target)
    return BuiltImage(
        tag=plan.tag,
        manifest=documents.manifest_digest,
        config=documents.config_digest,
        layout=str(layout),
        ref=names[0],
        layers=tuple(layers),
    )


def write_documents(path: Path, ref: str, manifest: bytes, config: bytes) -> Layout:
    """Create a layout at *path* in which *ref* names *manifest*; the caller adds the layers.

    :raises BuildFailed: the folder cannot be written.
    """
    with _writing(path) as target:
        for document in (config, manifest):
            _replace(target.blob(digest_of(document)), document)
        target.name_image((ref,), digest_of(manifest), len(manifest))
    return target


def open_layout(path: Path) -> Layout:
    """The layout at *path*.

    :raises ConfigError: the folder does not exist.
    :raises VerificationFailed: the folder is not an OCI layout, or has an unknown version.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory", hint="name the folder that torchkiln build wrote")
    return _open(named(path))


def _open(path: Path) -> Layout:
    version = read_document(path / "oci-layout").get("imageLayoutVersion")
    if version != VERSION["imageLayoutVersion"]:
        raise VerificationFailed(
            f"{path / 'oci-layout'}: unknown layout version {shown(version)}",
            hint="build the image again: torchkiln writes version 1.0.0",
        )
    for folder in (path / "blobs", path / "blobs" / "sha256"):
        check_directory(folder)
    return Layout(path)


def prune(path: Path) -> int:
    """Delete unreferenced blobs and leftover temporary files; return the bytes freed.

    :raises VerificationFailed: a manifest cannot be read, so its blobs are unknown; nothing is deleted.
    """
    with locked(path):
        return _prune(_open(path))


class Layout:
    """An existing OCI layout folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def blob(self, digest: Digest) -> Path:
        """The path of the blob *digest*, which may not exist."""
        return self.path / "blobs" / "sha256" / parse_digest(digest).removeprefix("sha256:")

    def lock(self, manifest: Digest) -> Path:
        """The path of the lock of the image *manifest*, which may not exist."""
        return self.path / _LOCKS / f"{manifest.removeprefix('sha256:')}.json"

    def entries(self) -> tuple[Mapping[str, Any], ...]:
        """The descriptors in index.json; in place of an index, its image for the default platform.

        :raises VerificationFailed: index.json or such an index is missing or malformed.
        """

        def members(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
            digest = Digest(entry["digest"])
            return descriptors(self.blob(digest), "manifests", self._document(digest))

        return tuple(platform_index.split(self.written_entries(), members))

    def written_entries(self) -> tuple[Mapping[str, Any], ...]:
        """The descriptors in index.json as they are."""
        return descriptors(self.path / "index.json", "manifests", read_document(self.path / "index.json"))

    def refs(self) -> dict[str, Digest]:
        """Every name in the layout -> the digest of its manifest, in the order of the index."""
        named = ((name_in(entry), Digest(entry["digest"])) for entry in self.entries())
        return {name: digest for name, digest in named if name is not None}

    def image(self, ref: str | None = None) -> ImageOnDisk:
        """The image called *ref* (a name or a manifest digest); without *ref*, the only image of the layout.

        :raises ConfigError: there is no such image, or *ref* is missing and there are several images.
        :raises VerificationFailed: its manifest or config is missing, malformed or has a different digest.
        """
        name, digest = self._find(ref)
        manifest_path = self.blob(digest)
        manifest = self._document(digest)
        config = descriptors(manifest_path, "config", {"config": [manifest.get("config")]})[0]
        layers = descriptors(manifest_path, "layers", manifest)
        config_digest = Digest(config["digest"])
        parsed = self._document(config_digest)
        ids = diff_ids(self.blob(config_digest), parsed)
        if len(ids) != len(layers):
            counts = f"{len(layers)} layers in the manifest, {len(ids)} diff_ids in the config"
            raise VerificationFailed(f"{name}: {counts}")
        return ImageOnDisk(
            ref=name,
            manifest=digest,
            manifest_path=manifest_path,
            config_digest=config_digest,
            config_path=self.blob(config_digest),
            config=parsed,
            layers=tuple(
                LayerOnDisk(
                    digest=Digest(layer["digest"]),
                    diff_id=diff_id,
                    size=layer["size"],
                    media_type=layer["mediaType"],
                    path=check_file(self.blob(Digest(layer["digest"]))),
                )
                for layer, diff_id in zip(layers, ids, strict=True)
            ),
        )

    def name_image(
        self, names: Sequence[str], manifest: Digest, size: int, platform: Platform = LINUX_AMD64
    ) -> bool:
        """Make *names* refer to *manifest*; the caller holds the lock.

        Returns whether one of them referred to another image before.
        """
        before = self.entries()
        others = [entry for entry in before if name_in(entry) not in names]
        # An unnamed entry of the same image is redundant once the image has a name.
        others = [entry for entry in others if name_in(entry) is not None or entry["digest"] != manifest]
        new = (platform_index.entry_of(manifest, size, platform, **{REF_NAME: name}) for name in {*names})
        entries = sorted([*others, *new], key=lambda entry: (name_in(entry) or "", entry["digest"]))
        entries, indexes = platform_index.joined(entries)
        for document in indexes:
            _replace(self.blob(digest_of(document)), document)
        _replace(self.path / "index.json", canonical_json(index_document(entries)))
        return any(entry["digest"] != manifest for entry in before if name_in(entry) in names)

    def needed(self) -> set[Digest]:
        """Every blob that index.json refers to, directly or indirectly.

        :raises VerificationFailed: a document cannot be read.
        """
        reached: set[Digest] = set()
        waiting = list(self.written_entries())
        while waiting:
            entry = waiting.pop()
            digest = Digest(entry["digest"])
            if digest in reached:
                continue
            reached.add(digest)
            if entry["mediaType"] in (MANIFEST_TYPE, INDEX_TYPE):
                document, path = self._document(digest), self.blob(digest)
                for key in ("manifests", "layers"):
                    waiting += descriptors(path, key, document) if key in document else ()
                if "config" in document:
                    waiting += descriptors(path, "config", {"config": [document["config"]]})
        return reached

    def _document(self, digest: Digest) -> dict[str, Any]:
        return read_document(self.blob(digest), digest)

    def _find(self, ref: str | None) -> tuple[str, Digest]:
        refs = self.refs()
        more = f" and {len(refs) - _LISTED} more" if len(refs) > _LISTED else ""
        known = f"images: {', '.join(list(refs)[:_LISTED])}{more}" if refs else "the layout contains no image"
        if ref is None:
            if len(set(refs.values())) != 1:
                found = "several images" if refs else "no image"
                hint = f"name one as {self.path}:NAME; {known}"
                raise ConfigError(f"{self.path}: {found} in the layout", hint=hint)
            return (name := preferred_name(list(refs)) or ""), refs[name]
        if ref in refs:
            return ref, refs[ref]
        for entry in self.entries():
            if entry["digest"] == ref:
                return name_in(entry) or ref, Digest(ref)
        import difflib

        close = difflib.get_close_matches(ref, refs, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else known
        raise ConfigError(f"{self.path}: no such image: {ref!r}", hint=hint)


@contextlib.contextmanager
def locked(layout: Path) -> Iterator[None]:
    """Lock *layout*, created if missing. Without the lock, another process could prune blobs just added."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with folder_at(layout, make=0o755) as folder, open(os.open(folder / ".lock", flags, 0o644)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[Layout]:
    """The locked layout at *path*, created if missing; an OSError in the block becomes a BuildFailed."""
    try:
        with locked(path):
            yield _create(path)
    except OSError as error:
        raise BuildFailed(
            f"the layout {path} cannot be written: {error.strerror or error}",
            hint="free disk space, or choose another folder with --output",
        ) from error


def _create(path: Path) -> Layout:
    if not (path / "index.json").exists():
        # Dot files are the lock and the temporary files of a killed process.
        if any(e.name not in ("oci-layout", "blobs") and e.name[0] != "." for e in path.iterdir()):
            why, hint = "directory is not empty and not an OCI layout", "choose another folder with --output"
            raise VerificationFailed(f"{path}: {why}", hint=hint)
        _replace(path / "oci-layout", canonical_json(VERSION))
        _replace(path / "index.json", canonical_json(index_document([])))
    for folder in (path / "blobs" / "sha256", path / _LOCKS):
        with folder_at(folder, make=0o755):
            pass
    return _open(path)


def _place(source: Path, target: Path, layer: ImageLayer) -> None:
    blob = layer.blob
    if not source.is_file() or source.stat().st_size != blob.size:
        what = f"layer {layer.title!r} ({blob.digest}, {blob.size} bytes)"
        raise BuildFailed(f"{what} is missing or truncated in the cache", hint="build again")
    if _is_copy(source, target):
        return
    with folder_at(target.parent) as folder:
        temporary = folder / f".{target.name}.{secrets.token_hex(4)}"  # `_sweep` deletes what is left
        try:
            try:
                os.link(source, temporary)
            except OSError:  # another file system, no hard links, too many of them, or another user's file
                shutil.copyfile(source, temporary)
                temporary.chmod(0o444)
                time = source.stat().st_mtime_ns
                os.utime(temporary, ns=(time, time))
            os.replace(temporary, folder / target.name)  # atomic: a reader finds the old file or the new one
        finally:
            temporary.unlink(missing_ok=True)


def _is_copy(source: Path, target: Path) -> bool:
    """Whether *target* is a hard link to *source*, or a copy with its size and time."""
    try:
        stored, placed = source.stat(), target.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(stored, placed) or (
        (stored.st_size, stored.st_mtime_ns) == (placed.st_size, placed.st_mtime_ns) and placed.st_nlink == 1
    )


def _replace(path: Path, data: bytes) -> None:
    """Write a document atomically and sync it: without that, a power cut could leave an empty index."""
    if holds(path, data):
        return
    with replacing(path) as temporary, temporary.open("wb") as out:
        temporary.chmod(0o644)
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _prune(layout: Layout) -> int:
    needed = {layout.blob(digest).name for digest in layout.needed()}
    found = ((_LOCKS, "*.json"), ("blobs/sha256", "*"))
    return _sweep(layout) + sum(_deleted(layout.path / folder, names, needed) for folder, names in found)


def _sweep(layout: Layout) -> int:
    """Delete leftover temporary files (the caller holds the lock); return the bytes freed."""
    return sum(_deleted(layout.path / folder, ".*.????????") for folder in (".", "blobs/sha256", _LOCKS))


def _deleted(path: Path, names: str, needed: Container[str] = ()) -> int:
    """Delete the files in the folder *path* that are not *needed*; return the bytes freed."""
    freed = 0
    with contextlib.suppress(FileNotFoundError), folder_at(path) as folder:
        for found in folder.glob(names):
            if found.name.removesuffix(".json") not in needed:
                freed += found.lstat().st_size
                found.unlink()
    return freed
