"""Keeps the files of a lock in a vault: its wheels, archives and sdists, and the packages of its OS.

The lock is an artifact: its config is lock.json, its layers are the files, each with the digest that the lock
has. It gets its tag last, so an interrupted run leaves no incomplete artifact, and the next run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchkiln.base import archive
from torchkiln.base.effects import to_bytes
from torchkiln.base.remake import Made, debs_of, learn, read_effects
from torchkiln.engine.environment import Environment
from torchkiln.engine.prefetch import fetched
from torchkiln.errors import BuildFailed, NotListed, VerificationFailed
from torchkiln.index.pages import Pages
from torchkiln.locks.file import LIMIT, from_json, lock_digest, to_json
from torchkiln.matrix.tags import tag_of
from torchkiln.model.digest import Digest
from torchkiln.model.lock import DebFile, LockedArchive, LockedBase, LockedCell, LockedTools, LockedWheel
from torchkiln.model.progress import Transfer
from torchkiln.oci.documents import descriptors
from torchkiln.oci.image import MANIFEST_TYPE, canonical_json, descriptor, digest_of
from torchkiln.store.store import Store
from torchkiln.util.strict_json import json_of
from torchkiln.vault.places import Vault, vaults_of
from torchkiln.vault.sources import digest_of_file, take

LOCK_TYPE = "application/vnd.torchkiln.lock.v1+json"
PROJECT_TYPE = "application/vnd.torchkiln.project-lock.v1+json"
PROJECT, PARENT = "torchkiln.project", "torchkiln.parent"  # annotations: name, tag of the cell's lock
_FILE_TYPE = "application/octet-stream"
_TITLE = "org.opencontainers.image.title"  # the name under which `oras pull` writes a file
_STREAMS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFile:
    """A file of a lock; `fetch` returns its path, and may write it to the temporary path that it gets."""

    title: str
    digest: Digest
    size: int
    fetch: Callable[[Path], Path]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A lock in a vault."""

    tag: str
    files: int
    bytes: int
    added: int  # bytes that were not there before


def vault_tag(locked: LockedCell) -> str:
    """The tag of *locked* in a vault: two locks of one image differ in it."""
    return f"{tag_of(locked.resolution)}-{lock_digest(locked).removeprefix('sha256:')[:12]}"


def keep(locked: LockedCell, vault: Vault, environment: Environment, images: Path) -> Kept:
    """Copy all files of *locked* to *vault*, unless they are there.

    :param images: the folder of locks, with the packages and effects of the base.
    :raises BuildFailed: a file cannot be had, or the vault cannot be written.
    :raises RegistryError: the vault cannot be reached.
    """
    files = _files(locked, environment, images)
    return write_lock(vault_tag(locked), LOCK_TYPE, to_json(locked), files, vault, environment.store)


def write_lock(
    tag: str,
    kind: str,
    config: bytes,
    found: Iterable[KeptFile],
    vault: Vault,
    store: Store,
    about: Mapping[str, str] | None = None,
) -> Kept:
    """Copy the files, then the lock *config*, an artifact of *kind* with the annotations *about*.

    :raises BuildFailed: a file cannot be had, or the vault cannot be written.
    """
    files = tuple({file.digest: file for file in found}.values())
    with ThreadPoolExecutor(_STREAMS) as pool:
        added = sum(
            pool.map(lambda file: _added(file, vault, store), sorted(files, key=lambda file: -file.size))
        )
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": kind,
            "config": descriptor(kind, digest_of(config), len(config)),
            "layers": [
                {**descriptor(_FILE_TYPE, file.digest, file.size), "annotations": {_TITLE: file.title}}
                for file in files
            ],
            **({"annotations": about} if about else {}),
        }
    )
    vault.tag(tag, manifest, config)
    return Kept(tag=tag, files=len(files), bytes=sum(file.size for file in files), added=added)


def check(vault: Vault, folder: Path, say: Callable[[str], None]) -> tuple[int, tuple[str, ...]]:
    """Read every file of *vault* once; returns their number, and a line for each missing or damaged file.

    :param folder: of temporary files.
    :raises RegistryError: the vault cannot be reached.
    """
    named: dict[tuple[Digest, int], str] = {}
    faults = []
    for tag, manifest in vault.tags().items():
        try:
            for entry in _entries(manifest, tag):
                name = entry.get("annotations", {}).get(_TITLE, "lock.json")
                named.setdefault((Digest(entry["digest"]), entry["size"]), f"{tag}: {name}")
        except VerificationFailed as error:
            faults.append(error.message if manifest else f"{tag}: the manifest is missing or damaged")
    temporary = folder / "file"
    for number, ((digest, size), name) in enumerate(sorted(named.items(), key=lambda one: one[1]), 1):
        try:
            if not vault.read(digest, size, temporary, lambda _: None):
                faults.append(f"{name} ({digest}) is missing")
        except VerificationFailed:
            faults.append(f"{name} ({digest}) is damaged")
        if number % 100 == 0:
            say(f"{number} of {len(named)} files read")
    return len(named), tuple(faults)


def upstream(vault: Vault, index: Pages, folder: Path) -> dict[str, str]:
    """Whether the index has the wheels of the locks in *vault*: file name -> "listed", "unlisted" or "gone".

    An unlisted wheel is not on its project's page any more, but still served by its recorded path.

    :param folder: of temporary files.
    :raises BuildFailed: an index cannot be read.
    :raises VerificationFailed: a lock in the vault is missing or damaged.
    """
    wheels: dict[str, LockedWheel] = {}
    for tag, manifest in vault.tags().items():
        config = next(_entries(manifest, tag))
        if config["mediaType"] == LOCK_TYPE:
            path = folder / "lock"
            if config["size"] > LIMIT or not vault.read(
                Digest(config["digest"]), config["size"], path, lambda _: None
            ):
                raise VerificationFailed(f"{tag}: lock.json is missing")
            wheels |= {wheel.filename: wheel for wheel in from_json(path.read_bytes(), where=tag).wheels}

    def state(wheel: LockedWheel) -> str:
        try:
            index.find_listed(wheel, fresh=True)
        except NotListed:
            return "unlisted" if index.find_unlisted(wheel) else "gone"
        return "listed"

    with ThreadPoolExecutor(_STREAMS) as pool:
        return dict(sorted(zip(wheels, pool.map(state, wheels.values()), strict=True)))


def drop(
    vault: Vault, keeping: frozenset[str], *, project: str | None = None, dry_run: bool = False
) -> tuple[str, ...]:
    """Remove the locks whose tags are not in *keeping*, and the files that only they need; returns the tags.

    :param project: remove only locks of this project; None: remove only locks of cells, without those on
        whose images a project in *vault* is built.
    :param dry_run: only return the tags.
    :raises RegistryError: the registry does not support it.
    :raises VerificationFailed: a manifest is missing or damaged; it could need any file.
    """
    manifests = sorted(vault.tags().items())
    if lost := [tag for tag, manifest in manifests if not manifest]:
        raise VerificationFailed(
            f"{vault.name}: {lost[0]}: the manifest is missing or damaged",
            hint="nothing was removed; keep this lock again with `torchkiln vault keep`",
        )
    found = {tag: _kind_of(manifest, tag) for tag, manifest in manifests}
    if project is None:
        keeping |= {about.get(PARENT, "") for _, about in found.values()}
        gone = [tag for tag, (kind, _) in found.items() if kind == LOCK_TYPE and tag not in keeping]
    else:
        ours = [tag for tag, (_, about) in found.items() if about.get(PROJECT) == project]
        gone = [tag for tag in ours if found[tag][0] == PROJECT_TYPE and tag not in keeping]
    for tag in () if dry_run else gone:
        vault.untag(tag)
    return tuple(gone)


def _added(file: KeptFile, vault: Vault, store: Store) -> int:
    if vault.has(file.digest, file.size):
        return 0
    temporary = store.temporary("vault")
    try:
        vault.put(file.digest, file.size, file.fetch(temporary))
    finally:
        temporary.unlink(missing_ok=True)
    return file.size


def _files(locked: LockedCell, environment: Environment, images: Path) -> Iterator[KeptFile]:
    for wheel in locked.wheels:
        yield wheel_file(wheel, environment)
    for found in locked.archives:
        yield _kept(found, lambda path, found=found: _archive(found, path, environment))  # type: ignore[misc]
    yield from artefact_files(locked.base, locked.base, environment, images)
    if locked.tools:
        yield from artefact_files(locked.tools, locked.base, environment, images)


def wheel_file(wheel: LockedWheel, environment: Environment) -> KeptFile:
    """*wheel*, which is downloaded if necessary."""
    if not wheel.size:  # a hash from public record
        wheel = replace(wheel, size=environment.fetcher.size(wheel))
    return _kept(wheel, lambda _: fetched(wheel, environment))


def _kept(file: LockedWheel | LockedArchive | DebFile, fetch: Callable[[Path], Path]) -> KeptFile:
    return KeptFile(title=file.filename, digest=digest_of_file(file), size=file.size, fetch=fetch)


def _archive(found: LockedArchive, part: Path, environment: Environment) -> Path:
    path = environment.archives.archive(found, part, Transfer())
    assert path is not None
    return path


def artefact_files(
    artefact: Made, base: LockedBase, environment: Environment, images: Path
) -> Iterator[KeptFile]:
    """The packages and effects of *artefact*; if they are not recorded, its blob."""
    store = environment.store
    if isinstance(artefact, LockedTools):
        name = f"{artefact.os}-{artefact.name}"
    else:
        name = f"{artefact.os}-{'base' if artefact is base else 'apt'}"
    learn(images, artefact, store)
    files, effects = archive.read_files(None, artefact, store), read_effects(None, artefact, store)
    if files is None or effects is None:
        blob = store.blob(artefact.digest)

        def fetch(_: Path) -> Path:
            vaults = vaults_of(environment.environ)
            if not store.has_blob(artefact.digest, artefact.size) and not take(
                vaults, artefact.digest, artefact.size, blob, store
            ):
                raise BuildFailed(
                    f"{name} {artefact.digest[:19]}: it is not in the cache, and cannot be made, because the"
                    f" {'list' if files is None else 'effects'} of its packages is missing",
                    hint="lock the present packages: torchkiln refresh; for a project: torchkiln"
                    " project lock DIR --upgrade",
                )
            return blob

        yield KeptFile(title=f"{name}.tar.gz", digest=artefact.digest, size=artefact.size, fetch=fetch)
        return
    yield _document(f"{name}-debs.json", archive.to_json(files))
    yield _document(f"{name}-effects.json.gz", to_bytes(effects))
    debs = debs_of(base, files.dates, store, environment.environ)
    for deb in files.debs:
        yield _kept(deb, lambda _, deb=deb: debs.path(deb))  # type: ignore[misc]


def _document(title: str, data: bytes) -> KeptFile:
    def write(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return KeptFile(title=title, digest=digest_of(data), size=len(data), fetch=write)


def _entries(manifest: bytes, tag: str) -> Iterator[Mapping[str, Any]]:
    """The descriptors in the manifest of a lock."""
    try:
        document = json_of(manifest)
    except ValueError as error:
        raise VerificationFailed(f"{tag}: {error}") from error
    if not isinstance(document, dict):
        raise VerificationFailed(f"{tag}: not a JSON object")
    yield from descriptors(Path(tag), "config", {"config": [document.get("config")]})
    yield from descriptors(Path(tag), "layers", document)


def _kind_of(manifest: bytes, tag: str) -> tuple[str, Mapping[str, str]]:
    """The media type of the config, and the annotations; ("", {}) for a *manifest* that is not valid."""
    try:
        kind = str(next(_entries(manifest, tag))["mediaType"])
    except VerificationFailed:
        return "", {}
    about = json_of(manifest).get("annotations")
    return kind, about if isinstance(about, dict) else {}
