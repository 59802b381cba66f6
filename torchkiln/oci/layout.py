"""ImagePlan and layer blobs -> an image under a name in an OCI layout folder; and the way back.

    oci-layout  index.json  blobs/sha256/<hex>  .lock

A name appears in index.json only after every byte it stands for is there, and index.json is replaced whole,
under a lock: an interrupted build leaves the names as they were, and two builds keep each other's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from torchkiln.errors import BuildFailed, ConfigError, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.image import BuiltImage
from torchkiln.model.layer import ImageLayer
from torchkiln.model.layer_format import DEFAULT_FORMAT, LayerFormat
from torchkiln.model.plan import ImagePlan
from torchkiln.model.platform import LINUX_AMD64
from torchkiln.oci.compression import format_of
from torchkiln.oci.documents import descriptors, diff_ids, plain_file, plain_folder, read_document
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, describe, descriptor, digest_of
from torchkiln.util.schema import shown

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
_TOLD = 20  # names that a message lists
VERSION = {"imageLayoutVersion": "1.0.0"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerOnDisk:
    """One layer of an image in a layout."""

    digest: Digest
    diff_id: Digest
    size: int
    media_type: str
    path: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageOnDisk:
    """An image as a layout holds it. `config` is the parsed config JSON."""

    ref: str
    manifest: Digest
    manifest_path: Path
    config_digest: Digest
    config_path: Path
    config: Mapping[str, Any] = field(hash=False)
    layers: tuple[LayerOnDisk, ...]

    @property
    def layer_format(self) -> LayerFormat:
        """By the media types of its layers."""
        return format_of(layer.media_type for layer in self.layers)


def write_image(
    layout: Path,
    plan: ImagePlan,
    layers: Sequence[ImageLayer],
    blob_path: Callable[[Digest], Path],
    *,
    refs: Sequence[str] = (),
    layer_format: LayerFormat = DEFAULT_FORMAT,
) -> BuiltImage:
    """Put the image into *layout* (made when missing) under each of *refs*; none: under the plan's tag.

    Layers come from *blob_path* by hard link, by copy where the file system is another one. What a
    replaced name leaves without a user is deleted.

    :raises BuildFailed: a layer is not at its `blob_path` with its size, or the folder cannot be written.
    :raises VerificationFailed: the folder is there, but no layout that can be read.
    """
    names = tuple(refs) or (plan.tag,)
    documents = describe(plan, layers, layer_format)
    try:
        with _locked(layout):
            target = _create(layout)
            _sweep(target)
            for layer in layers:
                _place(blob_path(layer.blob.digest), target.blob(layer.blob.digest), layer)
            for document in (documents.config, documents.manifest):
                _replace(target.blob(digest_of(document)), document)
            if target.name_image(names, documents.manifest_digest, len(documents.manifest)):
                # A neighbour that cannot be read may need any blob: then all stay, and `verify` tells.
                with contextlib.suppress(VerificationFailed):
                    _prune(target)
    except OSError as error:
        raise BuildFailed(
            f"the layout {layout} cannot be written: {error.strerror or error}",
            hint="free space, or choose another folder with --output",
        ) from error
    return BuiltImage(
        tag=plan.tag,
        manifest=documents.manifest_digest,
        config=documents.config_digest,
        layout=str(layout),
        ref=names[0],
        layers=tuple(layers),
    )


def write_documents(path: Path, ref: str, manifest: bytes, config: bytes) -> Layout:
    """A layout at *path* in which *ref* stands for *manifest*; its layers are for the caller to bring.

    :raises BuildFailed: the folder cannot be written.
    """
    try:
        with _locked(path):
            target = _create(path)
            for document in (config, manifest):
                _replace(target.blob(digest_of(document)), document)
            target.name_image((ref,), digest_of(manifest), len(manifest))
    except OSError as error:
        raise BuildFailed(f"the layout {path} cannot be written: {error.strerror or error}") from error
    return target


def open_layout(path: Path) -> Layout:
    """The layout at *path*.

    :raises ConfigError: nothing is there.
    :raises VerificationFailed: it is no OCI layout, or of a version that we do not know.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder", hint="an OCI layout is the folder that `build` prints")
    found = read_document(path / "oci-layout")
    if found.get("imageLayoutVersion") != VERSION["imageLayoutVersion"]:
        raise VerificationFailed(
            f"{path / 'oci-layout'}: unknown layout version {shown(found.get('imageLayoutVersion'))}",
            hint="`build` writes version 1.0.0; make the layout again",
        )
    for folder in (path / "blobs", path / "blobs" / "sha256"):
        plain_folder(folder)
    return Layout(path)


def prune(path: Path) -> int:
    """Delete the blobs that no name needs and what dead writers left; returns the bytes freed.

    :raises VerificationFailed: a manifest cannot be read, so that its needs are unknown; nothing is deleted.
    """
    with _locked(path):
        return _prune(open_layout(path))


class Layout:
    """An OCI layout folder that exists."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def blob(self, digest: Digest) -> Path:
        """Where the blob *digest* is, or would be."""
        return self.path / "blobs" / "sha256" / parse_digest(digest).removeprefix("sha256:")

    def entries(self) -> tuple[Mapping[str, Any], ...]:
        """The descriptors in index.json.

        :raises VerificationFailed: index.json is missing or malformed.
        """
        return descriptors(self.path / "index.json", "manifests", read_document(self.path / "index.json"))

    def refs(self) -> dict[str, Digest]:
        """Every name in the layout with the manifest that it stands for, in the index's order."""
        return {
            name: Digest(entry["digest"]) for entry in self.entries() if (name := _ref(entry)) is not None
        }

    def image(self, ref: str | None = None) -> ImageOnDisk:
        """The image called *ref* (a name or a manifest digest); without one, the only image there is.

        :raises ConfigError: there is no such name, or several images and no *ref*.
        :raises VerificationFailed: its manifest or config is missing, malformed or not what its digest says.
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
            raise VerificationFailed(
                f"{name}: {len(layers)} layers in the manifest, {len(ids)} diff_ids in the config"
            )
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
                    path=plain_file(self.blob(Digest(layer["digest"]))),
                )
                for layer, diff_id in zip(layers, ids, strict=True)
            ),
        )

    def name_image(self, names: Sequence[str], manifest: Digest, size: int) -> bool:
        """Let *names* stand for *manifest*, whatever they stood for before; the caller holds the lock.

        Returns whether a name was taken from another image.
        """
        before = self.entries()
        kept = [entry for entry in before if _ref(entry) not in names]
        # An unnamed entry of the same image adds nothing once it has a name.
        kept = [entry for entry in kept if _ref(entry) is not None or entry["digest"] != manifest]
        ours = [
            {
                **descriptor(MANIFEST_TYPE, manifest, size),
                "platform": LINUX_AMD64.oci,
                "annotations": {REF_NAME: name},
            }
            for name in dict.fromkeys(names)
        ]
        entries = sorted([*kept, *ours], key=lambda entry: (_ref(entry) or "", entry["digest"]))
        _replace(self.path / "index.json", _index(entries))
        return any(entry["digest"] != manifest for entry in before if _ref(entry) in names)

    def needed(self) -> set[Digest]:
        """Every blob that index.json reaches.

        :raises VerificationFailed: a document on the way cannot be read.
        """
        reached: set[Digest] = set()
        waiting = list(self.entries())
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
        more = f" and {len(refs) - _TOLD} more" if len(refs) > _TOLD else ""
        known = "it holds " + (", ".join(list(refs)[:_TOLD]) + more if refs else "no image")
        if ref is None:
            if len(set(refs.values())) != 1:
                raise ConfigError(f"{self.path}: which image?", hint=f"{known}: write {self.path}:NAME")
            return next(iter(refs.items()))
        if ref in refs:
            return ref, refs[ref]
        for entry in self.entries():
            if entry["digest"] == ref:
                return _ref(entry) or ref, Digest(ref)
        import difflib

        near = difflib.get_close_matches(ref, refs, n=3, cutoff=0.4)
        hint = "did you mean " + " or ".join(near) + "?" if near else known
        raise ConfigError(f"{self.path}: no image is called {ref!r}", hint=hint)


# --- writing --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(layout: Path) -> Iterator[None]:
    """Alone in *layout*, made when missing. Blobs are placed under it too, or another's prune takes them."""
    layout.mkdir(mode=0o755, parents=True, exist_ok=True)  # ours to write, whatever the umask
    with FileLock(layout / ".lock"):
        yield


def _create(path: Path) -> Layout:
    if not (path / "index.json").exists():
        # Dot files are the lock and what a killed writer left.
        if any(e.name not in ("oci-layout", "blobs") and e.name[0] != "." for e in path.iterdir()):
            raise VerificationFailed(
                f"{path}: the folder is not empty and no OCI layout",
                hint="choose another folder with --output",
            )
        _replace(path / "oci-layout", canonical_json(VERSION))
        _replace(path / "index.json", _index([]))
    for folder in (path / "blobs", path / "blobs" / "sha256"):
        folder.mkdir(mode=0o755, exist_ok=True)
    return open_layout(path)


def _index(entries: Sequence[Mapping[str, Any]]) -> bytes:
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": list(entries)})


def _place(source: Path, target: Path, layer: ImageLayer) -> None:
    blob = layer.blob
    if not source.is_file() or source.stat().st_size != blob.size:
        raise BuildFailed(
            f"layer {layer.title!r} ({blob.digest}) is not in the store with its {blob.size} bytes",
            hint="the cache was changed behind our back; build again",
        )
    if _is_copy(source, target):
        return
    temporary = _neighbour(target)
    try:
        try:
            os.link(source, temporary)
        except OSError:  # another file system, no hard links there, too many, or not our file
            shutil.copyfile(source, temporary)
            temporary.chmod(0o444)
            time = source.stat().st_mtime_ns
            os.utime(temporary, ns=(time, time))
        os.replace(temporary, target)  # by rename: a reader of the old one never finds none
    finally:
        temporary.unlink(missing_ok=True)


def _is_copy(source: Path, target: Path) -> bool:
    """Whether *target* is the store's own file, or a copy made of it and untouched since.

    Size alone would do for a file that nobody damages. But when the store's was damaged and then made anew,
    the layout's still is: it has another inode, and, where it is a copy, another time.
    """
    try:
        ours, theirs = source.stat(), target.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(ours, theirs) or (
        (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns) and theirs.st_nlink == 1
    )


def _replace(path: Path, data: bytes) -> None:
    """Write a document whole. It is synced first: after a power cut an empty index would lose every name."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _neighbour(path)
    try:
        with temporary.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def _prune(layout: Layout) -> int:
    needed = {layout.blob(digest).name for digest in layout.needed()}
    freed = _sweep(layout)
    for path in (layout.path / "blobs" / "sha256").iterdir():
        if path.name not in needed:
            freed += path.lstat().st_size
            path.unlink()
    return freed


def _sweep(layout: Layout) -> int:
    """Delete what killed writers left, for nobody else writes while we hold the lock; returns the bytes."""
    freed = 0
    for folder in (layout.path, layout.path / "blobs" / "sha256"):
        for path in folder.glob(".*.????????"):
            freed += path.lstat().st_size
            path.unlink()
    return freed


def _ref(entry: Mapping[str, Any]) -> str | None:
    found = entry.get("annotations", {}).get(REF_NAME)
    return found if isinstance(found, str) else None
