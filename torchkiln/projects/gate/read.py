"""Checks images of a layout, of cells or projects, against the policy.

The gate reads the image of a project, and its parent image: manifests, configurations, every entry.
`open_layout` has already verified manifest and config. The cache has the list of the parent image's files,
under the diff_ids of its layers.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import zip_longest
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from torchkiln.engine.image_lock import lock_of
from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.gate.gate import GateResult, judge
from torchkiln.gate.inputs import GateInputs
from torchkiln.model.lock import LockedCell
from torchkiln.model.project import APP
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layer_index import TreeItem
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk, open_layout
from torchkiln.oci.opening import verified_layer
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import TarEntry, TarReader, pieces_of
from torchkiln.projects.built_layers import BuiltLayers, built_layers
from torchkiln.projects.effect import files_of_records, fixed_modules
from torchkiln.projects.fixed import bounds_of, fixed_wheels
from torchkiln.projects.gate.config import ConfigRules
from torchkiln.projects.gate.judge import ProjectEvidence, Reported, judge_project
from torchkiln.projects.gate.rules import LIBRARY, Below, code_faults, package_faults, regular_module_of
from torchkiln.projects.smoke.account import ProjectAccount, account_of, is_project
from torchkiln.projects.smoke.checks import project_suite
from torchkiln.runtimes.image_root import layers_of
from torchkiln.runtimes.layer_indexes import tree_of
from torchkiln.runtimes.unpacked import image_env
from torchkiln.smoke.session import image_and_lock
from torchkiln.store.store import Store
from torchkiln.util.strict_json import open_plain
from torchkiln.wheel.install import Scheme

_TIERS = (0, 1)  # of the suite, in the image of a project with OS packages
_RECORD, _METADATA = ".dist-info/RECORD", ".dist-info/METADATA"
_LISTED = 20  # maximum faults of a layer
_STANDARD = re.compile(r"(^|/)lib/python3\.\d+/(lib-dynload/)?([^./]+)(\.py|\.[^/]*\.so|/__init__\.py)")
_REQUIRES = re.compile(r"^Requires-Dist:[ \t]*([A-Za-z0-9._-]+)(?!.*\bextra\b)", re.MULTILINE)
_OPTIONAL = frozenset({"numpy"})  # torch does not require it, but imports it
_NO_MODULE = frozenset({"test", "__pycache__"})  # torch does not import `test`, a common name of folders
# Python ignores case in the names of these folders.
_ENTRY_POINTS = re.compile(r"[^/]*\.(?i:dist-info|egg-info)/entry_points\.txt")
_LIMIT = 16 << 20  # bytes


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


def judge_image(inputs: GateInputs, ref: str | None, layout: Path, images: Path) -> GateResult:
    """The gate's result for the image *ref* of *layout*; locks are in *images*.

    :raises ConfigError: there is no such image, or a given file is not a report.
    :raises Stale: there is no lock of it.
    :raises VerificationFailed: a signature is invalid, or a layer is damaged.
    """
    image = open_layout(layout).image(ref)
    if is_project(image):
        return judge_by_reports(inputs, project_image(image, layout, images, inputs.runs.store), images)
    found, _, locked = image_and_lock(ref, layout, images, inputs.runs.store)
    return inputs.judge(found, locked, images)


def judge_by_reports(inputs: GateInputs, project: ProjectImage, images: Path) -> GateResult:
    """The gate's result for the image of *project*, now: by its reports, and those of the parent image.

    :raises ConfigError: a given file is not a report.
    :raises VerificationFailed: a signature is invalid, or a layer is damaged.
    """
    evidence = read_evidence(project, inputs.runs.store)
    locked = project.locked
    image, at = project.image.manifest, datetime.now(timezone.utc)
    policy, below = inputs.policy_for(locked), project.below.manifest
    # A report of an image that does not prove the parent image is judged as the project's: it is refused.
    reports, earlier = inputs.reports_for(below, locked, images)
    of_below = [found for found in reports if found.report.image == below]
    proving = {below, *(other.image for other in earlier)}
    own = [
        found for found in inputs.reports_for(image, locked, images)[0] if found.report.image not in proving
    ]
    in_image, suite = None, inputs.suite
    if project.account.packages:
        of_suite = [found for found in own if found.report.project is None]
        own = [found for found in own if found.report.project is not None]
        tiers = replace(policy, tiers=_TIERS, checks=())
        there = replace(suite, checks=tuple(check for check in suite.checks if not check.of_image))
        found = judge(of_suite, tiers, locked, there, image=image, nonce=inputs.nonce, at=at)
        in_image = replace(found, tag=project.account.name)
    return judge_project(
        evidence,
        judge(of_below, policy, locked, suite, image=below, earlier=earlier, at=at),
        in_image,
        own,
        project_suite(),
        nonce=inputs.nonce,
        at=at,
    )


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
            *(fault for upper in packages for fault in _few(_entry_faults(upper, below, package_faults))),
            *(
                fault
                for upper in code
                for fault in _few((*upper.faults, *_entry_faults(upper, below, code_faults)))
            ),
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
    account, versions = project.account, {wheel.name: wheel.version for wheel in project.account.wheels}
    for name in sorted({*account.removed, *versions}):
        if name in fixed_wheels(project.locked.wheels):
            yield f"{name} is replaced, which is fixed"
    for bound in bounds_of(project.locked):
        version = versions.get(bound.name)
        if version and not SpecifierSet(bound.versions).contains(version, prereleases=True):
            yield f"{bound.name} is {version}; {bound.text}"


def _entry_faults(
    upper: UpperLayer, below: Below, faults: Callable[[TarEntry, str, Below], Iterator[str]]
) -> Iterator[str]:
    for entry in upper.entries:
        yield from faults(entry, upper.entry_points.get(entry.path, ""), below)


def _few(faults: Iterable[str]) -> Sequence[str]:
    """The first of *faults*, without duplicates, and the number of the others."""
    found = list(dict.fromkeys(map(printable, faults)))
    return (*found[:_LISTED], *([f"{len(found) - _LISTED} more like these"] if len(found) > _LISTED else []))


def _below(project: ProjectImage, tree: Mapping[str, TreeItem]) -> Below:
    scheme = Scheme.of(project.locked.python)
    records = {path: item.entry.text or "" for path, item in tree.items() if path.endswith(_RECORD)}
    packages = files_of_records(records, scheme)
    fixed = fixed_wheels(project.locked.wheels).keys() & packages.keys()
    owned = {path for files in packages.values() for path in files}
    folders = [folder.strip("/") for folder in image_env(project.below).get("PATH", "").split(":")]
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
        path=folders,
        programs={
            path.rpartition("/")[2]: path
            for folder in reversed(folders)
            for path, item in tree.items()
            if path.rpartition("/")[0] == folder and item.entry.kind != "folder"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class UpperLayer:
    """The entries of a layer of the project."""

    entries: tuple[TarEntry, ...]
    entry_points: dict[str, str]  # path -> text of each entry_points.txt
    faults: tuple[str, ...]  # entries that unpackers could interpret differently


def read_layer(layer: LayerOnDisk) -> UpperLayer:
    """The entries of *layer*.

    :raises VerificationFailed: it is damaged, or does not have its digest or diff_id.
    """
    paths = LayerPaths()
    entries: list[TarEntry] = []
    texts: dict[str, str] = {}
    faults: list[str] = []
    _demand_digest(layer)
    with verified_layer(layer.path, layer.diff_id, ahead=True) as pieces:
        tar = TarReader(pieces)
        for entry in tar:
            faults += paths.add(entry)
            entries.append(entry)
            if entry.kind != "file" or not _ENTRY_POINTS.search(entry.path):
                continue
            if entry.size > _LIMIT:
                faults.append(f"{entry.path}: has more than {_LIMIT >> 20} MiB")
            else:
                texts[entry.path] = b"".join(tar.content()).decode("utf-8", "replace")
    return UpperLayer(entries=tuple(entries), entry_points=texts, faults=tuple(map(printable, faults)))


def _demand_digest(layer: LayerOnDisk) -> None:
    """:raises VerificationFailed: the blob does not have its digest."""
    digest = hashlib.sha256()
    try:
        with open_plain(layer.path, follow=False) as file:
            for piece in pieces_of(file):
                digest.update(piece)
    except OSError as error:
        raise VerificationFailed(f"{layer.path}: {error.strerror}") from error
    if (found := f"sha256:{digest.hexdigest()}") != layer.digest:
        raise VerificationFailed(f"{layer.path}: digest mismatch: expected {layer.digest}, got {found}")
