"""Checks the JSON documents of an OCI layout and collects what they say about layers."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torchkiln.oci.spelling import wrong_case_keys
from torchkiln.oci.validate.layer import LAYER_TYPES
from torchkiln.util.strict_json import json_of, read_file

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_REF = "org.opencontainers.image.ref.name"
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+-]{0,254}")
_LIMIT = 4 << 20  # bytes of one document
_DEPTH = 4  # indexes within indexes
_VALUES = 200_000  # JSON values of one document
_ENTRIES = 10_000  # most entries of a list; no real image has more
_MAX_FAULTS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutFault:
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class LayerClaim:
    """A layer as its manifest describes it; `where` is its place for messages."""

    where: str
    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class ImageClaim:
    """The layers of an image, lowest first, and the diff_ids in its config."""

    layers: tuple[LayerClaim, ...]
    diff_ids: tuple[Any, ...]


class DocumentInspector:
    """Walks through the documents of a layout and collects faults, images and layers."""

    def __init__(self, layout: Path) -> None:
        self._layout = layout
        self.faults: list[LayoutFault] = []
        self.images: list[ImageClaim] = []
        self.layers: list[LayerClaim] = []  # the layers whose blobs exist
        self.index_was_read = False  # False: `unreferenced` would return every blob
        self._reached: set[str] = set()

    def walk(self, ref: str | None) -> None:
        """Check oci-layout, index.json and everything that the entries named *ref* (None: all) refer to."""
        version = self._read(self._layout / "oci-layout", "oci-layout")
        if version is not None and version.get("imageLayoutVersion") != "1.0.0":
            self._add(
                "oci-layout", f"layout version {_short(version.get('imageLayoutVersion'))}, not '1.0.0'"
            )
        index = self._read(self._layout / "index.json", "index.json")
        if index is None:
            return
        self.index_was_read = True
        seen: set[str] = set()
        found = False
        for where, entry in self._entries("index.json", index):
            name = self._name(where, entry)
            if name is not None:
                if name in seen:
                    self._add("index.json", f"duplicate name: {name!r}")
                seen.add(name)
            if ref in (None, name, entry.get("digest")):
                found = True
                self._follow(name or where, entry, 0)
        if ref is not None and not found:
            self._add("index.json", f"no such image: {ref!r}")

    def size(self, digest: str) -> int:
        """The size of the blob in bytes; -1 if it does not exist, -2 if it is not a regular file."""
        try:
            status = self.blob(digest).lstat()
        except OSError:
            return -1
        return status.st_size if stat.S_ISREG(status.st_mode) else -2

    def unreferenced(self) -> Iterator[LayoutFault]:
        """Blobs to which nothing refers, and files that are not blobs."""
        for path in sorted((self._layout / "blobs").glob("*/*")):
            if f"{path.parent.name}:{path.name}" not in self._reached:
                known = path.parent.name == "sha256" and _HEX.fullmatch(path.name)
                kind = "unreferenced blob" if known else "not a blob"
                where = f"blobs/{path.parent.name}/{path.name}"
                yield LayoutFault(where=where, what=f"{kind}, {path.lstat().st_size} bytes")

    def _add(self, where: str, what: str) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(LayoutFault(where=where, what=what))

    def blob(self, digest: str) -> Path:
        """The path of the blob, which may not exist."""
        return self._layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _entries(self, where: str, index: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        self._schema(where, index, _INDEX)
        entries = index.get("manifests")
        if not isinstance(entries, list):
            self._add(where, "manifests is not a list")
            return
        for number, entry in enumerate(self._bounded(where, entries)):
            name = f"{where} manifests[{number}]"
            if isinstance(entry, dict):
                yield name, entry
            else:
                self._add(name, "not a descriptor")

    def _name(self, where: str, entry: Mapping[str, Any]) -> str | None:
        """The image name in an entry of index.json, if it is valid."""
        annotations = entry.get("annotations", {})
        if not isinstance(annotations, dict) or not all(isinstance(v, str) for v in annotations.values()):
            self._add(where, "annotations is not a mapping of strings")
            return None
        name = annotations.get(_REF)
        if name is not None and not _NAME.fullmatch(name):
            self._add(where, f"{_short(name)} is not a valid image name")
            return None
        return name

    def _bounded(self, where: str, entries: list[Any]) -> list[Any]:
        if len(entries) > _ENTRIES:
            self._add(where, f"{len(entries)} entries; only the first {_ENTRIES} were checked")
        return entries[:_ENTRIES]

    def _schema(self, where: str, document: Mapping[str, Any], media_type: str) -> None:
        if document.get("schemaVersion") != 2:
            self._add(where, f"schemaVersion is {_short(document.get('schemaVersion'))}, not 2")
        if document.get("mediaType", media_type) != media_type:
            self._add(where, f"wrong media type: {_short(document['mediaType'])}, not {media_type}")

    def _follow(self, where: str, entry: Mapping[str, Any], depth: int) -> None:
        """Check a descriptor in an index: of a manifest or of another index."""
        media_type = entry.get("mediaType")
        if media_type not in (_MANIFEST, _INDEX):
            self._add(where, f"wrong media type: {_short(media_type)} in an index")
        known = isinstance(entry.get("digest"), str) and entry["digest"] in self._reached
        if known:  # not read again: ten thousand names may refer to one manifest
            if (again := self._descriptor(where, entry)) is not None:
                self._present(again)
            return
        document = self._document(where, entry)
        if document is None:
            return
        if media_type == _MANIFEST:
            self._manifest(where, document, entry.get("platform"))
        elif media_type == _INDEX and depth >= _DEPTH:
            self._add(where, f"indexes are nested more than {_DEPTH} deep; the rest was not checked")
        elif media_type == _INDEX:
            for name, inner in self._entries(where, document):
                self._follow(name, inner, depth + 1)

    def _manifest(self, where: str, manifest: Mapping[str, Any], platform: object) -> None:
        self._schema(f"{where} manifest", manifest, _MANIFEST)
        config = manifest.get("config")
        is_image = isinstance(config, dict) and config.get("mediaType") == _CONFIG
        if not is_image and "artifactType" not in manifest:
            media_type = config.get("mediaType") if isinstance(config, dict) else config
            self._add(f"{where} config", f"wrong media type: {_short(media_type)}, not {_CONFIG}")
        parsed = self._document(f"{where} config", config) if isinstance(config, dict) else None
        entries = manifest.get("layers")
        if not isinstance(entries, list):
            self._add(f"{where} manifest", "layers is not a list")
            return
        layers = []
        for number, entry in enumerate(self._bounded(where, entries)):
            name = f"{where} layers[{number}]"
            layer = self._descriptor(name, entry)
            if layer is None:
                continue
            layers.append(layer)
            if is_image and layer.media_type not in LAYER_TYPES:
                self._add(name, f"wrong media type: {_short(layer.media_type)} is not a known layer type")
            if self._present(layer):
                self.layers.append(layer)
        if is_image and parsed is not None and len(layers) == len(entries):
            diff_ids = self._config(f"{where} config", parsed, len(entries), platform)
            self.images.append(ImageClaim(tuple(layers), tuple(diff_ids)))

    def _config(self, where: str, config: Mapping[str, Any], layers: int, platform: object) -> list[Any]:
        for key in ("architecture", "os"):
            if not isinstance(config.get(key), str) or not config[key]:
                self._add(where, f"{key} is missing")
            elif platform is not None:  # engines pick images by the platform in the index
                indexed = platform.get(key) if isinstance(platform, dict) else platform
                if indexed != config[key]:
                    self._add(where, f"{key} is {_short(config[key])}, but {_short(indexed)} in the index")
        if "created" in config and not _is_time(config["created"]):
            self._add(where, f"created is {_short(config['created'])}, not an RFC 3339 time")
        rootfs = config.get("rootfs")
        rootfs = rootfs if isinstance(rootfs, dict) else {}
        diff_ids = rootfs.get("diff_ids")
        if not isinstance(diff_ids, list) or rootfs.get("type") != "layers":
            self._add(where, "rootfs is not of type layers with a list of diff_ids")
            diff_ids = []
        elif len(diff_ids) != layers:
            self._add(where, f"{len(diff_ids)} diff_ids for {layers} layers")
        history = config.get("history")
        if history is not None:
            entries = history if isinstance(history, list) else []
            filled = [one for one in entries if isinstance(one, dict) and one.get("empty_layer") is not True]
            if len(filled) != layers:
                self._add(where, f"history mismatch: {len(filled)} entries with a layer for {layers} layers")
        return diff_ids

    def _descriptor(self, where: str, entry: object) -> LayerClaim | None:
        if not isinstance(entry, dict):
            self._add(where, "not a descriptor")
            return None
        media_type, digest, size = entry.get("mediaType"), entry.get("digest"), entry.get("size")
        algorithm, _, text = digest.partition(":") if isinstance(digest, str) else ("", "", "")
        if algorithm != "sha256" or not _HEX.fullmatch(text):
            self._add(where, f"{_short(digest)} is not a sha256 digest")
            return None
        self._reached.add(f"sha256:{text}")
        if not isinstance(media_type, str) or type(size) is not int:
            self._add(where, "not a descriptor: mediaType or size is missing")
            return None
        return LayerClaim(where, media_type, f"sha256:{text}", size)

    def _present(self, entry: LayerClaim) -> bool:
        """Whether the blob exists; a wrong size is recorded as a fault."""
        size = self.size(entry.digest)
        if size == -2:
            self._add(entry.where, f"the blob {entry.digest} is not a regular file")
        elif size < 0:
            self._add(entry.where, f"missing blob: {entry.digest}")
        elif size != entry.size:
            self._add(entry.where, f"wrong size: {entry.size} in the descriptor, the blob has {size}")
        return size >= 0

    def _document(self, where: str, raw: Mapping[str, Any]) -> dict[str, Any] | None:
        entry = self._descriptor(where, raw)
        if entry is None or not self._present(entry):
            return None
        return self._read(self.blob(entry.digest), where, entry.digest)

    def _read(self, path: Path, where: str, digest: str | None = None) -> dict[str, Any] | None:
        prefix = "" if where == path.name else f"{path.name}: "
        try:
            data = read_file(path, _LIMIT, follow=False)
        except OSError as error:
            self._add(where, f"{prefix}{error.strerror}")
            return None
        if digest is not None and (actual := "sha256:" + hashlib.sha256(data).hexdigest()) != digest:
            self._add(where, f"wrong digest: the content of blob {digest} has {actual}")
        try:
            found = json_of(data, values=_VALUES)
        except ValueError as error:
            self._add(where, f"{prefix}{error}")
            return None
        if not isinstance(found, dict):
            self._add(where, f"{prefix}not a JSON object")
            return None
        for what in wrong_case_keys(found):
            self._add(where, f"{prefix}{what}")
        return found


def _short(value: object) -> str:
    """*value* for a message: its repr, at most 200 characters."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a mapping"
    text = repr(value[:100] if isinstance(value, str) else value)
    return text if len(text) < 200 else text[:200] + "…"


def _is_time(value: object) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:\d\d)", value):
        return False
    try:
        # Python 3.10 accepts neither Z nor more than six digits of a second.
        datetime.fromisoformat(re.sub(r"\.\d+|Z$", "", value))
    except ValueError:
        return False
    return True
