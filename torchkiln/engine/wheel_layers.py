"""Makes the missing wheel layers. Locks keep two processes from making the same layer at the same time.

This module loads slowly and is imported only when a layer has to be made.

Each job has a thread. Each large wheel has a layer. The largest wheels are converted during their download.
Each of them occupies a worker that mostly waits, so the other large wheels are converted after their
download. Small wheels share a layer, which is made when all are complete; their byte-code, which takes
longest, is compiled as each wheel arrives. Small files have separate download slots, because latency
dominates their downloads.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from torchkiln.base.confined import interpreter, require_sandbox, sandbox_fault
from torchkiln.engine.cache_keys import key_of, store_layer
from torchkiln.engine.environment import Environment
from torchkiln.engine.known import known_blob
from torchkiln.engine.worker import Task, WheelInput, compile_wheel, cores, make_layer, start_worker
from torchkiln.errors import BadWheel, BuildFailed
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import ImagePlan, PlannedLayer, WheelLayer
from torchkiln.model.progress import Transfer, Work
from torchkiln.model.recipe import ImagePython
from torchkiln.store.store import Store
from torchkiln.util.files import private_folder
from torchkiln.util.processes import WorkerDied, Workers
from torchkiln.wheel.source import Cancelled

_TAIL = 2 << 20  # bytes; torch's zip directory has 1.4 MB
_POLL = 0.1  # seconds between progress updates
_STREAMS = 6  # parallel large downloads: one connection rarely uses the whole bandwidth
_SMALL_STREAMS = 8
_TRAILING = 2  # conversions during a download
_PER_WORKER = 1 << 20  # bytes of wheels for each worker; starting one takes 0.15 s of a core


def make_wheel_layers(
    missing: Iterable[WheelLayer], plan: ImagePlan, environment: Environment, *, foreign: bool
) -> tuple[dict[PlannedLayer, Blob], dict[str, float], list[str]]:
    """Make the layers that are *missing*, or wait for another process that makes them.

    Locks are taken in sorted order, so that two builds cannot deadlock.

    :returns: the layers, the seconds by stage, and the titles of layers that another process made.
    """
    store = environment.store
    recorded = {layer.title: layer.blob for layer in plan.locked.layers}
    keys = {key_of(spec): spec for spec in missing}
    made: dict[PlannedLayer, Blob] = {}
    waited: list[str] = []
    with ExitStack() as locks:
        jobs = []
        for key in sorted(keys):
            locks.enter_context(store.lock(f"layer-{key}", f"makes layer {keys[key].title}"))
            spec = keys[key]
            if known := known_blob(spec, plan, store):
                made[spec] = known
                environment.on_layer(known)
                waited.append(spec.title)
            else:
                jobs.append(Job(key=key, layer=spec, recorded=recorded.get(spec.title)))
        if jobs:
            _check_sandbox(environment, foreign=foreign)
        pythons = {job.layer.python for job in jobs}
        argv = {python: _interpreter(python, plan.locked, environment.store) for python in pythons}
        with Scheduler(environment, interpreters=argv) as scheduler:
            for job, blob, path in scheduler.run(jobs):
                store_layer(job.layer, blob, path, store, verified=blob != job.recorded)
                made[job.layer] = blob
                environment.on_layer(blob)
            return made, scheduler.seconds, waited


def _check_sandbox(environment: Environment, *, foreign: bool) -> None:
    if foreign:
        require_sandbox()
    elif fault := sandbox_fault():
        environment.say(
            f"no sandbox is available ({fault}): the base's Python runs with a system call filter only"
        )


def _interpreter(python: ImagePython, locked: LockedCell, store: Store) -> tuple[str, ...]:
    if python.version == locked.base.python:
        return tuple(interpreter(locked.base, store).argv())
    return tuple(interpreter(locked.base, store, locked.standalone).argv())


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A layer to make; `recorded` is the blob in the lock."""

    key: str
    layer: WheelLayer
    recorded: Blob | None = None

    @property
    def size(self) -> int:
        return sum(wheel.size for wheel in self.layer.wheels)


class Scheduler:
    """Makes layers. Afterwards `seconds` has the time from first start to last end, by kind of work."""

    def __init__(
        self, environment: Environment, *, interpreters: Mapping[ImagePython, tuple[str, ...]]
    ) -> None:
        self._store, self._fetcher = environment.store, environment.fetcher
        self._observer = environment.observer
        self._interpreters = interpreters  # the command that starts each Python of the jobs
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
        for out in self._outs:  # after a failure: the blobs that the caller did not get
            out.unlink(missing_ok=True)

    @property
    def seconds(self) -> dict[str, float]:
        return {work: end - start for work, (start, end) in self._spans.items()}

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Blob, Path]]:
        """Each finished job, its blob and the blob's temporary path; the caller moves or deletes that file.

        :raises BuildFailed: the first failure; the other jobs are cancelled.
        """
        if not jobs:
            return
        ordered = sorted(jobs, key=lambda job: (-job.size, job.key))
        self._progress = self._context.Array("Q", len(ordered), lock=False)
        count = min(cores() + _TRAILING, 1 + sum(job.size for job in jobs) // _PER_WORKER)
        self._workers = self._stack.enter_context(
            Workers(count, start_worker, self._cancelled, self._progress, os.getpid())
        )
        self._small = self._stack.enter_context(ThreadPoolExecutor(_SMALL_STREAMS, "small"))
        threads = self._stack.enter_context(ThreadPoolExecutor(len(ordered), "job"))
        running = {threads.submit(self._run_job, slot, job): (slot, job) for slot, job in enumerate(ordered)}
        reported = [0] * len(ordered)
        cancelled: Job | None = None
        left = set(running)
        while left:
            done, left = concurrent.futures.wait(left, _POLL, concurrent.futures.FIRST_COMPLETED)
            for slot, job in running.values():
                if count := self._progress[slot] - reported[slot]:
                    reported[slot] += count
                    self._observer.advance("convert", job.layer.title, count)
            # Successful jobs first. A cancelled job is not the cause of the failure.
            for future in sorted(done, key=lambda future: future.exception() is not None):
                if isinstance(future.exception(), Cancelled):
                    cancelled = running[future][1]
                else:
                    yield running[future][1], *future.result()
        if cancelled:
            raise BuildFailed(
                f"a wheel of layer {cancelled.layer.title!r} was truncated while it was read",
                hint="check for other processes that write to the cache, and run it again",
            )

    def _run_job(self, slot: int, job: Job) -> tuple[Blob, Path]:
        out, complete = self._store.temporary("layer"), False
        self._outs.append(out)
        try:
            with ExitStack() as locks:
                for sha256 in sorted(wheel.sha256 for wheel in job.layer.wheels):
                    what = f"makes layer {job.layer.title}"
                    locks.enter_context(self._store.lock(f"wheel-{sha256}", what, check=self._check))
                written = self._make_with_retry(slot, job, out)
                for wheel in job.layer.wheels:
                    if not self._store.has_wheel(wheel):
                        self._store.adopt(self._store.part(wheel), self._store.wheel(wheel))
            complete = True
            return written, out
        except BadWheel as error:
            self._delete(job, error.wheel)
            raise
        except WorkerDied as error:
            raise BuildFailed(
                f"a worker process was killed while it made layer {job.layer.title!r}",
                hint="probably out of memory: see dmesg",
            ) from error
        finally:
            if not complete:
                out.unlink(missing_ok=True)
                self._cancelled.set()

    def _make_with_retry(self, slot: int, job: Job, out: Path) -> Blob:
        """`_make`, retried once without cached wheels: a damaged file of an earlier run may be the cause."""
        cached = {wheel.filename for wheel in job.layer.wheels if self._is_cached(wheel)}
        try:
            return self._make(slot, job, out)
        except BadWheel as error:
            if error.wheel not in cached or self._cancelled.is_set():
                raise
            self._delete(job, error.wheel)
            return self._make(slot, job, out)

    def _is_cached(self, wheel: LockedWheel) -> bool:
        return self._store.has_wheel(wheel) or self._store.part(wheel).exists()

    def _delete(self, job: Job, filename: str) -> None:
        """Delete the cached file of a wheel, so that its download starts again."""
        for wheel in job.layer.wheels:
            if wheel.filename == filename:
                self._store.part(wheel).unlink(missing_ok=True)
                self._store.wheel(wheel).unlink(missing_ok=True)

    def _check(self) -> None:
        """Raise if the build was cancelled; called while a job waits for a lock."""
        if self._cancelled.is_set():
            raise Cancelled

    def _make(self, slot: int, job: Job, out: Path) -> Blob:
        """Make the blob; a single large wheel is converted during its download."""
        if len(job.layer.wheels) > 1:
            return self._submit(slot, job, self._prepared(job), out).result()
        (wheel,) = job.layer.wheels
        if self._store.has_wheel(wheel):
            return self._submit(slot, job, [self._fetch(wheel)], out).result()
        if slot >= _TRAILING:
            with self._streams:
                complete = self._fetch(wheel)
            return self._submit(slot, job, [complete], out).result()
        with self._streams:
            tail = self._fetcher.tail(wheel, min(_TAIL, wheel.size))
            arriving = WheelInput(wheel=wheel, path=self._store.part(wheel), tail=tail or b"")
            future = self._submit(slot, job, [arriving], out) if tail else None
            try:
                self._fetch(wheel)
            except BaseException:  # the converter must not wait for the rest
                self._cancelled.set()
                if future is not None:
                    concurrent.futures.wait([future])
                raise
        return (future or self._submit(slot, job, [arriving], out)).result()

    def _prepared(self, job: Job) -> list[WheelInput]:
        """The complete wheels of a shared layer, with their byte-code in the cache."""
        compiled = []
        # The largest first: as the last one, it would keep only one core busy.
        largest_first = sorted(job.layer.wheels, key=lambda wheel: -wheel.size)
        fetched = {self._small.submit(self._fetch, wheel): wheel for wheel in largest_first}
        for future in concurrent.futures.as_completed(fetched):
            task = (future.result(), self._store.root, job.layer.python, self._interpreters[job.layer.python])
            compiled.append(self._workers.submit(compile_wheel, *task))
        for bytecode in compiled:
            bytecode.result()
        inputs = {wheel: future.result() for future, wheel in fetched.items()}
        return [inputs[wheel] for wheel in job.layer.wheels]

    def _submit(self, slot: int, job: Job, inputs: list[WheelInput], out: Path) -> Future[Blob]:
        self._observer.begin("convert", job.layer.title, job.size)
        started = time.monotonic()
        conversion = Task(
            slot=slot,
            inputs=tuple(inputs),
            cache=self._store.root,
            python=job.layer.python,
            interpreter=self._interpreters[job.layer.python],
            out=out,
            recorded=job.recorded,
            device_code=job.layer.device_code,
        )
        future = self._workers.submit(make_layer, conversion)
        future.add_done_callback(lambda _: self._done("convert", job.layer.title, started))
        return future

    def _fetch(self, wheel: LockedWheel) -> WheelInput:
        """The complete file of the wheel; it is verified when it is read."""
        if self._store.has_wheel(wheel):
            return WheelInput(wheel=wheel, path=self._store.wheel(wheel))
        part = self._store.part(wheel)
        private_folder(part.parent)
        started = time.monotonic()
        self._observer.begin("download", wheel.filename, wheel.size)
        advanced = partial(self._observer.advance, "download", wheel.filename)
        self._fetcher.fetch(wheel, part, Transfer(advanced, self._cancelled.is_set))
        self._done("download", wheel.filename, started)
        return WheelInput(wheel=wheel, path=part)

    def _done(self, work: Work, name: str, started: float) -> None:
        first, last = self._spans.get(work, (started, started))
        self._spans[work] = (min(first, started), max(last, time.monotonic()))
        self._observer.end(work, name)
