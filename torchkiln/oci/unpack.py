"""Unpacks layers to a root file system and verifies each diff_id on the way.

The thread that unpacks can write only below its folder, if the kernel supports Landlock. Defence in depth:
`extract` does not write outside its folder; if it had a bug, the kernel would stop it.
docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import gc
import os
import stat
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torchkiln.errors import BuildFailed
from torchkiln.model.digest import Digest
from torchkiln.model.progress import UNREPORTED, Observer
from torchkiln.oci.extract import EntryRefused, Extractor
from torchkiln.oci.layer_index import Content, IndexedEntry, LayerIndex
from torchkiln.oci.opening import verified_layer
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import TarEntry, TarReader
from torchkiln.store.file_locks import in_use
from torchkiln.store.store import Store
from torchkiln.util.files import remove_tree, tree_size

T = TypeVar("T")
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same on every 64-bit architecture
_VERSION_FLAG, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
_MIN_VERSION = 2  # the first version that can allow hard links between folders
_WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 1, 1 << 4, 1 << 5
_MAKE = {"char": 6, "dir": 7, "reg": 8, "sock": 9, "fifo": 10, "block": 11, "sym": 12}
_REFER = 1 << 13
_ALL = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _REFER | sum(1 << bit for bit in _MAKE.values())
_ALLOWED = _ALL & ~sum(1 << _MAKE[kind] for kind in ("char", "sock", "fifo", "block"))


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBlob:
    """A blob on disk and the expected digest of its tar."""

    path: Path
    diff_id: Digest
    size: int = 0  # bytes of the blob, for progress


def root_of(store: Store, manifest: Digest) -> Path:
    """The folder of the unpacked image *manifest*, which may not exist."""
    return store.root / "rootfs" / manifest.removeprefix("sha256:")


def unpacked_root(
    manifest: Digest,
    layers: Sequence[LayerBlob],
    store: Store,
    *,
    indexed: Callable[[Digest, LayerIndex], None] = lambda diff_id, index: None,
    reuse: bool = True,
    observer: Observer = UNREPORTED.observer,
) -> Path:
    """The unpacked image *manifest* in the cache, unpacked at the first call. It must not be changed.

    :param indexed: called with the entries of each layer that was unpacked.
    :param reuse: link the files of an unpacked image with the lowest of *layers*, and unpack only the others.
    :raises VerificationFailed: a layer has another diff_id, or reaches outside the root.
    :raises BuildFailed: the disk is full or not writable.
    """
    root = root_of(store, manifest)
    if not root.is_dir():
        with store.lock(f"rootfs-{root.name}", "unpacks that image"):
            if not root.is_dir():
                for layer, index in _unpack_into_cache(layers, root, store, observer, reuse=reuse):
                    indexed(layer.diff_id, index)
    # The time of the record is that of the last use. The time of the root itself is visible in the image.
    store.touch(store.root / "records" / "roots" / f"{root.name}.json")
    return root


def set_root_aside(store: Store, root: Path) -> list[Path]:
    """Rename the unpacked image *root*; return the path to delete, or [] if a command runs in the image."""
    moved = store.set_aside([root])
    if any(in_use(path) for path in moved):
        for path in moved:  # a command was started in the image in the meantime
            path.rename(root)
        return []
    return moved


def forget_root(store: Store, manifest: Digest) -> None:
    """Delete the unpacked image *manifest*, unless a command runs in it."""
    with store.gate():
        root = root_of(store, manifest)
        if aside := set_root_aside(store, root):
            aside += store.set_aside([store.root / "records" / "roots" / f"{root.name}.json"])
    for path in aside:
        remove_tree(path)


def lower_root(store: Store, layers: Sequence[LayerBlob]) -> tuple[Path, int] | None:
    """The unpacked image that has most of the lowest *layers*, and their number; None: there is none."""
    diff_ids = [layer.diff_id for layer in layers]
    found = {name: list(record.get("layers", ())) for name, record in store.records("roots")}
    fitting = {name: own for name, own in found.items() if own and own == diff_ids[: len(own)] != diff_ids}
    name = max(fitting, key=lambda name: len(fitting[name]), default="")
    root = store.root / "rootfs" / name
    return (root, len(fitting[name])) if name and root.is_dir() else None


def _unpack_into_cache(
    layers: Sequence[LayerBlob], root: Path, store: Store, observer: Observer, *, reuse: bool
) -> list[tuple[LayerBlob, LayerIndex]]:
    """Unpack in tmp/, rename the result to *root*, and record its size. `sweep` cleans tmp/ after a crash.

    Returns the layers that were unpacked, with their entries.
    """
    temporary = store.temporary("root")
    lower, count = (reuse and lower_root(store, layers)) or (None, 0)
    try:
        indexes = _on_lower(layers[count:], temporary, observer, lower) if lower else None
        if indexes is None:
            count, indexes = 0, unpack(layers, temporary, observer)
        size, files = tree_size(temporary)
        # Only the owner may enter: other users could start set-user-ID programs of the image.
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.parent.chmod(0o700)
        names = [layer.diff_id for layer in layers]
        store.put_record("roots", root.name, {"bytes": size, "files": files, "layers": names})
        os.replace(temporary, root)
        return list(zip(layers[count:], indexes, strict=True))
    except OSError as error:
        raise BuildFailed(f"{root} cannot be created: {error.strerror}") from error
    finally:
        remove_tree(temporary)


def _on_lower(
    layers: Sequence[LayerBlob], into: Path, observer: Observer, lower: Path
) -> tuple[LayerIndex, ...] | None:
    """`unpack` with *lower*; None if files of *lower* cannot be linked, or another process deletes them."""
    try:
        return unpack(layers, into, observer, lower=lower)
    except BuildFailed:
        remove_tree(into)
        return None


def unpack(
    layers: Sequence[LayerBlob],
    into: Path,
    observer: Observer = UNREPORTED.observer,
    *,
    lower: Path | None = None,
) -> tuple[LayerIndex, ...]:
    """Unpack *layers*, lowest first, to the folder *into*, which appears complete or not at all.

    Returns the entries of each layer.

    If the caller is root, files have the owners of the image; else the caller owns the files, and a user
    namespace maps the caller to root. Later layers may add, replace, and remove single paths by whiteouts.
    Opaque whiteouts are refused, as are device nodes and entries that would be written through a link.

    :param lower: the unpacked layers below *layers*; *into* gets hard links to their files.
    :raises VerificationFailed: a layer is damaged, has another diff_id, or has a refused entry; the message
        names it.
    :raises BuildFailed: the disk is full or not writable.
    """
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    except OSError as error:
        raise BuildFailed(f"{into} cannot be created: {error.strerror}") from error
    try:
        folders = link_tree(lower, work) if lower else ()
        for layer in layers:
            observer.begin("unpack", layer.diff_id, layer.size)
        indexes = confined(work, lambda check: _unpack_all(layers, work, check, folders, observer))
        os.replace(work, into)
        return indexes
    except OSError as error:
        raise BuildFailed(f"{into} cannot be created: {error.strerror}") from error
    finally:
        remove_tree(work)


def layer_index(layer: LayerBlob) -> LayerIndex:
    """The entries of *layer*, which is read and verified, not unpacked.

    :raises VerificationFailed: as `unpack`.
    """
    return read_layer(layer, lambda _, content: deque(content, maxlen=0), lambda _: None)


def _unpack_all(
    layers: Sequence[LayerBlob],
    root: Path,
    check: Callable[[], None],
    folders: Iterable[TarEntry],
    observer: Observer,
) -> tuple[LayerIndex, ...]:
    root.chmod(0o755)
    extractor = Extractor(root, folders)
    try:
        indexes = []
        for layer in layers:
            indexes.append(read_layer(layer, extractor.add, lambda _: check()))
            observer.advance("unpack", layer.diff_id, layer.size)
        extractor.finish()
        return tuple(indexes)
    finally:
        extractor.close()


def read_layer(
    layer: LayerBlob,
    add: Callable[[TarEntry, Iterable[memoryview]], object],
    passed: Callable[[bytes], object],
) -> LayerIndex:
    """Pass each entry and its content to *add*, which reads it; return the index of the layer.

    :param passed: called with each piece of the tar before its entries are read.
    :raises VerificationFailed: as `unpack`.
    """
    paths, index = LayerPaths(), list[IndexedEntry]()

    def seen(pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            passed(piece)
            yield piece

    with verified_layer(layer.path, layer.diff_id, ahead=True) as pieces:
        tar = TarReader(seen(pieces))
        for entry in tar:
            for fault in paths.add(entry):
                raise EntryRefused(fault)
            content = Content(entry, tar.content())
            try:
                add(entry, content)
            except EntryRefused as error:
                raise EntryRefused(f"layer entry {entry.path!r} {error}") from None
            index.append(content.listed())
    return tuple(index)


def link_tree(source: Path, target: Path) -> tuple[TarEntry, ...]:
    """Fill the empty folder *target* with the folders of *source* and hard links to its files and links.

    Files of unpacked images are never changed: an entry of a layer replaces a file, and commands write
    elsewhere. Returns the folders, which the owner can write until `Extractor.finish` sets their modes and
    times.

    :raises OSError: a file cannot be linked, as on another file system or after 65,000 links.
    """
    folders = [_folder_entry("", source.lstat())]
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(source / above) as found:
            for entry in found:
                path = f"{above}/{entry.name}" if above else entry.name
                if entry.is_dir(follow_symlinks=False):
                    (target / path).mkdir(mode=0o700)
                    folders.append(_folder_entry(path, entry.stat(follow_symlinks=False)))
                    waiting.append(path)
                else:
                    os.link(source / path, target / path, follow_symlinks=False)
    return tuple(folders)


def _folder_entry(path: str, found: os.stat_result) -> TarEntry:
    return TarEntry(
        path=path,
        kind="folder",
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        mtime=int(found.st_mtime),
        size=0,
        target="",
        device=(0, 0),
        xattrs=(),
    )


def confined(folder: Path, work: Callable[[Callable[[], None]], T]) -> T:
    """Call *work* in a thread that can write only below *folder*; return its result.

    *work* gets a function that it must call often. That function raises InterruptedError once the caller was
    interrupted, because a thread cannot be stopped from outside.
    """
    interrupted = threading.Event()

    def check() -> None:
        if interrupted.is_set():
            raise InterruptedError("interrupted")

    def run() -> T:
        _restrict(folder)
        return work(check)

    # At its end, `with` waits for the thread.
    with _COLLECTOR.paused(), ThreadPoolExecutor(1, "confined") as pool:
        try:
            return pool.submit(run).result()
        finally:
            interrupted.set()


class _Collector:
    """Python's garbage collector, which runs the finalizers of all objects in any thread.

    In a restricted one they fail, for example those that delete the semaphores of multiprocessing.
    """

    def __init__(self) -> None:
        self._guard, self._count, self._enabled = threading.Lock(), 0, False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No collection in this context, which several threads may enter."""
        with self._guard:
            self._enabled = gc.isenabled() if not self._count else self._enabled
            self._count += 1
            gc.disable()
        try:
            yield
        finally:
            with self._guard:
                self._count -= 1
                if self._enabled and not self._count:
                    gc.enable()


_COLLECTOR = _Collector()


def version() -> int:
    """The version of Landlock in the kernel; 0 if the kernel has no Landlock, or it is disabled."""
    return max(int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)), 0)


def _restrict(folder: Path) -> None:
    """Restrict this thread and those that it starts, permanently; do nothing without Landlock."""
    if version() < _MIN_VERSION:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    ruleset = _checked(libc.syscall(_CREATE, struct.pack("Q", _ALL), ctypes.c_size_t(8), 0))
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _checked(libc.syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", _ALLOWED, descriptor), 0))
        finally:
            os.close(descriptor)
        _checked(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))  # of this thread only
        _checked(libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
