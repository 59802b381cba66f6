"""Makes the missing wheel layers. Locks keep two processes from making the same layer at the same time.

This module loads slowly and is imported only when a layer has to be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from torchkiln.base.confined import interpreter, require_sandbox, sandbox_fault
from torchkiln.engine.cache_keys import key_of
from torchkiln.engine.environment import Environment
from torchkiln.engine.known import known_blob
from torchkiln.engine.records import store_layer
from torchkiln.engine.scheduler import Job, Scheduler
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedCell
from torchkiln.model.plan import ImagePlan, PlannedLayer, WheelLayer
from torchkiln.model.recipe import ImagePython
from torchkiln.store.store import Store


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
    """The command that starts *python*: the base's, or the standalone one."""
    if python.version == locked.base.python:
        return tuple(interpreter(locked.base, store).argv())
    return tuple(interpreter(locked.base, store, locked.standalone).argv())
