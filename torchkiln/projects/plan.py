"""Plans the image of a project: the parent's layers, then its packages, then its code. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchkiln.errors import ConfigError
from torchkiln.model.apt import LockedApt
from torchkiln.model.digest import Digest
from torchkiln.model.lock import LockedCell, LockedWheel
from torchkiln.model.plan import (
    ArtefactLayer,
    ImageConfig,
    ImagePlan,
    OverlayFile,
    OverlayLayer,
    OverlayLink,
    PlannedLayer,
    RemovalLayer,
)
from torchkiln.model.project import APP, LABEL, PARENT_LABEL, PROJECT_JSON, ProjectLock
from torchkiln.plan.layers import project_layers
from torchkiln.projects.code import ProjectCode
from torchkiln.projects.effect import Effect, shadowing, starts
from torchkiln.projects.settings import NO_SETTINGS, ProjectSettings
from torchkiln.util.files import pretty_json

SCHEMA = 1  # of project.json
_NAMED = 5  # more packages are counted in a title, not named
_VERSION = "org.opencontainers.image.version"
_TITLE = "org.opencontainers.image.title"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The image of a cell, as it was built."""

    plan: ImagePlan
    manifest: Digest


def plan_project(
    parent: Parent,
    project: ProjectLock,
    code: ProjectCode,
    effect: Effect,
    settings: ProjectSettings = NO_SETTINGS,
) -> ImagePlan:
    """The plan of *project* on *parent*, whose layers are the lowest ones.

    :raises ConfigError: the code would be imported in place of torch or another protected package.
    :raises BuildFailed: a wheel is too large for a layer.
    """
    roots = _roots(code)
    if hidden := shadowing((*code.files, *code.links), roots, effect.modules):
        raise ConfigError(
            f"the code has {', '.join(hidden[:_NAMED])}, which hides a package of the image from imports",
            hint="rename it",
        )
    below = parent.plan
    layers: tuple[PlannedLayer, ...] = below.layers
    if project.apt:
        layers += (ArtefactLayer(title=_packages_title(project.apt), artefact=project.apt),)
    if effect.removed:
        layers += (RemovalLayer(title=_removal_title(below.locked, project), paths=effect.removed),)
    layers += project_layers(project.wheels, python=below.locked.python)
    facts = pretty_json(_facts(parent, project, at_start(code, effect)))
    count = len(code.files) + len(code.links)
    top = OverlayLayer(
        title=f"code of {project.name} ({count} file{'' if count == 1 else 's'})",
        files=(
            *(replace(file, path=f"{APP}/{file.path}") for file in code.files),
            OverlayFile(path=PROJECT_JSON, mode=0o644, data=facts),
        ),
        links=tuple(OverlayLink(path=f"{APP}/{link.path}", target=link.target) for link in code.links),
    )
    return replace(
        below,
        locked=replace(
            union(below.locked, project.wheels, project.removed),
            untrusted=below.locked.untrusted or project.untrusted,
        ),
        tag=project.name,
        aliases=(),
        layers=(*layers, top),
        config=_config(parent, project, settings, tuple(f"/{APP}/{root}".rstrip("/") for root in roots)),
        requested=project.requirements,
    )


def union(locked: LockedCell, added: Iterable[LockedWheel], removed: Iterable[str]) -> LockedCell:
    """The lock of the parent with the wheels *added* by a project, and without the packages *removed*."""
    new = {wheel.name: wheel for wheel in added}
    kept = {wheel.name: wheel for wheel in locked.wheels if wheel.name not in {*removed}}
    return replace(locked, wheels=tuple(wheel for _, wheel in sorted((kept | new).items())))


def _roots(code: ProjectCode) -> tuple[str, ...]:
    """The folders of the code on PYTHONPATH."""
    return ("", "src/") if any(file.path.startswith("src/") for file in code.files) else ("",)


def at_start(code: ProjectCode, effect: Effect) -> tuple[str, ...]:
    """The files of the project that Python runs at each start in the image."""
    roots = _roots(code)
    own = (
        f"{APP}/{file.path}"
        for file in code.files
        for root in roots
        if file.path.startswith(root) and starts(file.path.removeprefix(root))
    )
    return (*effect.at_start, *own)


def _removal_title(locked: LockedCell, project: ProjectLock) -> str:
    """The title of the layer that removes packages: `"without fsspec 2026.9.0"`."""
    gone = [f"{wheel.name} {wheel.version}" for wheel in locked.wheels if wheel.name in project.removed]
    return f"without {', '.join(gone)}" if len(gone) <= _NAMED else f"without {len(gone)} packages"


def _packages_title(apt: LockedApt) -> str:
    """The title of the layer of OS packages: `"debian12 packages: ffmpeg, git-lfs (93 packages)"`."""
    names = [text.partition("=")[0] for text in apt.requested]
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    count = len(apt.debs)
    return f"{apt.os} packages: {shown} ({count} package{'' if count == 1 else 's'})"


def _config(
    parent: Parent, project: ProjectLock, settings: ProjectSettings, path: tuple[str, ...]
) -> ImageConfig:
    config = parent.plan.config
    labels = dict(config.labels) | {
        _TITLE: project.name,
        _VERSION: project.name,
        LABEL: project.name,
        PARENT_LABEL: f"{parent.plan.tag}@{parent.manifest}",
    }
    if project.untrusted:
        labels["torchkiln.untrusted"] = "true"
    return replace(
        config,
        env=tuple((dict(config.env) | {"PYTHONPATH": ":".join(path)} | dict(settings.env)).items()),
        cmd=settings.command or config.cmd,
        workdir=f"/{APP}",
        labels=tuple(sorted(labels.items())),
    )


def _facts(parent: Parent, project: ProjectLock, started: tuple[str, ...]) -> Mapping[str, Any]:
    """The contents of /etc/torchkiln/project.json: what the image has in addition to its parent."""
    origins = {origin.name: origin.text for origin in project.origins}
    return {
        "schema": SCHEMA,
        "name": project.name,
        "parent": {"tag": parent.plan.tag, "manifest": parent.manifest, "lock": project.parent_lock},
        "as_of": project.as_of,
        "requirements": list(project.requirements),
        "wheels": [
            {
                "name": wheel.name,
                "version": wheel.version,
                "sha256": wheel.sha256,
                **({"from": origins[wheel.name]} if wheel.name in origins else {}),
            }
            for wheel in project.wheels
        ],
        "removed": list(project.removed),
        **({"apt": _apt_facts(project.apt)} if project.apt else {}),
        "at_start": list(started),
    }


def _apt_facts(apt: LockedApt) -> Mapping[str, Any]:
    return {
        "digest": apt.digest,
        "packages": [
            {"name": deb.name, "version": deb.version, "architecture": deb.architecture, "sha256": deb.sha256}
            for deb in apt.debs
        ],
    }
