"""Reads the cache, its layouts and the committed locks: the items of the cache and their users.

`build.cache_claims` writes the records that name the users.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from torchkiln.base import artefact, keeping
from torchkiln.base.debs import FOLDER as DEBS
from torchkiln.base.debs import RECORDS as APT_RECORDS
from torchkiln.cache.policy import CacheItem, Kind, Root
from torchkiln.engine.cache_claims import blob_path, interpreter_path, record_path, source_paths, wheel_path
from torchkiln.engine.cache_keys import FORMAT_RECORDS, FORMER_RECORDS, source_of
from torchkiln.errors import KilnError
from torchkiln.locks.file import from_json
from torchkiln.matrix.os_tools import is_tools
from torchkiln.matrix.tags import preferred_name
from torchkiln.model.lock import LockedTools, LockedWheel
from torchkiln.oci.layout import Layout, open_layout
from torchkiln.store.file_locks import Holder, in_use
from torchkiln.store.store import Store, age
from torchkiln.util.files import tree_size

_OF_WHEELS = re.compile("records/layers/")
_HEX = re.compile(r"[0-9a-f]{64}")
_MINUTE, _TEN_MINUTES, _HOUR, _DAY = 60.0, 600.0, 3600.0, 86400.0
_OURS = frozenset({"blobs", "wheels", "toolkits", "bytecode", "interpreters", "rootfs", "pytest", "records"})
_OURS |= {"locks", "claims", "tmp", "keys", DEBS}


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheUsage:
    """Items and users of the cache. `unread` has a sentence for each layout or lock that cannot be read."""

    items: tuple[CacheItem, ...]
    roots: tuple[Root, ...]
    wheels: Mapping[str, LockedWheel] = field(hash=False)  # locked wheels, by path: can be downloaded again
    unread: tuple[str, ...]


def cache_usage(store: Store, layouts: Iterable[Path], images: Path) -> CacheUsage:
    """Read the cache, the known layouts and the locks; change nothing.

    :param layouts: further layouts, in addition to the known ones.
    :param images: the folder of locks; it may be absent.
    """
    unread: list[str] = []
    manifests: dict[str, str] = {}
    claims = store.claims()
    roots = [_claimed(claim, store) for claim in claims]
    for place in _layouts(store, layouts):
        roots += _tags(store, Layout(place), manifests, unread)
    locks, bases, wheels = _locks(store, images, unread)
    scan = _Scan(store, manifests, bases, building=bool(claims))
    return CacheUsage(items=tuple(scan.items()), roots=(*roots, *locks), wheels=wheels, unread=tuple(unread))


def _layouts(store: Store, more: Iterable[Path]) -> list[Path]:
    known = [Path(str(found.get("path", ""))) for _, found in store.records("layouts")]
    return [path for path in dict.fromkeys([*known, *(path.absolute() for path in more)]) if path.is_dir()]


def _tags(store: Store, layout: Layout, manifests: dict[str, str], unread: list[str]) -> Iterator[Root]:
    """A root for each named image of *layout*. If the layout cannot be read, one root needs all its blobs."""
    if not (layout.path / "index.json").exists() and not (layout.path / "oci-layout").exists():
        return  # a build created the folder and ended before it wrote to it
    try:
        refs = open_layout(layout.path).refs()
        names: dict[str, list[str]] = {digest: [] for digest in refs.values()}
        for ref, digest in refs.items():
            names[digest].append(ref)
        images = [layout.image(preferred_name(found)) for found in names.values()]
        converted = {blob_path(str(record.get("digest"))): key for key, record in _conversions(store)}
    except (KilnError, OSError) as error:
        unread.append(f"{layout.path}: {error}; all of its blobs are kept")
        yield Root(sort="tag", name=f"{layout.path}, which cannot be read", needs=_blobs_in(layout.path))
        return
    for image in images:
        key = image.manifest.removeprefix("sha256:")
        manifests[key] = image.ref
        made = store.record("images", key) or {}
        wheels, archives = dict(made.get("wheels", {})), list(made.get("archives", ()))
        needed = {blob_path(layer.digest) for layer in image.layers}
        originals = {blob_path(source_of(converted[path])) for path in needed if path in converted}
        yield Root(
            sort="tag",
            name=f"{image.ref} in {layout.path}",
            needs=frozenset(needed | {record_path("images", key)}),
            sources=frozenset(
                {*originals, *wheels, *wheels.values(), *archives}
                | {f"interpreters/{made[name]}" for name in ("base", "interpreter") if name in made}
            ),
        )


def _blobs_in(folder: Path) -> frozenset[str]:
    """The paths of all blobs of a layout or a cache."""
    return frozenset(f"blobs/sha256/{path.name}" for path in (folder / "blobs" / "sha256").glob("*"))


def _conversions(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    return chain.from_iterable(store.records(kind) for kind in FORMAT_RECORDS)


def _locks(
    store: Store, images: Path, unread: list[str]
) -> tuple[list[Root], set[str], dict[str, LockedWheel]]:
    """A root for each lock below *images*; the digests of bases, and the wheels by path, that they name."""
    found: list[Root] = []
    bases: set[str] = set()
    wheels: dict[str, LockedWheel] = {}
    for path in sorted(images.glob("*/*.json")):
        try:
            sources: frozenset[str] = frozenset()
            if path.name == "lock.json":
                locked = from_json(path.read_bytes(), where=str(path))
                blobs = {found.digest for found in locked.artefacts}
                sources = source_paths(locked)
                wheels |= {wheel_path(wheel): wheel for wheel in locked.wheels}
            elif path.name == "base.json":
                base = artefact.from_json(path.read_bytes(), where=str(path))
                blobs, sources = {base.digest}, frozenset({interpreter_path(base)})
            elif is_tools(path.stem) and (tools := keeping.read_lock(LockedTools, path)):
                blobs = {tools.digest}
            else:
                continue
        except (KilnError, OSError) as error:
            unread.append(f"{error}; all blobs are kept")
            # One may be its base, which cannot be built again after the archive deleted the packages.
            found.append(Root(sort="lock", name=f"{path}, which cannot be read", needs=_blobs_in(store.root)))
            continue
        bases |= {digest.removeprefix("sha256:") for digest in blobs}
        needs = frozenset(map(blob_path, blobs))
        found.append(Root(sort="lock", name=path.parent.name, needs=needs, sources=sources))
    return found, bases, wheels


def _claimed(claim: Holder, store: Store) -> Root:
    """A root for a running process; a claim without a list of needs protects every file."""
    needs = claim.needs
    if needs is None:
        needs = tuple(str(path.relative_to(store.root)) for path in store.root.rglob("*"))
    return Root(sort="process", name=str(claim), needs=frozenset(needs))


class _Scan:
    """One scan of the cache's folders."""

    def __init__(
        self, store: Store, manifests: Mapping[str, str], bases: set[str], *, building: bool
    ) -> None:
        self._store, self._root, self._building = store, store.root, building
        self._manifests = manifests
        self._titles: dict[str, str] = {}
        self._used: dict[str, float] = {}
        self._records: dict[str, list[str]] = {}
        self._bases = set(bases)
        for key, image in store.records("images"):
            used = _mtime(self._root / record_path("images", key))
            self._bases.add(str(image.get("base")))
            self._titles |= dict(image.get("layers", {}))
            self._titles |= {pack: Path(wheel).name for wheel, pack in dict(image.get("wheels", {})).items()}
            for name in (*image.get("layers", {}), image.get("base")):
                self._used[name] = max(self._used.get(name, 0.0), used)
        for kind in ("layers", "bases", APT_RECORDS, *FORMAT_RECORDS):
            for key, record in store.records(kind):
                name = str(record.get("digest")).removeprefix("sha256:")
                self._records.setdefault(name, []).append(record_path(kind, key))
                if kind == "bases":
                    self._bases.add(name)

    def items(self) -> Iterator[CacheItem]:
        """All items, by kind."""
        yield from self._blobs()
        yield from self._wheels()
        yield from self._toolkits()
        yield from self._debs()
        yield from self._files("bytecode", ".pack", "byte-code")
        yield from self._folders()
        for name in ("pages", "urls", "metadata", "beside", "libraries", "own-wheels", "git"):
            yield from self._files(f"records/{name}", ".json", "index pages")
        for name in ("evidence", "agreed", "contents", "hashes", "effects", "symbols", "locks"):
            yield from self._files(f"records/{name}", ".json", "layer texts")
        yield from self._leftovers()
        for path in sorted(self._root.glob("*")):
            if path.name not in _OURS:
                size = tree_size(path)[0] if path.is_dir() else _size(path)
                yield CacheItem(kind="not ours", path=path.name, size=size, used=_mtime(path))

    def _blobs(self) -> Iterator[CacheItem]:
        for path in sorted((self._root / "blobs" / "sha256").glob("*")):
            if not _HEX.fullmatch(path.name):
                continue
            records = tuple(self._records.get(path.name, ()))
            base = path.name in self._bases
            with contextlib.suppress(FileNotFoundError):  # deleted by another process
                found = path.stat()
                yield CacheItem(
                    kind="bases" if base else "layers" if records else "other blobs",
                    path=f"blobs/sha256/{path.name}",
                    size=found.st_size,
                    used=max(found.st_mtime, self._used.get(path.name, 0.0)),
                    title=self._titles.get(path.name, ""),
                    along=records,
                    shared=found.st_nlink > 1,
                    busy="" if any(map(_OF_WHEELS.match, records)) else self._unclaimable(found.st_mtime),
                )

    def _unclaimable(self, made: float) -> str:
        """Why to keep a blob that is too new to be claimed by the build that needs it; empty: no reason."""
        if self._building:
            return "a running build may need it"
        return "just created" if time.time() - made < _TEN_MINUTES else ""

    def _wheels(self) -> Iterator[CacheItem]:
        for path in sorted((self._root / "wheels").glob("*/*")):
            if not _HEX.fullmatch(path.parent.name):
                continue
            partial = path.name.endswith(".part")
            holder = self._store.locked(f"wheel-{path.parent.name}")
            complete = path.with_name(path.name.removesuffix(".part"))
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                yield CacheItem(
                    kind="partial wheels" if partial else "wheels",
                    path=f"wheels/{path.parent.name}/{path.name}",
                    size=found.st_size,
                    used=found.st_mtime,
                    title=path.name,
                    along=(f"wheels/{path.parent.name}/{complete.name}",)
                    if partial and not complete.exists()
                    else (),
                    busy=f"in use: {holder}" if holder else "",
                )

    def _toolkits(self) -> Iterator[CacheItem]:
        """The extracted files of NVIDIA's archives, and partial downloads of these."""
        for path in sorted((self._root / "toolkits").glob("*/*")):
            if not _HEX.fullmatch(path.parent.name):
                continue
            holder = self._store.locked(f"archive-{path.parent.name}")
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                yield CacheItem(
                    kind="leftovers" if path.name.endswith(".part") else "toolkit parts",
                    path=f"toolkits/{path.parent.name}/{path.name}",
                    size=found.st_size,
                    used=found.st_mtime,
                    title=path.name,
                    busy=f"in use: {holder}" if holder else "",
                )

    def _debs(self) -> Iterator[CacheItem]:
        """The .deb files of projects' OS packages."""
        for path in sorted((self._root / DEBS).glob("*/*.deb")):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                yield CacheItem(
                    kind="OS packages",
                    path=f"{DEBS}/{path.parent.name}/{path.name}",
                    size=found.st_size,
                    used=found.st_mtime,
                    title=path.name,
                    busy=self._unclaimable(found.st_mtime),
                )

    def _files(self, folder: str, suffix: str, kind: Kind) -> Iterator[CacheItem]:
        for path in sorted((self._root / folder).glob(f"[!.]*{suffix}")):
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                name = f"{folder}/{path.name}"
                title = self._titles.get(name, "")
                yield CacheItem(kind=kind, path=name, size=found.st_size, used=found.st_mtime, title=title)

    def _folders(self) -> Iterator[CacheItem]:
        for path in sorted((self._root / "interpreters").glob("[!.]*")):
            used = max(_mtime(path), self._used.get(path.name, 0.0))
            name = f"interpreters/{path.name}"
            yield CacheItem(kind="interpreters", path=name, size=tree_size(path)[0], used=used)
        for path in sorted((self._root / "rootfs").glob("[!.]*")):
            record = self._store.record("roots", path.name)
            marker = record_path("roots", path.name)
            used = _mtime(self._root / marker) if record else _mtime(path)
            recent = time.time() - used < _MINUTE  # between `unpacked_root` and the start of the command
            yield CacheItem(
                kind="unpacked images",
                path=f"rootfs/{path.name}",
                size=int(record["bytes"]) if record else tree_size(path)[0],
                used=used,
                title=self._manifests.get(path.name, ""),
                along=(marker,) if record else (),
                busy="a command is running in it" if in_use(path) else "just used" if recent else "",
            )
        for path in sorted((self._root / "pytest").glob("[!.]*")):
            yield CacheItem(
                kind="pytest", path=f"pytest/{path.name}", size=tree_size(path)[0], used=_mtime(path)
            )

    def _leftovers(self) -> Iterator[CacheItem]:
        """Files that ended processes left, and records of deleted files."""
        paths = self._store.dead()
        for name, after in (("rootfs", _DAY), ("pytest", _DAY), ("records/*", _HOUR)):
            paths += [path for path in self._root.glob(f"{name}/.*") if age(path) > after]
        paths += [
            path
            for path in (self._root / "locks").glob("*")
            if path.name != "gate" and age(path) > _HOUR and self._store.locked(path.name) is None
        ]
        if not self._building:  # a running build may be about to write what a record refers to
            paths += self._dangling()
        for path in paths:
            size = tree_size(path)[0] if path.is_dir() and not path.is_symlink() else max(_size(path), 0)
            name = str(path.relative_to(self._root))
            yield CacheItem(kind="leftovers", path=name, size=size, used=_mtime(path), title=path.name)

    def _dangling(self) -> Iterator[Path]:
        """Records of deleted layouts, images and blobs, and records in a former format."""
        yield from (self._root / "records" / FORMER_RECORDS).glob("[!.]*.json")
        for key, found in self._store.records("layouts"):
            if not Path(str(found.get("path", ""))).is_dir():
                yield self._root / record_path("layouts", key)
        for key, _ in self._store.records("images"):
            if key not in self._manifests:
                yield self._root / record_path("images", key)
        for name, records in self._records.items():
            if not (self._root / "blobs" / "sha256" / name).exists():
                yield from (self._root / record for record in records)


def _mtime(path: Path) -> float:
    return time.time() - age(path)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
