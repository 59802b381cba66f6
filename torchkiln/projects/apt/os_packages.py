"""Makes the layer of a project's OS packages from their locked .deb files.

It is made like a base: from the packages and the effects of their scripts, see `base/remake.py`. To lock the
packages, or to build them on another base, they are installed by mmdebstrap without a network. In both cases
`base/protected.py` checks what the layer changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torchkiln.base.archive import RECORDS, write_repository
from torchkiln.base.contents import inspect
from torchkiln.base.mmdebstrap import Scratch, scratch
from torchkiln.base.on_top import Addition, layer_tar
from torchkiln.base.recipe import CLEANING, ON_TOP, SNAPSHOT, recipe, snapshot_of, sources_of, variables
from torchkiln.base.remake import APT_EFFECTS, blob_of, debs_of, mismatch, record_effects, remade
from torchkiln.errors import BuildFailed
from torchkiln.model.apt import LockedApt, OsLayers, packages_of
from torchkiln.model.digest import Digest
from torchkiln.model.layer import Blob
from torchkiln.model.lock import DebFile, LockedCell, package_changes
from torchkiln.model.plan import ImagePlan, OverlayLayer
from torchkiln.model.progress import UNREPORTED, Reporting
from torchkiln.oci.compression import GZIP
from torchkiln.oci.encode import ENCODER, encode
from torchkiln.oci.read_tar import DAMAGED
from torchkiln.projects.apt.apt_get import resolve
from torchkiln.projects.apt.protected import contents_of, demand_apart, demand_harmless
from torchkiln.store.store import Store

_RULES = 5  # raise it when `protected` refuses more, or warns of more
_WHAT = "the layer of OS packages"
_PIECE = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeApt:
    """A layer, its paths, and warnings about it."""

    blob: Blob
    paths: tuple[str, ...]
    notes: tuple[str, ...]


def lock_apt(
    requested: tuple[str, ...],
    layers: OsLayers,
    own: Collection[str],
    store: Store,
    *,
    environ: Mapping[str, str],
    report: Reporting = UNREPORTED,
) -> tuple[LockedApt, tuple[str, ...]]:
    """Lock the packages *requested* and their dependencies, from today's archive, on *layers*.

    :param layers: their blobs are in *store*.
    :param own: paths of the image's own files.
    :returns: the lock, and warnings.
    :raises KilnError: as `apt_get.resolve` does.
    :raises BuildFailed: the packages cannot be installed, or would change the image.
    """
    wanted = recipe(layers.base.os)
    debs, dates = resolve(requested, layers, store, environ=environ, report=report)
    made = _installed(requested, debs, layers, store, environ, report)
    demand_apart(made.paths, own, what=_WHAT)
    sources = sources_of(wanted, environ)
    apt = LockedApt(
        os=layers.base.os,
        requested=requested,
        base=layers.base.digest,
        tools=layers.tools_digest,
        snapshot=snapshot_of(sources),
        debs=debs,
        **asdict(made.blob),
        encoder=ENCODER,
        untrusted=sources.untrusted,
        dates=dates,
    )
    record_effects(apt, layers.base, debs, store, report.say)
    return apt, made.notes


def ensure_apt(
    apt: LockedApt,
    layers: OsLayers,
    own: Collection[str],
    store: Store,
    *,
    environ: Mapping[str, str],
    report: Reporting = UNREPORTED,
) -> LockedApt:
    """Make sure that *store* has the layer of *apt*'s packages, installed on *layers*.

    It is taken from a vault, made from the packages and their effects, or installed. If *layers* are not
    those of the lock, the layer may differ from the locked one.

    :param own: paths of the image's own files.
    :returns: *apt* with this layer.
    :raises BuildFailed: a package was not found, the layer contains a file of *own*, or *layers* are those of
        the lock but the layer differs from the locked one.
    """
    made = _made(apt, layers, store, environ, report)
    demand_apart(made.paths, own, what=_WHAT)
    if layers.fits(apt) and made.blob != blob_of(apt):
        raise BuildFailed(
            f"{_WHAT} is not the locked one: {mismatch(blob_of(apt), made.blob)}; the output of"
            " a package's script differs on each run, or with other versions of mmdebstrap, apt or dpkg",
            hint="lock the project again on this machine: torchkiln project lock DIR --upgrade; or build it"
            " on the machine that locked it",
        )
    return replace(apt, base=layers.base.digest, tools=layers.tools_digest, **asdict(made.blob))


def _made(
    apt: LockedApt, layers: OsLayers, store: Store, environ: Mapping[str, str], report: Reporting
) -> MadeApt:
    """The layer of *apt* on *layers*."""
    lacking = ""
    if layers.fits(apt):
        known = _known(_key_of_installing(apt.requested, apt.debs, layers), store)
        if known and known.blob == blob_of(apt):
            return known
        # Lock and effects may be a stranger's. What they give is recorded under its own digest, so that it is
        # never used for another lock with the same packages.
        key = _key(layers, digest=apt.digest)
        found = _recorded(key, store, lambda: _remade(apt, layers, store, environ, report))
        if isinstance(found, MadeApt):
            return found
        lacking = found
    if lacking or (lacking := debs_of(layers.base, apt.dates, store, environ).lacking(apt.debs)):
        mirrors = " and ".join(variables(recipe(apt.os))[:2])
        raise BuildFailed(
            lacking,
            hint=f"take packages from a vault (--vault), or set {mirrors}, or {SNAPSHOT}; or restore"
            f" {APT_EFFECTS}; or lock the present packages: torchkiln project lock DIR --upgrade",
        )
    return _installed(apt.requested, apt.debs, layers, store, environ, report)


def _remade(
    apt: LockedApt, layers: OsLayers, store: Store, environ: Mapping[str, str], report: Reporting
) -> MadeApt | str:
    """The layer of *apt* from a vault, or from its packages and effects; or as `remade` the reason."""
    lacking = remade(apt, layers.base, store, environ=environ, report=report)
    if lacking is not None:
        return lacking
    path, unpacked, found = store.blob(apt.digest), 0, hashlib.sha256()
    try:
        with GZIP.open(path) as tar:
            while piece := tar.read(_PIECE):
                unpacked += len(piece)
                found.update(piece)
    except DAMAGED as error:
        raise BuildFailed(f"{_WHAT} cannot be read: {error}", hint="lock the project again") from error
    diff_id = Digest(f"sha256:{found.hexdigest()}")
    blob = Blob(digest=apt.digest, diff_id=diff_id, size=path.stat().st_size, unpacked=unpacked)
    return _checked(path, blob, apt.debs, layers, store)


def _key(layers: OsLayers, **inputs: Any) -> str:
    """The hash of *inputs*, and of what else determines a layer, and whether it is refused."""
    inputs |= {"rules": _RULES, "layers": [artefact.digest for artefact in layers.artefacts]}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _key_of_installing(requested: tuple[str, ...], debs: tuple[DebFile, ...], layers: OsLayers) -> str:
    wanted = recipe(layers.base.os)
    installing = (wanted.dpkg_options, wanted.epoch, ON_TOP, CLEANING)
    hashes = [deb.sha256 for deb in debs]
    return _key(layers, requested=requested, debs=hashes, installing=installing, encoder=ENCODER)


def _recorded(key: str, store: Store, make: Callable[[], T]) -> MadeApt | T:
    """The layer of *key*, from the cache or by *make*; what else *make* returns is not recorded."""
    with store.lock(f"apt-{key}", "installs OS packages"):
        if known := _known(key, store):
            return known
        made = make()
        if isinstance(made, MadeApt):
            store.put_record(RECORDS, key, {**asdict(made.blob), "paths": made.paths, "notes": made.notes})
        return made


def _known(key: str, store: Store) -> MadeApt | None:
    record: dict[str, Any] = store.record(RECORDS, key) or {}
    try:
        blob = Blob(**{name: record[name] for name in ("digest", "diff_id", "size", "unpacked")})
    except KeyError:
        return None
    if not store.has_blob(blob.digest, blob.size):
        return None
    return MadeApt(blob=blob, paths=tuple(record["paths"]), notes=tuple(record["notes"]))


def _installed(
    requested: tuple[str, ...],
    debs: tuple[DebFile, ...],
    layers: OsLayers,
    store: Store,
    environ: Mapping[str, str],
    report: Reporting,
) -> MadeApt:
    """The layer of *debs*, which are in *store*: from the cache, or by mmdebstrap."""

    def install() -> MadeApt:
        with scratch(recipe(layers.base.os), environ, report) as place:
            return _install(requested, debs, layers, store, place)

    return _recorded(_key_of_installing(requested, debs, layers), store, install)


def _install(
    requested: tuple[str, ...], debs: tuple[DebFile, ...], layers: OsLayers, store: Store, place: Scratch
) -> MadeApt:
    folder = place.folder / "debs"
    addition = Addition(
        what="the OS packages",
        packages=requested,
        lower=layers.artefacts,
        misfit="the locked OS packages do not fit",
        hint="it was locked on another base: take that from a vault (--vault), or lock the project again",
        debs=folder,
        hard_links=True,
    )
    try:
        write_repository(folder, debs, store)
    except OSError as error:
        raise BuildFailed(
            f"the OS packages cannot be unpacked in {place.folder.parent}: {error.strerror}",
            hint="free disk space (2 GB are needed), or set TMPDIR to another folder",
        ) from error
    layer = layer_tar(addition, place, store)
    temporary = store.temporary("apt")
    try:
        with store.writable():
            blob = encode(layer, temporary)
        made = _checked(temporary, blob, debs, layers, store)
        with store.writable():
            store.adopt(temporary, store.blob(blob.digest))
    finally:
        temporary.unlink(missing_ok=True)
    return made


def _demand_locked(blob: Path, debs: tuple[DebFile, ...], layers: OsLayers) -> None:
    """:raises BuildFailed: the packages in the layer's dpkg status are not those of *layers* and *debs*."""
    below = {package.name for package in layers.packages}
    installed = inspect(blob, name=_WHAT).packages
    kept = tuple(package for package in installed if package.name in below)
    added = tuple(package for package in installed if package.name not in below)
    if changes := (*package_changes(layers.packages, kept), *package_changes(packages_of(debs), added)):
        raise BuildFailed(
            f"{_WHAT} does not have the locked packages:\n" + "\n".join(f"  {change}" for change in changes),
            hint="lock the project again: torchkiln project lock DIR --upgrade",
        )


def _checked(path: Path, blob: Blob, debs: tuple[DebFile, ...], layers: OsLayers, store: Store) -> MadeApt:
    """The layer in the file *path*, with its paths that are not folders, and the warnings about it."""
    if debs:  # without packages, the layer may have no dpkg status file
        _demand_locked(path, debs, layers)
    try:
        with GZIP.open(path) as tar:
            upper = contents_of([tar])
        with ExitStack() as opened:
            blobs = [store.blob(artefact.digest) for artefact in layers.artefacts]
            lower = contents_of([opened.enter_context(GZIP.open(blob)) for blob in blobs])
    except DAMAGED as error:
        raise BuildFailed(f"{_WHAT} cannot be read: {error}", hint="build it again") from error
    notes = demand_harmless(lower, upper, what=_WHAT)
    paths = sorted(path for path, kind in upper.kinds.items() if kind != "folder")
    return MadeApt(blob=blob, paths=tuple(paths), notes=notes)


def layers_of(locked: LockedCell) -> OsLayers:
    """The layers of the image of *locked* that have OS packages."""
    return OsLayers(base=locked.base, tools=locked.tools)


def own_paths(plan: ImagePlan) -> frozenset[str]:
    """The paths of the files and links that torchkiln adds above the OS in the image of *plan*."""
    layers = plan.of(OverlayLayer)
    files = [file.path for layer in layers for file in layer.files]
    return frozenset({*files, *(link.path for layer in layers for link in layer.links)})
