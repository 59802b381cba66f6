"""WheelLayers and ProgramLayers -> their blobs in the cache, each made by one process at a time.

Slow to load, and most builds change nothing: imported when a layer has to be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from torchkiln.build.cache_keys import key_of
from torchkiln.build.confined import demand_sandbox, interpreter, sandbox_fault
from torchkiln.build.environment import Environment
from torchkiln.build.known import known_blob
from torchkiln.build.program_layer import make_program
from torchkiln.build.records import keep
from torchkiln.build.scheduler import Job, Scheduler
from torchkiln.model.layer import Blob
from torchkiln.model.lock import LockedBase
from torchkiln.model.plan import ImagePlan, PlannedLayer, ProgramLayer, WheelLayer


def make_wheel_layers(
    missing: Iterable[WheelLayer | ProgramLayer], plan: ImagePlan, environment: Environment, *, stranger: bool
) -> tuple[dict[PlannedLayer, Blob], dict[str, float], list[str]]:
    """Make the layers that are *missing*, unless another process does so at this moment.

    Locks are taken in the order of their names, so two builds cannot wait for each other.
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
            elif isinstance(spec, ProgramLayer):
                made[spec], path = make_program(spec, environment)
                keep(spec, made[spec], path, store)
                environment.on_layer(made[spec])
            else:
                jobs.append(
                    Job(key=key, title=spec.title, wheels=spec.wheels, recorded=recorded.get(spec.title))
                )
        argv = _interpreter(plan.locked.base, environment, stranger=stranger) if jobs else ()
        with Scheduler(environment, python=plan.locked.base.python, interpreter=argv) as scheduler:
            for job, blob, path in scheduler.run(jobs):
                keep(keys[job.key], blob, path, store, looked_into=blob != job.recorded)
                made[keys[job.key]] = blob
                environment.on_layer(blob)
            return made, scheduler.seconds, waited


def _interpreter(base: LockedBase, environment: Environment, *, stranger: bool) -> tuple[str, ...]:
    """What starts the base's Python."""
    if stranger:
        demand_sandbox()
    elif without := sandbox_fault():
        environment.say(
            f"this host cannot make a sandbox ({without}): the base's Python runs with a filter only"
        )
    return tuple(interpreter(base, environment.store).argv())
