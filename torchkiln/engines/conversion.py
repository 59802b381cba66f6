"""One wheel layer, made in a process of its own: wheel files (complete or arriving) → a layer blob.

The parent hands over a `Job`, the worker gives back what was written. A layer is a function of its wheels,
the exact Python, the prefix and the recipe, and of nothing else: `layer_key` is that statement as a hash.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from torchkiln.errors import BuildFailed
from torchkiln.nouns import LockedWheel
from torchkiln.oci.encode import ENCODER
from torchkiln.oci.layer import LayerWriter, Written
from torchkiln.pagecache import PassingFile
from torchkiln.recipe import PREFIX, RECIPE, WHEEL_EPOCH, minor
from torchkiln.store import Store
from torchkiln.wheel.bytecode import Compiler, read_pack
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import splice

_cancelled: Event
_progress: Any  # shared array of bytes read, one slot a job


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One wheel of a job: `path` may still grow to the wheel's size; then `tail` is its last bytes."""

    wheel: LockedWheel
    path: Path
    tail: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One layer to make. `python` is the base's full version, `interpreter` the command that starts it.

    `recorded` is what the lock says that it will be.
    """

    slot: int
    inputs: tuple[Input, ...]
    cache: Path
    python: str
    interpreter: tuple[str, ...]
    out: Path
    recorded: Written | None = None


def layer_key(wheels: Iterable[LockedWheel], python: str) -> str:
    """What decides a wheel layer's bytes, as hex."""
    return _key([wheel.sha256 for wheel in wheels], python)


def start_worker(cancelled: Event, progress: Any) -> None:
    """Runs once in each worker: what is shared; Ctrl-C is the parent's affair."""
    global _cancelled, _progress
    _cancelled, _progress = cancelled, progress
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def convert(job: Job) -> Written:
    """Make the layer of *job*; the blob is at `job.out` when this returns.

    A recorded layer is made without looking into it. If it then is not the recorded one it is made once more,
    in full: that finds what is wrong with a wheel, or the layer that it should have been.

    :raises BadWheel: a wheel is refused.
    :raises Cancelled: the parent gave up.
    """
    if job.recorded:
        written = _write(job, job.recorded)
        if written == job.recorded:
            return written
        _progress[job.slot] = 0
    return _write(job, None)


def _write(job: Job, recorded: Written | None) -> Written:
    scheme = Scheme(prefix=PREFIX, python=minor(job.python))
    with io.BufferedWriter(PassingFile(job.out, "wb"), 1 << 20) as out:
        layer = LayerWriter(out, mtime=WHEEL_EPOCH, recorded=recorded)
        for item in job.inputs:
            _add(item, layer, scheme, job)
        return layer.finish()


def _add(item: Input, layer: LayerWriter, scheme: Scheme, job: Job) -> None:
    def advanced(count: int) -> None:
        _progress[job.slot] += count

    bytecode = _Bytecode(item.wheel, job)
    try:
        with WheelFile(
            item.path, item.wheel.size, tail=item.tail, cancelled=_cancelled.is_set, advanced=advanced
        ) as file:
            splice(
                file,
                item.wheel.filename,
                item.wheel.sha256,
                layer,
                scheme,
                source=None if bytecode.kept is not None else bytecode.source,
                bytecode=bytecode.result,
            )
    finally:
        bytecode.close()


def _die_with(parent: int) -> None:
    """A pool's worker does not notice that its parent was killed, and would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


class _Bytecode:
    """The .pyc files of one wheel: from the pack in the cache, or compiled as its sources go by."""

    def __init__(self, wheel: LockedWheel, job: Job) -> None:
        self._store = Store(job.cache)
        self._place = self._store.root / "bytecode" / f"{_key([wheel.sha256], job.python)}.pack"
        self.kept = _intact(self._place)
        self._compiler: Compiler | None = None
        self._start: Callable[[Path], Compiler] = lambda pack: Compiler(job.interpreter, pack)

    def source(self, path: str, data: bytes) -> None:
        if self._compiler is None:
            self._compiler = self._start(self._store.temporary("pack"))
        self._compiler.add(path, data)

    def result(self) -> Iterator[tuple[str, bytes]]:
        if self.kept is not None:
            return iter(self.kept)
        if self._compiler is None:
            return iter(())
        self._compiler.finish()
        made = _intact(self._compiler.pack)
        if made is None:
            raise BuildFailed(
                "the byte-code just made cannot be read back", hint="look at the disk; run again"
            )
        self._store.adopt(self._compiler.pack, self._place)
        return iter(made)

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.pack.unlink(missing_ok=True)


def _intact(pack: Path) -> list[tuple[str, bytes]] | None:
    """The pairs of a pack that is there and whole."""
    try:
        with pack.open("rb") as file:
            return list(read_pack(file))
    except (OSError, ValueError):
        return None


def _key(wheels: list[str], python: str) -> str:
    decides = {"wheels": wheels, "python": python, "prefix": PREFIX, "recipe": RECIPE, "encoder": ENCODER}
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
