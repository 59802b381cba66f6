"""Find faults in a cache and an output after an interruption, without code of torchkiln.

It follows docs/architecture.md and the OCI image layout, so it does not repeat mistakes of torchkiln's code.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_REF = "org.opencontainers.image.ref.name"
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The inputs and the result of an undisturbed build."""

    wheels: Mapping[str, bytes]  # by file name
    manifest: str = ""  # "" until it is known
    interpreter: str = ""  # fingerprint of the base's extracted Python
    blobs: frozenset[str] = frozenset()


@dataclass
class Oracle:
    """Checks a *cache* and a *layout*, of which each may be missing. Each check hashes a file once."""

    truth: Truth
    cache: Path
    layout: Path
    _hashes: dict[tuple[int, int], str] = field(default_factory=dict)

    def faults(self) -> tuple[str, ...]:
        """Faults that no interruption may leave, each as a line "kind: text"."""
        self._hashes = {}
        found = [*self._blobs(self.cache / "blobs" / "sha256"), *self._wheels(), *self._records()]
        found += [*self._packs(), *self._interpreters(), *self._layout()]
        return tuple(found)

    def leftovers(self) -> tuple[str, ...]:
        """Files of work in progress: allowed after an interruption, but not after the next complete run."""
        found = list((self.cache / "tmp").glob("*"))
        for root in (self.cache, self.layout, self.layout.parent):
            pattern = "*" if root == self.layout.parent else "**/*"
            found += [path for path in root.glob(pattern) if re.fullmatch(r"\..+\.[0-9a-f]{8}", path.name)]
        found += self.cache.glob("wheels/*/*.part")
        return tuple(sorted({str(path) for path in found}))

    def healed(self) -> tuple[str, ...]:
        """Faults, leftovers, and all differences from the result of an undisturbed build."""
        found = [*self.faults(), *(f"left over: {path}" for path in self.leftovers())]
        names = self._tags()
        if self.truth.manifest not in names.values():
            found.append(f"digest: the layout has {names}, an undisturbed build has {self.truth.manifest}")
        there = {path.name for path in (self.cache / "blobs" / "sha256").glob("*")}
        if self.truth.blobs and there != self.truth.blobs:
            found.append(f"blobs: {sorted(there ^ self.truth.blobs)} too many or too few")
        there = {path.name for path in (self.cache / "wheels").glob("*/*")}
        if self.truth.blobs and there != set(self.truth.wheels):
            found.append(f"wheels: {sorted(there ^ set(self.truth.wheels))} too many or too few")
        return tuple(found)

    def _blobs(self, folder: Path) -> Iterator[str]:
        for path in sorted(folder.glob("*")):
            if path.name[0] == "." and folder.is_relative_to(self.layout):
                continue  # a document that a run was writing: see `leftovers`
            if not _HEX.fullmatch(path.name):
                yield f"foreign: {path}"
            elif self._hash(path) != path.name:
                yield f"blob: {path} has {path.stat().st_size} bytes with sha256 {self._hash(path)}"

    def _wheels(self) -> Iterator[str]:
        for path in sorted((self.cache / "wheels").glob("*/*")):
            true = self.truth.wheels.get(path.name.removesuffix(".part"))
            data = path.read_bytes()
            if true is None:
                yield f"foreign: {path}"
            elif hashlib.sha256(true).hexdigest() != path.parent.name:
                yield f"wheel: {path} is not at its hash"
            elif path.name.endswith(".part"):
                if not true.startswith(data):
                    yield f"part: {path} ({len(data)} bytes) is not the start of the wheel"
            elif data != true:
                yield f"wheel: {path} has {len(data)} bytes, and is not the wheel of {len(true)}"

    def _records(self) -> Iterator[str]:
        for path in sorted((self.cache / "records").glob("*/*.json")):
            try:
                record = json.loads(path.read_bytes())
            except ValueError as error:
                yield f"record: {path}: {error}"
                continue
            if path.parent.name == "layers":
                for fault in self._blob_of(self.cache, record["digest"], record["size"]):
                    yield f"record: {path} has {fault}"

    def _packs(self) -> Iterator[str]:
        """A pack must end in 0xffffffff and the hash of all bytes before."""
        for path in sorted((self.cache / "bytecode").glob("*.pack")):
            data = path.read_bytes()
            if data[-36:-32] != b"\xff" * 4 or hashlib.sha256(data[:-36]).digest() != data[-32:]:
                yield f"pack: {path} is not complete"

    def _interpreters(self) -> Iterator[str]:
        for path in sorted((self.cache / "interpreters").glob("*")):
            if self.truth.interpreter and (found := fingerprint(path)) != self.truth.interpreter:
                yield f"interpreter: {path} is not complete ({found})"

    def _layout(self) -> Iterator[str]:
        yield from self._blobs(self.layout / "blobs" / "sha256")
        if not (self.layout / "index.json").exists():
            return
        try:
            tags = self._tags()
        except (ValueError, KeyError) as error:
            yield f"index: {self.layout / 'index.json'}: {error!r}"
            return
        for tag, digest in tags.items():
            yield from (f"tag: {tag}: {fault}" for fault in self._image(digest))

    def _tags(self) -> dict[str, str]:
        try:
            index = json.loads((self.layout / "index.json").read_bytes())
        except FileNotFoundError:
            return {}
        return {entry["annotations"][_REF]: entry["digest"] for entry in index["manifests"]}

    def _image(self, digest: str) -> Iterator[str]:
        manifest = self._document(digest)
        if manifest is None:
            yield f"its manifest {digest} is missing or not JSON"
            return
        for part in (manifest["config"], *manifest["layers"]):
            yield from self._blob_of(self.layout, part["digest"], part["size"])
        config = self._document(manifest["config"]["digest"])
        ids = config["rootfs"]["diff_ids"] if config else []
        if len(ids) != len(manifest["layers"]):
            yield f"{len(ids)} diff_ids for {len(manifest['layers'])} layers"
        for expected, layer in zip(ids, manifest["layers"], strict=False):
            place = self._place(self.layout, layer["digest"])
            if place.exists() and (found := self._inflated(place)) != expected:
                yield f"layer {layer['digest']} inflates to {found}, not {expected}"

    def _document(self, digest: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._place(self.layout, digest).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _blob_of(self, root: Path, digest: str, size: int) -> Iterator[str]:
        path = self._place(root, digest)
        if not path.is_file():
            yield f"{digest} is missing"
        elif path.stat().st_size != size:
            yield f"{digest} has {path.stat().st_size} bytes, but its descriptor says {size}"
        elif self._hash(path) != path.name:
            yield f"{digest} has the wrong digest"

    @staticmethod
    def _place(root: Path, digest: str) -> Path:
        return root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _hash(self, path: Path) -> str:
        found = path.stat()
        key = (found.st_dev, found.st_ino)  # a layout's blobs are hard links to the cache's
        if key not in self._hashes:
            self._hashes[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._hashes[key]

    @staticmethod
    def _inflated(path: Path) -> str:
        known = _INFLATED.get(path.name)
        if known is None:
            try:
                known = "sha256:" + hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
            except (OSError, EOFError) as error:
                return repr(error)
            _INFLATED[path.name] = known
        return known


_INFLATED: dict[str, str] = {}  # the hashes of uncompressed blobs; that of a compressed blob is never cached


def fingerprint(root: Path) -> str:
    """One hash over names, modes and bytes of all files below *root*."""
    total = hashlib.sha256()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            mode = stat.S_IMODE(path.lstat().st_mode)
            data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            total.update(f"{path.relative_to(root)} {mode:o} {len(data)}\n".encode() + data)
    return total.hexdigest()[:16]
