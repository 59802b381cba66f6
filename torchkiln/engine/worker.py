"""Makes one wheel layer in a worker process, from complete wheels or during their download.

The parent passes a `Task`, the worker returns the blob. A layer depends only on its wheels, the exact Python,
the prefix and the recipe (`layer_key`). The byte-code of wheels that share a layer is compiled first, in
parallel: the layer itself is one stream.
"""

from __future__ import annotations

import io
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from torchkiln.engine.cache_keys import layer_key
from torchkiln.errors import BuildFailed
from torchkiln.model.device_code import DeviceCode
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedWheel
from torchkiln.model.recipe import WHEEL_EPOCH, ImagePython
from torchkiln.oci.layer import LayerWriter
from torchkiln.store.store import Store
from torchkiln.util.files import PassingFile
from torchkiln.wheel.bytecode import Code, Compiler, read_pack, write_pack
from torchkiln.wheel.cut import Cut
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import sources, splice

_cancelled: Event
_progress: Any  # shared array of bytes read, one slot for each job
# Tests in wheels are almost never imported, but have a sixth of all byte-code. Layers for a standalone Python
# do not contain it.
_TESTS = re.compile(r"/tests?/")


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelInput:
    """One wheel of a task. If `path` is still being downloaded, `tail` has its last bytes."""

    wheel: LockedWheel
    path: Path
    tail: bytes = b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A layer to make. `interpreter` is the command that starts its `python`.

    `recorded` is the blob in the lock. `device_code` names wheels, and the device code that their libraries
    keep.
    """

    slot: int
    inputs: tuple[WheelInput, ...]
    cache: Path
    python: ImagePython
    interpreter: tuple[str, ...]
    out: Path
    recorded: Blob | None = None
    device_code: DeviceCode | None = None


def start_worker(cancelled: Event, progress: Any, parent: int) -> None:
    """Initialise a worker process; *parent*, a process id, handles Ctrl-C."""
    global _cancelled, _progress
    _cancelled, _progress = cancelled, progress
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def make_layer(task: Task) -> Blob:
    """Make the layer of *task*; the blob is at `task.out` afterwards.

    A layer that the lock records is made without inflating the wheels. If the result differs from the record,
    the layer is rebuilt with all checks: they find the fault of a wheel, or the result is correct.

    :raises BadWheel: a wheel is invalid.
    :raises Cancelled: the parent cancelled the build.
    """
    if task.recorded:
        written = _write(task, task.recorded)
        if written == task.recorded:
            return written
        _progress[task.slot] = 0
    return _write(task, None)


def _write(task: Task, recorded: Blob | None) -> Blob:
    scheme = Scheme.of(task.python)
    with io.BufferedWriter(PassingFile(task.out, "wb"), 1 << 20) as out, _cut(task) as cut:
        # Layers for the base's Python have tar headers that are stored: existing locks record their digests.
        packed = task.python.of_another
        layer = LayerWriter(out, mtime=WHEEL_EPOCH, recorded=recorded, packed=packed)
        for item in task.inputs:
            _add(item, layer, scheme, task, cut)
        return layer.finish()


@contextmanager
def _cut(task: Task) -> Iterator[Cut | None]:
    """The device code to cut, with a temporary file that has no name; None: nothing is cut."""
    if task.device_code is None:
        yield None
        return
    with tempfile.TemporaryFile(dir=Store(task.cache).temporary("library").parent) as scratch:
        yield Cut(device_code=task.device_code, scratch=scratch)


def _add(item: WheelInput, layer: LayerWriter, scheme: Scheme, task: Task, cut: Cut | None) -> None:
    def advanced(count: int) -> None:
        _progress[task.slot] += count

    bytecode = Bytecode(item.wheel, Store(task.cache), task.python, task.interpreter)
    try:
        with WheelFile(
            item.path, item.wheel.size, tail=item.tail, cancelled=_cancelled.is_set, advanced=advanced
        ) as file:
            splice(
                file,
                item.wheel,
                layer,
                scheme,
                source=None if bytecode.cached is not None else bytecode.source,
                bytecode=bytecode.result,
                cut=cut,
            )
    finally:
        bytecode.close()


def compile_wheel(item: WheelInput, cache: Path, python: ImagePython, interpreter: tuple[str, ...]) -> None:
    """Put the byte-code of one complete wheel into the cache, where `make_layer` finds it.

    :raises BadWheel: the wheel is invalid.
    :raises Cancelled: the parent cancelled the build.
    """
    bytecode = Bytecode(item.wheel, Store(cache), python, interpreter)
    wheel, scheme = item.wheel, Scheme.of(python)
    try:
        if bytecode.cached is None:
            with WheelFile(item.path, wheel.size, cancelled=_cancelled.is_set) as file:
                sources(file, wheel, scheme, bytecode.source)
            bytecode.result()
    finally:
        bytecode.close()


def _exit_with(parent: int) -> None:
    """Exit after *parent* was killed: a pool's worker would wait for work forever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


class Bytecode:
    """The .pyc files of one wheel; `cached` are those in the cache, None if they must be compiled.

    :param interpreter: the command that starts *python*.
    """

    def __init__(
        self, wheel: LockedWheel, store: Store, python: ImagePython, interpreter: tuple[str, ...]
    ) -> None:
        self._store, self._interpreter = store, interpreter
        self._left_out = _TESTS if python.of_another else None
        self._pack = store.root / "bytecode" / f"{layer_key((wheel,), python)}.pack"
        self.cached = _intact(self._pack)
        self._compiler: Compiler | None = None

    def source(self, path: str, data: bytes) -> None:
        """Compile a Python source in the background, unless its byte-code is left out."""
        if self._left_out and self._left_out.search(path):
            return
        if self._compiler is None:
            self._compiler = Compiler(self._interpreter, self._store.temporary("made"))
        self._compiler.add(path, data)

    def result(self) -> Iterable[Code]:
        """All .pyc files, which then are in the cache.

        :raises BuildFailed: the image's Python failed.
        """
        if self.cached is not None:
            return self.cached
        if self._compiler is None:
            return ()
        self._compiler.finish()
        pack = self._store.temporary("pack")
        try:
            write_pack(self._compiler.output, pack, self._compiler.requested)
            self.cached = _intact(pack)
            if self.cached is None:
                raise ValueError("the pack cannot be read back")
            self._store.adopt(pack, self._pack)
        except ValueError as error:
            raise BuildFailed(
                f"the image's Python returned invalid byte-code: {error}",
                hint="the base is damaged or malicious, or the disk is faulty: run it again",
            ) from error
        finally:
            pack.unlink(missing_ok=True)
        return self.cached

    def close(self) -> None:
        """End the compiler and delete its output."""
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.output.unlink(missing_ok=True)


def _intact(pack: Path) -> list[Code] | None:
    """The content of a pack; None if it is missing or damaged."""
    try:
        with pack.open("rb") as file:
            return list(read_pack(file))
    except (OSError, ValueError):
        return None
