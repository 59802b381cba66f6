"""Benchmark building and publishing an image against `docker buildx build` and `docker push`."""

from __future__ import annotations

from bench.engine_pair import engine_pair
from bench.results import Figure, Outcome, per_round
from bench.sides import Contender, Say, alternate
from bench.subject import Subject
from torchkiln.matrix.tags import tag_of

_PLAIN, _ALONE = "docker build, the same requirements", "docker build, torch alone"
_KEPT, _MADE, _BY_DOCKER = "ours, .pyc cached", "ours, .pyc made", "ours, --engine docker"
_NOTES = (
    "The sum is build and push; another engine with an empty store pulls. MB out: all compressed layers"
    " in the registry afterwards.",
    "Core-seconds and memory are those of the clients, without engine and registry.",
    "The plain Dockerfile's pip makes .pyc files, its default. It downloads everything while it"
    " builds; our engine docker downloads first, then builds without a network.",
)
_STATE = (
    "only the base is cached (in our cache, in the engine): no wheel, index page or layer; an empty registry"
    " on this machine for each run"
)


def published(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure with the base in torchkiln's cache and in the engine."""
    at = engine_pair(subject)
    locked = _requirements(subject)
    contenders = (
        Contender(
            name=_KEPT, what="`build --ahead`, then `publish`", run=lambda: at.ours(bytecode=True, pull=False)
        ),
        Contender(
            name=_PLAIN, what="`pip install -r` in one step, `docker push`", run=lambda: at.plain(locked)
        ),
        Contender(
            name=_MADE, what="the same; the base's Python compiles", run=lambda: at.ours(bytecode=False)
        ),
    )
    found = alternate(contenders, rounds, say)
    return Outcome(
        name="published",
        title="From wheels not cached to an image in a registry",
        state=_STATE,
        sides=tuple(found.values()),
        figures=tuple(
            Figure(
                what=f"published: {name} / {_PLAIN}",
                unit="×",
                values=per_round(found[name].samples, found[_PLAIN].samples),
                target=0.15 if name == _MADE else None,
            )
            for name in (_MADE, _KEPT)
        ),
        notes=_NOTES,
    )


def published_others(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure as `published` does: an image with torch alone, and one built with `--engine docker`."""
    at = engine_pair(subject)
    (torch,) = (wheel.version for wheel in subject.locked.wheels if wheel.name == "torch")
    contenders: tuple[Contender, ...] = (
        Contender(name=_MADE, what="`build --ahead`, then `publish`", run=lambda: at.ours(bytecode=False)),
        Contender(
            name=_ALONE,
            what=f"`pip install torch=={torch}`, `docker push`",
            run=lambda: at.plain(f"torch=={torch}\n"),
        ),
    )
    if not subject.generated:
        what = "our Dockerfile, a step for each big wheel, `docker push`"
        contenders += (Contender(name=_BY_DOCKER, what=what, run=at.on_docker),)
    found = alternate(contenders, rounds, say)
    rivals = [name for name in (_ALONE, _BY_DOCKER) if name in found]
    return Outcome(
        name="published-others",
        title="The same, against torch alone and by engine docker",
        state=_STATE,
        sides=tuple(found.values()),
        figures=tuple(
            Figure(
                what=f"published: {_MADE} / {rival}",
                unit="×",
                values=per_round(found[_MADE].samples, found[rival].samples),
            )
            for rival in rivals
        ),
        notes=_NOTES,
        left_out=("engine docker: the pip of the generated set cannot run",) * subject.generated,
    )


def published_cold(subject: Subject, rounds: int, say: Say) -> Outcome:
    """Measure without a base: torchkiln builds it from Debian's archive; Docker installs the same packages
    with apt."""
    at = engine_pair(subject)
    locked = _requirements(subject)
    ours, theirs = "ours, from nothing", "docker build from a bare Debian"
    contenders = (
        Contender(
            name=ours,
            what="`build --ahead` makes the base too, then `publish`",
            run=lambda: at.ours(bytecode=False, base=False),
        ),
        Contender(
            name=theirs,
            what="`apt-get install` of the base's packages, `pip install -r`, `docker push`",
            run=lambda: at.plain(locked, bare=True),
        ),
    )
    found = alternate(contenders, rounds, say)
    return Outcome(
        name="published-cold",
        title="From nothing to an image in a registry",
        state=(
            "our cache is empty; the engine has a bare Debian (mmdebstrap's minbase and ca-certificates),"
            " which is not counted; a fresh registry on this machine for each run"
        ),
        sides=tuple(found.values()),
        figures=(
            Figure(
                what=f"published: {ours} / {theirs}",
                unit="×",
                values=per_round(found[ours].samples, found[theirs].samples),
                target=0.28,
            ),
        ),
        notes=_NOTES,
    )


def _requirements(subject: Subject) -> str:
    return (subject.images / tag_of(subject.locked.resolution) / "requirements.txt").read_text()
