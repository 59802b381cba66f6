"""Lists the files of the cache, and marks those that running builds, tags of layouts and locks need.

`engine.cache_claims` writes the records that name the users.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.base import artefact
from torchkiln.base.archive import FOLDER as DEBS
from torchkiln.base.archive import RECORDS as APT_RECORDS
from torchkiln.engine.cache_claims import blob_path, interpreter_path, record_path, source_paths, wheel_path
from torchkiln.engine.cache_keys import FORMAT_RECORDS, FORMER_RECORDS, source_of
from torchkiln.errors import KilnError
from torchkiln.locks.file import LIMIT, from_json
from torchkiln.matrix.os_tools import is_tools
from torchkiln.matrix.tags import preferred_name
from torchkiln.model.lock import LockedBase, LockedTools, LockedWheel
from torchkiln.oci.layout import open_layout
from torchkiln.store.file_locks import in_use
from torchkiln.store.store import Store, age
from torchkiln.util.files import tree_size
from torchkiln.util.strict_json import read_file

DAY = 86400.0
_MINUTE, _TEN_MINUTES, _HOUR = 60.0, 600.0, 3600.0
LEFTOVERS = "leftovers"
# Records of what can be read again from an index, or from the layers.
_PASSING = (
    *("pages", "urls", "metadata", "beside", "libraries", "own-wheels", "git"),
    *("evidence", "agreed", "contents", "hashes", "erofs", "effects", "projects", "symbols", "locks"),
)
_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "blobs": ("blobs/sha256/*",),
    "wheels": ("wheels/*/*",),
    "toolkits": ("toolkits/*/*",),
    DEBS: (f"{DEBS}/*/*.deb",),
    "bytecode": ("bytecode/[!.]*.pack",),
    "interpreters": ("interpreters/[!.]*",),
    "rootfs": ("rootfs/[!.]*",),
    "erofs": ("erofs/sha256/*/[!.]*.erofs",),
    "pytest": ("pytest/[!.]*",),
    "records": tuple(f"records/{name}/[!.]*.json" for name in _PASSING),
}
KINDS = (*_PATTERNS, LEFTOVERS)
_BY_HASH = frozenset({"blobs", "wheels", "toolkits", DEBS})
_HASH = re.compile(r"[a-z]+(?:/sha256)?/([0-9a-f]{64})(?:/|\Z)")
_LOCKS = {"wheels": "wheel", "toolkits": "archive"}  # the lock held during a download
# Days without use after which entries that are large or soon outdated are deleted.
_DAYS = {
    "rootfs": 7,
    "erofs": 7,
    "pytest": 30,
    "records": 30,
    DEBS: 90,
}  # an archive may no longer have the packages


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    kind: str
    path: str  # relative to the cache
    size: int  # bytes
    used: float  # seconds since the epoch
    users: tuple[str, ...] = ()  # the tags and locks that need it
    busy: str = ""  # the process that uses it
    lifetime: float = 0.0  # seconds without use after which `cache prune` deletes it
    records: tuple[str, ...] = ()  # the paths of records that are useless without it
    shared: bool = False  # a layout has a hard link to the file: its deletion frees no space

    @property
    def protected(self) -> bool:
        """Whether `cache prune` keeps it with all options."""
        return bool(self.users or self.busy)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheUsage:
    """The entries of the cache. `unread` has a sentence for each layout or lock that cannot be read."""

    entries: tuple[Entry, ...]
    wheels: Mapping[str, LockedWheel] = field(hash=False)  # locked wheels, by path: can be downloaded again
    unread: tuple[str, ...]


def cache_usage(store: Store, layouts: Iterable[Path], images: Path) -> CacheUsage:
    """Read the cache, the known layouts and the locks; change nothing.

    :param layouts: further layouts, in addition to those that builds recorded.
    :param images: the folder of locks; it may be absent.
    """
    marks = _Marks(store, layouts, images)
    entries = tuple(_Scan(store, marks).entries())
    return CacheUsage(entries=entries, wheels=marks.wheels, unread=tuple(marks.unread))


def bytes_held(store: Store) -> int:
    """The size of the cache, without reading layouts and locks."""
    folders = (path for path in store.root.iterdir() if path.name != "rootfs")
    there = {path.name for path in (store.root / "rootfs").glob("*")}
    roots = (int(record["bytes"]) for key, record in store.records("roots") if key in there)
    return sum(roots) + sum(tree_size(path)[0] for path in folders)


class _Marks:
    """The users of the cache. All paths are relative to the cache."""

    def __init__(self, store: Store, layouts: Iterable[Path], images: Path) -> None:
        self._store = store
        self.users: dict[str, list[str]] = {}  # tags and locks, by the path that they need
        self.busy: dict[str, str] = {}  # running processes, by the path that they need
        self.sources: set[str] = set()  # paths that are only needed to rebuild layers
        self.manifests: set[str] = set()  # hex digests of the images of all layouts
        self.wheels: dict[str, LockedWheel] = {}
        self.unread: list[str] = []
        claims = store.claims()
        self.building = bool(claims)
        for claim in claims:
            needs = claim.needs
            if needs is None:  # unknown, so everything
                needs = tuple(str(path.relative_to(store.root)) for path in store.root.rglob("*"))
            self.busy |= dict.fromkeys(needs, str(claim))
        known = [Path(str(record.get("path", ""))) for _, record in store.records("layouts")]
        for place in dict.fromkeys([*known, *(path.absolute() for path in layouts)]):
            self._read_layout(place)
        for path in sorted(images.glob("*/*.json")):
            self._read_lock(path)

    def _need(self, user: str, paths: Iterable[str]) -> None:
        for path in paths:
            self.users.setdefault(path, []).append(user)

    def _read_layout(self, place: Path) -> None:
        """Mark the blobs of each image of a layout. If the layout cannot be read, mark all its blobs."""
        if not (place / "index.json").exists() and not (place / "oci-layout").exists():
            return  # deleted, or a build created the folder and ended before it wrote to it
        try:
            names: dict[str, list[str]] = {}
            for ref, digest in (layout := open_layout(place)).refs().items():
                names.setdefault(digest, []).append(ref)
            images = [layout.image(preferred_name(found)) for found in names.values()]
        except (KilnError, OSError) as error:
            self.unread.append(f"{place}: {error}; all of its blobs are kept")
            self._need(f"{place}, which cannot be read", _blobs_in(place))
            return
        converted = {
            blob_path(str(record.get("digest"))): blob_path(source_of(key))
            for kind in FORMAT_RECORDS
            for key, record in self._store.records(kind)
        }
        for image in images:
            key = image.manifest.removeprefix("sha256:")
            needed = [blob_path(layer.digest) for layer in image.layers]
            self.manifests.add(key)
            self._need(f"{image.ref} in {place}", needed)
            made = self._store.record("images", key) or {}
            self.sources |= {converted[path] for path in needed if path in converted}
            self.sources |= {path for pair in dict(made.get("wheels", {})).items() for path in pair}
            self.sources |= set(made.get("archives", ()))
            self.sources |= {f"interpreters/{made[name]}" for name in ("base", "interpreter") if name in made}

    def _read_lock(self, path: Path) -> None:
        """Mark the base of a lock: the distribution's archive may no longer have its packages."""
        try:
            if path.name == "lock.json":
                locked = from_json(read_file(path, LIMIT), where=str(path))
                blobs = [found.digest for found in locked.artefacts]
                self.sources |= source_paths(locked)
                self.wheels |= {wheel_path(wheel): wheel for wheel in locked.wheels}
            elif path.name == "base.json" and (base := artefact.read(path, LockedBase)):
                blobs = [base.digest]
                self.sources.add(interpreter_path(base))
            elif is_tools(path.stem) and (tools := artefact.read(path, LockedTools)):
                blobs = [tools.digest]
            else:
                return
        except (KilnError, OSError) as error:
            self.unread.append(f"{error}; all blobs are kept")  # one of them may be its base
            self._need(f"{path}, which cannot be read", _blobs_in(self._store.root))
            return
        self._need(f"the lock of {path.parent.name}", map(blob_path, blobs))


def _blobs_in(folder: Path) -> Iterator[str]:
    return (f"blobs/sha256/{path.name}" for path in (folder / "blobs" / "sha256").glob("*"))


class _Scan:
    """One scan of the cache's folders."""

    def __init__(self, store: Store, marks: _Marks) -> None:
        self._store, self._root, self._marks = store, store.root, marks
        self._used: dict[str, float] = {}  # when an image with the blob or interpreter was built
        for key, image in store.records("images"):
            used = _mtime(self._root / record_path("images", key))
            for name in (*image.get("layers", {}), image.get("base")):
                self._used[str(name)] = max(self._used.get(str(name), 0.0), used)
        self._records: dict[str, list[str]] = {}  # the records of each blob and each unpacked image
        for kind in ("layers", "bases", APT_RECORDS, *FORMAT_RECORDS):
            for key, record in store.records(kind):
                name = blob_path(str(record.get("digest")))
                self._records.setdefault(name, []).append(record_path(kind, key))
        self._sizes: dict[str, int] = {}  # of unpacked images
        for key, record in store.records("roots"):
            self._records[f"rootfs/{key}"] = [record_path("roots", key)]
            self._sizes[f"rootfs/{key}"] = int(record["bytes"])
        for path in (self._root / "records" / "erofs").glob("[!.]*.json"):
            self._records[f"erofs/sha256/{path.stem[:2]}/{path.stem}.erofs"] = [
                record_path("erofs", path.stem)
            ]

    def entries(self) -> Iterator[Entry]:
        for kind, patterns in _PATTERNS.items():
            for path in (path for pattern in patterns for path in sorted(self._root.glob(pattern))):
                name = str(path.relative_to(self._root))
                if kind not in _BY_HASH or _HASH.match(name):
                    with contextlib.suppress(FileNotFoundError):  # deleted by another process
                        yield self._entry(kind, name, path)
        for path in self._leftovers():
            name = str(path.relative_to(self._root))
            yield Entry(kind=LEFTOVERS, path=name, size=_size(path), used=_mtime(path))

    def _entry(self, kind: str, name: str, path: Path) -> Entry:
        found = path.stat()
        records = tuple(self._records.get(name, ()))
        marks, names = self._marks, (name, name.removesuffix(".part"), *records)
        users = [user for one in names for user in marks.users.get(one, ())]
        shared = kind == "blobs" and found.st_nlink > 1
        if shared and not users:
            users = ["an unknown layout"]
        used = _mtime(self._root / records[0]) if kind in ("rootfs", "erofs") and records else found.st_mtime
        busy = next((marks.busy[one] for one in names if one in marks.busy), "")
        return Entry(
            kind=LEFTOVERS if path.name.endswith(".part") else kind,
            path=name,
            size=self._sizes.get(name) or _size(path),
            used=max(used, self._used.get(path.name, 0.0)),
            users=tuple(dict.fromkeys(users)),
            busy=busy or self._user(kind, name, path, used),
            lifetime=math.inf if name in marks.sources else _DAYS.get(kind, 0) * DAY,
            records=records,
            shared=shared,
        )

    def _user(self, kind: str, name: str, path: Path, used: float) -> str:
        """The process that uses an entry without a claim."""
        recent = time.time() - used
        if lock := _LOCKS.get(kind):
            return str(self._store.locked(f"{lock}-{path.parent.name}") or "")
        if kind == "rootfs":
            if in_use(path):
                return "a command is running in it"
            return "just used" if recent < _MINUTE else ""  # between `unpacked_root` and the command
        made_by_wheels = any(record.startswith("records/layers/") for record in self._records.get(name, ()))
        if kind in ("blobs", DEBS) and not made_by_wheels:  # the build that needs it may not have claimed it
            if self._marks.building:
                return "a running build may need it"
            return "just created" if recent < _TEN_MINUTES else ""
        return ""

    def _leftovers(self) -> Iterator[Path]:
        """Files of ended processes, and records of deleted layouts, images and blobs."""
        yield from self._store.dead()
        for path in (self._root / "locks").glob("*"):
            if path.name != "gate" and age(path) > _HOUR and self._store.locked(path.name) is None:
                yield path
        if self._marks.building:  # a running build may be about to write what a record refers to
            return
        yield from (self._root / "records" / FORMER_RECORDS).glob("[!.]*.json")
        for key, record in self._store.records("layouts"):
            if not Path(str(record.get("path", ""))).is_dir():
                yield self._root / record_path("layouts", key)
        for key, _ in self._store.records("images"):
            if key not in self._marks.manifests:
                yield self._root / record_path("images", key)
        for name, records in self._records.items():
            if name.startswith("blobs/") and not (self._root / name).exists():
                yield from (self._root / record for record in records)


def _mtime(path: Path) -> float:
    return time.time() - age(path)


def _size(path: Path) -> int:
    """Bytes of a file or folder; 0: it does not exist."""
    if path.is_dir() and not path.is_symlink():
        return tree_size(path)[0]
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0
