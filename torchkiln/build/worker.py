"""One wheel layer, made in a process of its own: wheel files (complete or arriving) → a layer blob.

The parent hands over a `Task`, the worker gives back what was written. A layer is a function of its wheels,
the exact Python, the prefix and the recipe, and of nothing else (`layer_key`). Byte-code of wheels that
share a layer is made before it, wheel by wheel on all cores: the layer itself is one stream.
"""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from torchkiln.build.bytecode import Bytecode
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import PREFIX, WHEEL_EPOCH, minor
from torchkiln.oci.layer import LayerWriter
from torchkiln.store.store import Store
from torchkiln.util.page_cache import PassingFile
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import sources, splice

_cancelled: Event
_progress: Any  # shared array of bytes read, one slot a job


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One wheel of a job: `path` may still grow to the wheel's size; then `tail` is its last bytes."""

    wheel: LockedWheel
    path: Path
    tail: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One layer to make. `python` is the base's full version, `interpreter` the command that starts it.

    `recorded` is what the lock says that it will be.
    """

    slot: int
    inputs: tuple[Input, ...]
    cache: Path
    python: str
    interpreter: tuple[str, ...]
    out: Path
    recorded: Blob | None = None


def start_worker(cancelled: Event, progress: Any, parent: int) -> None:
    """Runs once in each worker: what is shared; Ctrl-C is the affair of *parent*, a process id."""
    global _cancelled, _progress
    _cancelled, _progress = cancelled, progress
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def make_layer(task: Task) -> Blob:
    """Make the layer of *task*; the blob is at `job.out` when this returns.

    A recorded layer is made without looking into it. If it then is not the recorded one it is made once more,
    in full: that finds what is wrong with a wheel, or the layer that it should have been.

    :raises BadWheel: a wheel is refused.
    :raises Cancelled: the parent gave up.
    """
    if task.recorded:
        written = _write(task, task.recorded)
        if written == task.recorded:
            return written
        _progress[task.slot] = 0
    return _write(task, None)


def _write(task: Task, recorded: Blob | None) -> Blob:
    scheme = Scheme(prefix=PREFIX, python=minor(task.python))
    with io.BufferedWriter(PassingFile(task.out, "wb"), 1 << 20) as out:
        layer = LayerWriter(out, mtime=WHEEL_EPOCH, recorded=recorded)
        for item in task.inputs:
            _add(item, layer, scheme, task)
        return layer.finish()


def _add(item: Input, layer: LayerWriter, scheme: Scheme, task: Task) -> None:
    def advanced(count: int) -> None:
        _progress[task.slot] += count

    bytecode = Bytecode(item.wheel, Store(task.cache), task.python, task.interpreter)
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


def compile_wheel(item: Input, cache: Path, python: str, interpreter: tuple[str, ...]) -> None:
    """Put the byte-code of one complete wheel into the cache, where `make_layer` finds it.

    :raises BadWheel: the wheel is refused.
    :raises Cancelled: the parent gave up.
    """
    bytecode = Bytecode(item.wheel, Store(cache), python, interpreter)
    wheel, scheme = item.wheel, Scheme(prefix=PREFIX, python=minor(python))
    try:
        if bytecode.kept is None:
            with WheelFile(item.path, wheel.size, cancelled=_cancelled.is_set) as file:
                sources(file, wheel.filename, wheel.sha256, scheme, bytecode.source)
            bytecode.result()
    finally:
        bytecode.close()


def _die_with(parent: int) -> None:
    """A pool's worker does not notice that its parent was killed, and would wait for work for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
