"""Reads the image of a project, and its parent image, for the gate: manifests, configurations, every entry.

`open_layout` has already verified manifest and config. The cache has the list of the parent image's files,
under the diff_ids of its layers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from packaging.utils import canonicalize_name

from torchkiln.engine.image_lock import lock_of
from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import APP
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layer_index import TreeItem
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk, open_layout
from torchkiln.projects.built_layers import BuiltLayers, built_layers
from torchkiln.projects.effect import fixed_modules
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.gate.config import ConfigRules
from torchkiln.projects.gate.judge import ProjectEvidence, Reported
from torchkiln.projects.gate.read_layer import UpperLayer, read_layer
from torchkiln.projects.gate.rules import LIBRARY, Below, code_faults, package_faults, regular_module_of
from torchkiln.projects.installed import files_of_records
from torchkiln.projects.smoke.account import ProjectAccount, account_of
from torchkiln.runtimes.layer_indexes import tree_of
from torchkiln.runtimes.unpacked import image_env
from torchkiln.runtimes.verified_root import layers_of
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme

_RECORD, _METADATA = ".dist-info/RECORD", ".dist-info/METADATA"
_LISTED = 20  # maximum faults of a layer
_STANDARD = re.compile(r"(^|/)lib/python3\.\d+/(lib-dynload/)?([^./]+)(\.py|\.[^/]*\.so|/__init__\.py)")
_REQUIRES = re.compile(r"^Requires-Dist:[ \t]*([A-Za-z0-9._-]+)(?!.*\bextra\b)", re.MULTILINE)
_OPTIONAL = frozenset({"numpy"})  # torch does not require it, but imports it
_NO_MODULE = frozenset({"test", "__pycache__"})  # torch does not import `test`, a common name of folders


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectImage:
    """The image of a project, its parent image, and the lock of the parent image."""

    image: ImageOnDisk
    account: ProjectAccount
    below: ImageOnDisk
    locked: LockedCell


def project_image(image: ImageOnDisk, layout: Path, images: Path, store: Store) -> ProjectImage:
    """*image*, its parent image in *layout*, and the parent image's lock, as `lock_of` finds it.

    :param image: the image of a project.
    :raises ConfigError: the layout does not have the parent image.
    :raises VerificationFailed: project.json is invalid, or contradicts the label or the parent image.
    :raises Stale: there is no lock of the parent image.
    """
    account = account_of(image)
    found = open_layout(layout)
    hint = f"build the project again: torchkiln project build DIR --output {layout}"
    if account.parent_image not in {entry["digest"] for entry in found.entries()}:
        below = f"{printable(account.parent)}@{account.parent_image[:19]}"
        raise ConfigError(f"{layout}: no such image: {below}, the parent of {image.ref}", hint=hint)
    parent = found.image(account.parent_image)
    if (tag := tag_in(parent)) != account.parent:
        raise VerificationFailed(
            f"{image.ref}: the parent image is {printable(tag)}, not {printable(account.parent)}", hint=hint
        )
    locked = lock_of(parent, tag, layout, images, store)
    return ProjectImage(image=image, account=account, below=parent, locked=locked)


def read_evidence(project: ProjectImage, store: Store) -> ProjectEvidence:
    """Read what the gate needs about *project*; *store* has the records of builds.

    :raises VerificationFailed: a layer is damaged, or does not have its digest or diff_id.
    """
    image, account = project.image, project.account
    uppers = [read_layer(layer) for layer in image.layers[len(project.below.layers) :]]
    built = built_layers(store, account.sha256)
    below = _below(project, tree_of(store, layers_of(project.below)))
    packages, code = uppers[:-1], uppers[-1:]
    return ProjectEvidence(
        about=Reported(
            name=account.name,
            image=image.manifest,
            parent=account.parent,
            parent_image=project.below.manifest,
            test=account.settings.test,
            at_start=tuple(printable(text.rpartition(" of ")[0]) for text in account.at_start),
        ),
        added=tuple(f"{wheel.name} {wheel.version}" for wheel in account.wheels),
        os_packages=tuple(f"{one.name} {one.version}" for one in account.packages),
        replaced=(*account.removed, *(built.overwritten if built else ())),
        config=image.config,
        below_config=project.below.config,
        rules=ConfigRules(
            name=account.name,
            parent=f"{account.parent}@{project.below.manifest}",
            has_source=any(
                entry.kind == "file" and entry.path.startswith(f"{APP}/src/")
                for upper in code
                for entry in upper.entries
            ),
        ),
        layer_faults=(
            *prefix_faults(image, project.below),
            *_locked_faults(project),
            *(fault for upper in packages for fault in _few(_package_faults(upper, below))),
            *(fault for upper in code for fault in _few(_code_faults(upper, below))),
        ),
        build_faults=tuple(_build_faults(project, built)),
        count=len(project.below.layers),
    )


def prefix_faults(image: ImageOnDisk, below: ImageOnDisk) -> Iterator[str]:
    """Why the lowest layers of *image* are not those of *below*, by digest, diff_id, size and type."""
    count = len(below.layers)
    if len(image.layers) <= count:
        yield f"it has {len(image.layers)} layers; the parent image has {count}"
    for number, (own, theirs) in enumerate(zip(image.layers, below.layers, strict=False), 1):
        if _identity(own) != _identity(theirs):
            yield (
                f"layer {number} is {own.digest} ({own.diff_id[:19]}); in the parent image it is"
                f" {theirs.digest} ({theirs.diff_id[:19]})"
            )


def _identity(layer: LayerOnDisk) -> tuple[str, str, int, str]:
    return layer.digest, layer.diff_id, layer.size, layer.media_type


def _build_faults(project: ProjectImage, built: BuiltLayers | None) -> Iterator[str]:
    """Why the layers below the code are not those that this machine built."""
    count = len(project.below.layers)
    own = [layer.diff_id for layer in project.image.layers[count:-1]]
    account = project.account
    if built is None:
        if own or account.wheels or account.packages or account.removed:
            yield "this machine has no record of a build from which the layers of packages are known"
        return
    for number, (found, made) in enumerate(zip_longest(own, built.diff_ids[count:]), count + 1):
        if found != made:
            made_here = f"is {made[:19]}" if made else "does not exist"
            found_here = f"is {found[:19]}" if found else "does not exist"
            yield f"layer {number} {found_here}; in the image that this machine built, it {made_here}"


def _locked_faults(project: ProjectImage) -> Iterator[str]:
    """Why the wheels in project.json do not fit the parent image."""
    wheels = {wheel.name: wheel.version for wheel in project.locked.wheels}
    account = project.account
    for name in sorted({*account.removed, *(wheel.name for wheel in account.wheels)}):
        if name in fixed_wheels(project.locked.wheels):
            yield f"{name} is replaced, which is fixed"
    for wheel in account.wheels:
        there = wheels.get(wheel.name, wheel.version)
        if wheel.name == "numpy" and _major(wheel.version) != _major(there):
            yield f"numpy {wheel.version} differs in the major version from {there} of the parent image"


def _major(version: str) -> str:
    return version.partition(".")[0]


def _package_faults(upper: UpperLayer, below: Below) -> Iterator[str]:
    for entry in upper.entries:
        yield from package_faults(entry, upper.entry_points.get(entry.path, ""), below)


def _code_faults(upper: UpperLayer, below: Below) -> Iterator[str]:
    yield from upper.faults
    for entry in upper.entries:
        yield from code_faults(entry, upper.entry_points.get(entry.path, ""), below)


def _few(faults: Iterable[str]) -> Sequence[str]:
    """The first of *faults*, without duplicates, and the number of the others."""
    found = list(dict.fromkeys(map(printable, faults)))
    more = [f"{len(found) - _LISTED} more like these"] if len(found) > _LISTED else []
    return (*found[:_LISTED], *more)


def _below(project: ProjectImage, tree: Mapping[str, TreeItem]) -> Below:
    scheme = Scheme.of(project.locked.python)
    records = {path: item.entry.text or "" for path, item in tree.items() if path.endswith(_RECORD)}
    packages = files_of_records(records, scheme)
    fixed = fixed_wheels(project.locked.wheels).keys() & packages.keys()
    owned = {path for files in packages.values() for path in files}
    folders = {folder.strip("/") for folder in image_env(project.below).get("PATH", "").split(":")}
    others = {
        module: name
        for name in sorted(_required(fixed | (_OPTIONAL & packages.keys()), tree, scheme))
        for path in packages.get(name, ())
        if path.startswith(f"{scheme.site}/")
        and (module := regular_module_of(path.removeprefix(f"{scheme.site}/")))
    }
    standard = {found[3] for path in tree if (found := _STANDARD.search(path))} | sys.stdlib_module_names
    others |= dict.fromkeys(standard - _NO_MODULE, "the standard library")
    return Below(
        fixed=frozenset(fixed),
        modules=frozenset(fixed_modules(packages, fixed, scheme)) - _NO_MODULE,
        others=others,
        libraries={
            name: package
            for package in fixed
            for path in packages[package]
            if LIBRARY.fullmatch(name := path.rpartition("/")[2])
        },
        programs={
            name: path
            for path in tree
            for folder, _, name in [path.rpartition("/")]
            if folder in folders - {scheme.scripts, ""} and f"{scheme.scripts}/{name}" not in tree
        },
        unowned={
            path
            for path, item in tree.items()
            if path.startswith(f"{scheme.prefix[1:]}/") and item.entry.kind != "folder" and path not in owned
        },
        site=scheme.site,
        scripts=scheme.scripts,
    )


def _required(names: Iterable[str], tree: Mapping[str, TreeItem], scheme: Scheme) -> set[str]:
    """*names*, and the packages that these require, directly or through others, without extras."""
    requires: dict[str, list[str]] = {
        canonicalize_name(path.removeprefix(f"{scheme.site}/").partition("-")[0]): [
            canonicalize_name(name)
            for name in _REQUIRES.findall((item.entry.text or "").partition("\n\n")[0])
        ]
        for path, item in tree.items()
        if path.startswith(f"{scheme.site}/") and path.count("/") == scheme.site.count("/") + 2
        if path.endswith(_METADATA)
    }
    found, new = set[str](), set(names)
    while new:
        found |= new
        new = {name for one in new for name in requires.get(one, ())} - found
    return found
