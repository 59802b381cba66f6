"""Reads the image of a project, and its parent image, for the gate: manifests, configurations, every entry.

`open_layout` has already verified manifest and config. The cache has the list of the parent image's files,
under the diff_ids of its layers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.engine.image_lock import lock_of
from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.model.lock import LockedCell
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layer_index import TreeItem
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk, open_layout
from torchkiln.projects.apt.package_paths import LIST, owners_of
from torchkiln.projects.effect import fixed_modules, fixed_units
from torchkiln.projects.fixed import fixed_wheels
from torchkiln.projects.gate.config import ConfigRules
from torchkiln.projects.gate.entries import Below, OsLayer, Recorded
from torchkiln.projects.gate.judge import ProjectEvidence
from torchkiln.projects.gate.layers import changes
from torchkiln.projects.gate.os_accounts import PATHS as ACCOUNT_FILES
from torchkiln.projects.gate.os_state import is_state
from torchkiln.projects.gate.read_layer import UpperLayer, files_below, read_layer
from torchkiln.projects.gate.reports import Reported
from torchkiln.projects.installed import Files, files_of_records
from torchkiln.projects.settings import is_protected
from torchkiln.projects.smoke.account import ProjectAccount, account_of
from torchkiln.runtimes.layer_indexes import tree_of
from torchkiln.runtimes.unpacked import image_env
from torchkiln.runtimes.verified_root import layers_of
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme

_RECORD = ".dist-info/RECORD"
_LISTED = 20  # maximum faults of one layer's tar that are reported
_LIBRARY = re.compile(r".*\.so(\.[0-9.]+)?")
_STANDARD = re.compile(r"(^|/)lib/python3\.\d+/(lib-dynload/)?([^./]+)(\.py|\.[^/]*\.so|/__init__\.py)")
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
    """Read what the gate needs about *project*; *store* caches the list of the parent image's files.

    :raises VerificationFailed: a layer is damaged, or does not have its digest or diff_id.
    """
    image, below, account = project.image, project.below, project.account
    count = len(below.layers)
    scheme = Scheme.of(project.locked.python)
    with_packages = bool(account.packages)
    uppers = [
        read_layer(layer, system=with_packages and number == 0)
        for number, layer in enumerate(image.layers[count:])
    ]
    tree = tree_of(store, layers_of(below))
    system = _system(project, uppers[0], tree) if with_packages and uppers else None
    own = uppers[1:] if system else uppers
    wheels = {wheel.name: wheel.version for wheel in account.wheels}
    recorded = Recorded(
        files=_recorded({path: text for upper in own for path, text in upper.texts.items()}, wheels, scheme),
        texts={path: text for upper in uppers for path, text in upper.texts.items()},
        wheels=wheels,
    )
    found = changes([upper.entries for upper in own], _below(project, tree, scheme), recorded, system)
    faults = [*prefix_faults(image, below), *(fault for upper in uppers for fault in upper.faults[:_LISTED])]
    return ProjectEvidence(
        about=Reported(
            name=account.name,
            image=image.manifest,
            parent=account.parent,
            parent_image=below.manifest,
            test=account.settings.test,
            at_start=found.at_start,
        ),
        os_packages=tuple(f"{one.name} {one.version}" for one in account.packages),
        config=image.config,
        below_config=below.config,
        rules=ConfigRules(
            name=account.name,
            parent=f"{account.parent}@{below.manifest}",
            has_source=found.has_source,
            is_protected=is_protected,
        ),
        layer_faults=tuple(faults),
        count=count,
        changes=found,
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


def _system(project: ProjectImage, layer: UpperLayer, tree: Mapping[str, TreeItem]) -> OsLayer:
    """The layer of OS packages, and the files of the parent image that it changes."""
    lists = {
        found[1]: data.decode(errors="replace")
        for path, data in layer.files.items()
        if (found := LIST.fullmatch(path))
    }
    tops = (item.entry for path, item in tree.items() if "/" not in path and item.entry.kind == "link")
    compared = {*filter(is_state, layer.files), *ACCOUNT_FILES}
    return OsLayer(
        entries=layer.entries,
        packages=frozenset((one.name, one.version, one.architecture) for one in project.account.packages),
        files=layer.files,
        sonames=layer.sonames,
        owners=owners_of(lists, {top.path: top.target.strip("/") for top in tops}),
        below=files_below(project.below, tree, compared),
    )


def _recorded(
    texts: Mapping[str, str], wheels: Mapping[str, str], scheme: Scheme
) -> dict[str, tuple[str, ...]]:
    """The files of the packages that project.json lists, with their hashes; two packages may share a file."""
    records = {path: text for path, text in texts.items() if path.endswith(_RECORD)}
    found: dict[str, tuple[str, ...]] = {}
    for name, files in files_of_records(records, scheme).items():
        if name in wheels:
            for path, digest in files.items():
                found[path] = (*found.get(path, ()), digest)
    return found


def _below(project: ProjectImage, tree: Mapping[str, TreeItem], scheme: Scheme) -> Below:
    records = {path: item.entry.text or "" for path, item in tree.items() if path.endswith(_RECORD)}
    packages: Mapping[str, Files] = files_of_records(records, scheme)
    fixed = fixed_wheels(project.locked.wheels).keys()
    folders = _folders(image_env(project.below).get("PATH", ""), scheme)
    owners = {path: name for name, files in packages.items() if name not in fixed for path in files}
    owners |= {path: name for name in fixed & packages.keys() for path in packages[name]}
    return Below(
        tree={path: item.entry for path, item in tree.items()},
        owners=owners,
        fixed=frozenset(fixed),
        units=fixed_units(packages, fixed, scheme),
        modules=frozenset(fixed_modules(packages, fixed, scheme)) - _NO_MODULE,
        libraries={
            path.rpartition("/")[2]: name
            for name in fixed & packages.keys()
            for path in packages[name]
            if _LIBRARY.fullmatch(path.rpartition("/")[2])
        },
        standard=_standard(tree),
        programs=_programs(tree, folders),
        folders=folders,
        site=scheme.site,
        scripts=scheme.scripts,
    )


def _standard(tree: Mapping[str, TreeItem]) -> frozenset[str]:
    """The modules in the standard libraries of the image's Python, and of the Python that runs this."""
    names = {found[3] for path in tree if (found := _STANDARD.search(path))}
    return frozenset(names | sys.stdlib_module_names) - _NO_MODULE


def _folders(path: str, scheme: Scheme) -> tuple[str, ...]:
    """The folders of *path*, the value of PATH, without the environment's folder bin."""
    found = dict.fromkeys(folder.strip("/") for folder in path.split(":"))
    return tuple(folder for folder in found if folder not in (scheme.scripts, ""))


def _programs(tree: Mapping[str, TreeItem], folders: Collection[str]) -> dict[str, str]:
    """The programs in *folders*, by name."""
    found = ((place.rpartition("/"), place) for place in tree)
    return {name: place for (folder, _, name), place in found if folder in folders}
