"""Reads the image of a project, and the one below it, for the gate: manifests, configurations, every entry.

Manifest and config are those that `open_layout` read and hashed; each layer of the project is hashed while it
is read. The files of the parent image are known by the diff_ids of its layers.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchkiln.errors import ConfigError, VerificationFailed, printable
from torchkiln.gate.project.config import ConfigRules
from torchkiln.gate.project.entries import Below, LayerEntry, Recorded
from torchkiln.gate.project.judge import ProjectEvidence
from torchkiln.gate.project.layers import changes
from torchkiln.gate.project.reports import Reported
from torchkiln.lock.lock import load_locked
from torchkiln.model.lock import LockedCell
from torchkiln.model.recipe import PREFIX, minor
from torchkiln.oci.labels import tag_in
from torchkiln.oci.layer_index import TreeItem
from torchkiln.oci.layout import ImageOnDisk, LayerOnDisk, open_layout
from torchkiln.oci.opening import open_layer
from torchkiln.oci.tar_names import LayerPaths
from torchkiln.oci.tar_reader import Stream, TarEntry, TarReader, pieces_of
from torchkiln.project.effect import fixed_modules, fixed_units
from torchkiln.project.fixed import fixed_wheels
from torchkiln.project.installed import Files, files_of_records
from torchkiln.project.settings import is_protected
from torchkiln.runtimes.layer_indexes import tree_of
from torchkiln.runtimes.unpacked import image_env
from torchkiln.runtimes.verified_root import layers_of
from torchkiln.smoke.project.account import ProjectAccount, account_of
from torchkiln.store.store import Store
from torchkiln.wheel.install import Scheme

_RECORD = ".dist-info/RECORD"
_TEXTS = re.compile(r"[^/]*\.(dist-info|egg-info)/(RECORD|METADATA|entry_points\.txt)")
_TEXT_LIMIT = 16 << 20  # bytes
_LIBRARY = re.compile(r".*\.so(\.[0-9.]+)?")
_STANDARD = re.compile(r"(^|/)lib/python3\.\d+/(lib-dynload/)?([^./]+)(\.py|\.[^/]*\.so|/__init__\.py)")
_NO_MODULE = frozenset({"test", "__pycache__"})  # torch does not import `test`, a common name of folders


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectImage:
    """The image of a project, the one below it, and the lock of that."""

    image: ImageOnDisk
    account: ProjectAccount
    below: ImageOnDisk
    locked: LockedCell


def project_image(image: ImageOnDisk, layout: Path, images: Path) -> ProjectImage:
    """*image*, that of a project in *layout*, with its parent image there, whose lock is in *images*.

    :raises ConfigError: the layout does not have the parent image.
    :raises VerificationFailed: its project.json is invalid, or names another parent image than its label.
    :raises Stale: there is no lock of the parent image.
    """
    account = account_of(image)
    found = open_layout(layout)
    hint = f"build the project again: torchkiln build --project DIR --output {layout}"
    if account.parent_image not in {entry["digest"] for entry in found.entries()}:
        below = f"{printable(account.parent)}@{account.parent_image[:19]}"
        raise ConfigError(f"{layout}: no such image: {below}, the parent of {image.ref}", hint=hint)
    parent = found.image(account.parent_image)
    if (tag := tag_in(parent)) != account.parent:
        raise VerificationFailed(
            f"{image.ref}: the parent image is {printable(tag)}, not {printable(account.parent)}", hint=hint
        )
    return ProjectImage(image=image, account=account, below=parent, locked=load_locked(images, tag))


def read_evidence(project: ProjectImage, store: Store) -> ProjectEvidence:
    """The evidence about *project*. Lists of the files of the parent image are kept in *store*.

    :raises VerificationFailed: a layer is damaged, or does not have its digest or diff_id.
    """
    image, below, account = project.image, project.below, project.account
    count = len(below.layers)
    scheme = Scheme(prefix=PREFIX, python=minor(project.locked.base.python))
    uppers = [read_layer(layer) for layer in image.layers[count:]]
    texts = {path: text for upper in uppers for path, text in upper.texts.items()}
    wheels = {wheel.name: wheel.version for wheel in account.wheels}
    recorded = Recorded(files=_recorded(texts, wheels, scheme), texts=texts, wheels=wheels)
    tree = tree_of(store, layers_of(below))
    found = changes([upper.entries for upper in uppers], _below(project, tree, scheme), recorded)
    faults = [*prefix_faults(image, below), *(fault for upper in uppers for fault in upper.faults)]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class UpperLayer:
    """The entries of a layer of the project."""

    entries: tuple[LayerEntry, ...]
    texts: Mapping[str, str]  # RECORD, METADATA and entry_points.txt, by path
    faults: tuple[str, ...]  # entries that unpackers could interpret differently


def read_layer(layer: LayerOnDisk) -> UpperLayer:
    """The entries of *layer*.

    :raises VerificationFailed: it is damaged, or does not have its digest or diff_id.
    """
    hasher, paths = hashlib.sha256(), LayerPaths()
    entries: list[LayerEntry] = []
    texts: dict[str, str] = {}
    faults: list[str] = []

    def pieces(stream: Stream) -> Iterator[bytes]:
        for piece in pieces_of(stream):
            hasher.update(piece)
            yield piece

    _demand_digest(layer)
    try:
        with open_layer(layer.path, ahead=True) as stream:
            tar = TarReader(pieces(stream))
            for entry in tar:
                if entry.kind != "hard link":  # refused as such
                    faults += paths.add(entry)
                sha256, text = _content(entry, tar)
                if text is not None:
                    texts[entry.path] = text
                entries.append(_listed(entry, sha256))
    except (OSError, ValueError) as error:
        raise VerificationFailed(f"{layer.path.name}: {printable(str(error))}") from error
    if (found := f"sha256:{hasher.hexdigest()}") != layer.diff_id:
        raise VerificationFailed(
            f"{layer.path.name}: diff_id mismatch: expected {layer.diff_id}, got {found}"
        )
    return UpperLayer(entries=tuple(entries), texts=texts, faults=tuple(map(printable, faults)))


def _demand_digest(layer: LayerOnDisk) -> None:
    """:raises VerificationFailed: the blob does not have its digest."""
    try:
        with layer.path.open("rb") as file:
            digest = hashlib.sha256()
            for piece in pieces_of(file):
                digest.update(piece)
    except OSError as error:
        raise VerificationFailed(f"{layer.path}: {error.strerror}") from error
    if (found := digest.hexdigest()) != layer.digest.removeprefix("sha256:"):
        raise VerificationFailed(f"{layer.path}: digest mismatch: sha256:{found}, not {layer.digest}")


def _content(entry: TarEntry, tar: TarReader) -> tuple[str, str | None]:
    """The SHA-256 of a file, and its text if that is needed."""
    if entry.kind != "file":
        return "", None
    keep = _TEXTS.search(entry.path) is not None and entry.size <= _TEXT_LIMIT
    digest, text = hashlib.sha256(), bytearray()
    for piece in tar.content():
        digest.update(piece)
        if keep:
            text += piece
    return digest.hexdigest(), text.decode("utf-8", "replace") if keep else None


def _listed(entry: TarEntry, sha256: str) -> LayerEntry:
    return LayerEntry(
        path=entry.path,
        kind=entry.kind,
        mode=entry.mode & 0o7777,
        uid=entry.uid,
        gid=entry.gid,
        size=entry.size,
        sha256=sha256,
        target=entry.target,
        xattrs=bool(entry.xattrs),
    )


def _recorded(
    texts: Mapping[str, str], wheels: Mapping[str, str], scheme: Scheme
) -> dict[str, tuple[str, ...]]:
    """The files of the packages that project.json lists, with their hashes; several may have one file."""
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
        programs=_programs(tree, image_env(project.below).get("PATH", ""), scheme),
        site=scheme.site,
        scripts=scheme.scripts,
    )


def _standard(tree: Mapping[str, TreeItem]) -> frozenset[str]:
    """The modules of the image's standard library, and those of this Python."""
    names = {found[3] for path in tree if (found := _STANDARD.search(path))}
    return frozenset(names | sys.stdlib_module_names) - _NO_MODULE


def _programs(tree: Mapping[str, TreeItem], path: str, scheme: Scheme) -> dict[str, str]:
    """The programs in the folders of *path* other than that of launchers, by name."""
    folders = {folder.strip("/") for folder in path.split(":")} - {scheme.scripts, ""}
    found = ((place.rpartition("/"), place) for place in tree)
    return {name: place for (folder, _, name), place in found if folder in folders}
