"""Orders → layer blobs: downloads in threads, conversions in processes, both at once.

Each order has a thread that sees it through. A big wheel has a layer of its own. The conversion of the
largest ones starts with their download and reads behind it; each holds a worker that mostly waits, so the
others are converted when they are complete. Small wheels share a layer, which is made when all are there;
what takes long, their byte-code, is made as each arrives. Small files have download slots of their own, for
they cost time on the way, not bytes.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from torchkiln.build.environment import Environment
from torchkiln.build.worker import Input, Task, compile_wheel, cores, make_layer, start_worker
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedWheel
from torchkiln.model.progress import Work
from torchkiln.util.files import private_folder
from torchkiln.util.processes import WorkerDied, Workers
from torchkiln.wheel.source import Cancelled

_TAIL = 2 << 20  # bytes; torch's zip directory takes 1.4 MB of it
_LOOK = 0.1  # seconds between looks at the workers' progress
_STREAMS = 6  # large downloads at a time: one connection alone seldom fills the line
_SMALL_STREAMS = 8
_TRAILING = 2  # conversions that read behind a download
_WORTH = 1 << 20  # bytes of wheels, from which another worker is worth its start: 0.15 s of a core


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A layer to make; `recorded` where the lock says what it will be."""

    key: str
    title: str
    wheels: tuple[LockedWheel, ...]
    recorded: Blob | None = None

    @property
    def size(self) -> int:
        """Bytes of wheels that go into it."""
        return sum(wheel.size for wheel in self.wheels)


class Scheduler:
    """Makes layers. `seconds` tells afterwards how long each kind of work took, first start to last end."""

    def __init__(self, environment: Environment, *, python: str, interpreter: tuple[str, ...]) -> None:
        self._store, self._fetcher = environment.store, environment.fetcher
        self._observer = environment.observer
        self._python, self._interpreter = python, interpreter
        self._context = multiprocessing.get_context("spawn")
        self._cancelled = self._context.Event()
        self._spans: dict[Work, tuple[float, float]] = {}
        self._streams = threading.Semaphore(_STREAMS)
        self._stack = ExitStack()
        self._outs: list[Path] = []

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._cancelled.set()
        self._stack.close()
        for out in self._outs:  # those that nobody took over: done when another had failed already
            out.unlink(missing_ok=True)

    @property
    def seconds(self) -> dict[str, float]:
        return {work: end - start for work, (start, end) in self._spans.items()}

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Blob, Path]]:
        """Each order as it is done, with its blob's temporary path, which the caller takes over.

        :raises BuildFailed: the first failure; the other orders are called off.
        """
        if not jobs:
            return
        ordered = sorted(jobs, key=lambda job: (-job.size, job.key))
        self._progress = self._context.Array("Q", len(ordered), lock=False)
        count = min(cores() + _TRAILING, 1 + sum(job.size for job in jobs) // _WORTH)
        self._workers = self._stack.enter_context(
            Workers(count, start_worker, self._cancelled, self._progress, os.getpid())
        )
        self._small = self._stack.enter_context(ThreadPoolExecutor(_SMALL_STREAMS, "small"))
        threads = self._stack.enter_context(ThreadPoolExecutor(len(ordered), "order"))
        running = {threads.submit(self._see_through, slot, o): (slot, o) for slot, o in enumerate(ordered)}
        told = [0] * len(ordered)
        unexplained: Job | None = None
        left = set(running)
        while left:
            done, left = concurrent.futures.wait(left, _LOOK, concurrent.futures.FIRST_COMPLETED)
            for slot, job in running.values():
                if count := self._progress[slot] - told[slot]:
                    told[slot] += count
                    self._observer.advance("convert", job.title, count)
            # What succeeded comes first. Who merely heard that all is off says nothing: the cause will.
            for future in sorted(done, key=lambda future: future.exception() is not None):
                if isinstance(future.exception(), Cancelled):
                    unexplained = running[future][1]
                else:
                    yield running[future][1], *future.result()
        if unexplained:
            raise BuildFailed(
                f"a wheel of layer {unexplained.title!r} was cut while it was read",
                hint="is something else at work in the cache? run again",
            )

    def _see_through(self, slot: int, job: Job) -> tuple[Blob, Path]:
        """One order from its wheels' download to its blob."""
        out, whole = self._store.temporary("layer"), False
        self._outs.append(out)
        try:
            with ExitStack() as locks:
                for sha256 in sorted(wheel.sha256 for wheel in job.wheels):
                    what = f"makes layer {job.title}"
                    locks.enter_context(self._store.lock(f"wheel-{sha256}", what, check=self._check))
                written = self._made_with_patience(slot, job, out)
                for wheel in job.wheels:
                    if not self._store.has_wheel(wheel):
                        self._store.adopt(self._store.part(wheel), self._store.wheel(wheel))
            whole = True
            return written, out
        except BadWheel as error:
            self._forget(job, error.wheel)
            raise
        except WorkerDied as error:
            raise BuildFailed(
                f"a worker died while it made layer {job.title!r}",
                hint="probably for want of memory: dmesg tells",
            ) from error
        finally:
            if not whole:
                out.unlink(missing_ok=True)
                self._cancelled.set()

    def _made_with_patience(self, slot: int, job: Job, out: Path) -> Blob:
        """As `_made`; what an earlier run left may be at fault, so the server gets one more chance."""
        kept = {wheel.filename for wheel in job.wheels if self._kept(wheel)}
        try:
            return self._made(slot, job, out)
        except BadWheel as error:
            if error.wheel not in kept or self._cancelled.is_set():
                raise
            self._forget(job, error.wheel)
            return self._made(slot, job, out)

    def _kept(self, wheel: LockedWheel) -> bool:
        return self._store.has_wheel(wheel) or self._store.part(wheel).exists()

    def _forget(self, job: Job, filename: str) -> None:
        """Delete what there is of a wheel that is not what was locked: nothing goes on from it."""
        for wheel in job.wheels:
            if wheel.filename == filename:
                self._store.part(wheel).unlink(missing_ok=True)
                self._store.wheel(wheel).unlink(missing_ok=True)

    def _check(self) -> None:
        """While an order waits for another process: has it been called off?"""
        if self._cancelled.is_set():
            raise Cancelled

    def _made(self, slot: int, job: Job, out: Path) -> Blob:
        """Wheels in, blob out; a single large wheel is converted while it arrives."""
        if len(job.wheels) > 1:
            return self._submit(slot, job, self._prepared(job), out).result()
        (wheel,) = job.wheels
        if self._store.has_wheel(wheel):
            return self._submit(slot, job, [self._fetch(wheel)], out).result()
        if slot >= _TRAILING:
            with self._streams:
                complete = self._fetch(wheel)
            return self._submit(slot, job, [complete], out).result()
        with self._streams:
            tail = self._fetcher.tail(wheel, min(_TAIL, wheel.size))
            arriving = Input(wheel=wheel, path=self._store.part(wheel), tail=tail or b"")
            future = self._submit(slot, job, [arriving], out) if tail else None
            try:
                self._fetch(wheel)
            except BaseException:  # whatever it is, the converter must not wait for bytes that do not come
                self._cancelled.set()
                if future is not None:
                    concurrent.futures.wait([future])
                raise
        return (future or self._submit(slot, job, [arriving], out)).result()

    def _prepared(self, job: Job) -> list[Input]:
        """The wheels of a shared layer, complete, and their byte-code in the cache."""
        compiled = []
        # What takes longest is begun first: one that is left for the end would have a core to itself.
        largest_first = sorted(job.wheels, key=lambda wheel: -wheel.size)
        fetched = {self._small.submit(self._fetch, wheel): wheel for wheel in largest_first}
        for future in concurrent.futures.as_completed(fetched):
            task = (future.result(), self._store.root, self._python, self._interpreter)
            compiled.append(self._workers.submit(compile_wheel, *task))
        for made in compiled:
            made.result()
        inputs = {wheel: future.result() for future, wheel in fetched.items()}
        return [inputs[wheel] for wheel in job.wheels]

    def _submit(self, slot: int, job: Job, inputs: list[Input], out: Path) -> Future[Blob]:
        self._observer.begin("convert", job.title, job.size)
        started = time.monotonic()
        conversion = Task(
            slot=slot,
            inputs=tuple(inputs),
            cache=self._store.root,
            python=self._python,
            interpreter=self._interpreter,
            out=out,
            recorded=job.recorded,
        )
        future = self._workers.submit(make_layer, conversion)
        future.add_done_callback(lambda _: self._done("convert", job.title, started))
        return future

    def _fetch(self, wheel: LockedWheel) -> Input:
        """The wheel's file, complete but not verified: whoever reads it does that."""
        if self._store.has_wheel(wheel):
            return Input(wheel=wheel, path=self._store.wheel(wheel))
        part = self._store.part(wheel)
        private_folder(part.parent)
        started = time.monotonic()
        self._observer.begin("download", wheel.filename, wheel.size)
        self._fetcher.fetch(
            wheel,
            part,
            on_progress=lambda count: self._observer.advance("download", wheel.filename, count),
            cancelled=self._cancelled.is_set,
        )
        self._done("download", wheel.filename, started)
        return Input(wheel=wheel, path=part)

    def _done(self, work: Work, name: str, started: float) -> None:
        first, last = self._spans.get(work, (started, started))
        self._spans[work] = (min(first, started), max(last, time.monotonic()))
        self._observer.end(work, name)
