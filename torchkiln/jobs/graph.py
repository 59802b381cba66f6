"""Divides the builds of images into jobs: one for each layer, and one for each image. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchkiln.engine.cache_keys import layer_name
from torchkiln.engine.predicted_digest import predicted_digest
from torchkiln.engine.shared_layers import SharedLayer, made_with, recorded_blob, shared_layers
from torchkiln.model.digest import Digest
from torchkiln.model.plan import ImagePlan

_LAYER = "layer-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A process that makes a layer or an image unless it exists, and prints its digest."""

    name: str  # "layer-0123456789abcdef", or the tag of an image
    title: str  # of the layer; the tag of an image
    arguments: tuple[str, ...]  # of torchkiln
    needs: tuple[str, ...]  # names of jobs
    digest: Digest | None  # None: not recorded in the lock

    @property
    def is_image(self) -> bool:
        """Whether it makes an image."""
        return not self.name.startswith(_LAYER)


def jobs_of(
    plans: Iterable[ImagePlan], options: Sequence[str], of_images: Sequence[str], *, only_recorded: bool
) -> tuple[Job, ...]:
    """The jobs of *plans*, each after those that it needs. A shared layer is a job of the first image.

    :param options: of every job.
    :param of_images: further options of the jobs of images.
    :param only_recorded: no jobs for layers that their lock does not record: images make these themselves.
    """
    jobs: dict[str, Job] = {}
    for plan in plans:
        layers = [layer for layer in shared_layers(plan) if not only_recorded or recorded_blob(layer, plan)]
        for layer in layers:
            name = _name(layer)
            if name not in jobs:
                jobs[name] = _layer_job(name, layer, plan, options)
        jobs[plan.tag] = Job(
            name=plan.tag,
            title=plan.tag,
            arguments=("build", plan.tag, "--locked", "--no-smoke", *options, *of_images),
            needs=tuple(map(_name, layers)),
            digest=predicted_digest(plan),
        )
    return tuple(jobs.values())


def _name(layer: SharedLayer) -> str:
    return f"{_LAYER}{layer_name(layer)}"


def _layer_job(name: str, layer: SharedLayer, plan: ImagePlan, options: Sequence[str]) -> Job:
    blob = recorded_blob(layer, plan)
    return Job(
        name=name,
        title=layer.title,
        arguments=("build", plan.tag, "--locked", "--layer", layer_name(layer), *options),
        needs=tuple(map(_name, made_with(layer, plan))),
        digest=blob.digest if blob else None,
    )


def levels(jobs: Iterable[Job]) -> tuple[tuple[Job, ...], ...]:
    """*jobs* in groups: a job needs only jobs of earlier groups."""
    level: dict[str, int] = {}
    groups: list[list[Job]] = []
    for job in jobs:
        level[job.name] = max((level[name] + 1 for name in job.needs), default=0)
        groups += [[]] * (level[job.name] + 1 - len(groups))
        groups[level[job.name]] = [*groups[level[job.name]], job]
    return tuple(map(tuple, groups))
