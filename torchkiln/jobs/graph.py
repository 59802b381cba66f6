"""Divides the builds of images into jobs: one for each layer, and one for each image. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torchkiln.engine.cache_keys import layer_name
from torchkiln.engine.known import predicted_blob
from torchkiln.engine.shared_layers import SharedLayer, made_with, shared_layers
from torchkiln.model.digest import Digest
from torchkiln.model.plan import ImagePlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A process that makes a layer or an image unless it exists, and prints its digest."""

    name: str  # "layer-0123456789abcdef", or the tag of an image
    title: str  # of the layer; the tag of an image
    arguments: tuple[str, ...]  # of torchkiln
    needs: tuple[str, ...]  # names of jobs
    digest: Digest | None  # None: not known, because a lock does not record it

    @property
    def is_image(self) -> bool:
        """Whether it makes an image."""
        return self.name == self.title


def jobs_of(
    images: Iterable[tuple[ImagePlan, Digest | None]],
    options: Sequence[str],
    of_images: Sequence[str],
    *,
    only_recorded: bool,
) -> tuple[Job, ...]:
    """The jobs of *images*, each after those that it needs. A shared layer is a job of the first image.

    :param options: of every job.
    :param of_images: further options of the jobs of images.
    :param only_recorded: no jobs for layers that their lock does not record: images make these themselves.
    """
    jobs: dict[str, Job] = {}
    for plan, digest in images:
        build, needs = ("build", plan.tag, "--locked"), []
        for layer in shared_layers(plan):
            blob, name = predicted_blob(layer, plan), _name(layer)
            if blob is None and only_recorded:
                continue
            needs.append(name)
            job = Job(
                name=name,
                title=layer.title,
                arguments=(*build, "--layer", layer_name(layer), *options),
                needs=tuple(map(_name, made_with(layer, plan))),
                digest=blob.digest if blob else None,
            )
            jobs.setdefault(name, job)
        jobs[plan.tag] = Job(
            name=plan.tag,
            title=plan.tag,
            arguments=(*build, "--no-smoke", *options, *of_images),
            needs=tuple(needs),
            digest=digest,
        )
    return tuple(jobs.values())


def _name(layer: SharedLayer) -> str:
    return f"layer-{layer_name(layer)}"


def groups(jobs: Sequence[Job], most: int) -> Iterator[tuple[Job, ...]]:
    """*jobs* in groups of at most *most*; a job needs only jobs of earlier groups."""
    level: dict[str, int] = {}
    for job in jobs:
        level[job.name] = max((level[name] + 1 for name in job.needs), default=0)
    for number in range(max(level.values(), default=-1) + 1):
        found = [job for job in jobs if level[job.name] == number]
        yield from (tuple(found[start : start + most]) for start in range(0, len(found), most))
