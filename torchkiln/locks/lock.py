"""Locks a resolution: chooses every file by hash, so that all later builds are the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.errors import BuildFailed, ConfigError, Stale, Unresolvable
from torchkiln.locks.file import LIMIT, from_json, how_to_restore, plain, requirements_txt, to_json
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source, TorchBuild
from torchkiln.model.digest import Digest, digest_of_json
from torchkiln.model.index import IndexRequest, KnownWheel
from torchkiln.model.lock import (
    LockedArchive,
    LockedBase,
    LockedCell,
    LockedStandalone,
    LockedTools,
    LockedWheel,
)
from torchkiln.model.operating_system import DEFAULT_OS, operating_system
from torchkiln.model.platform import DEFAULT_PLATFORM, PLATFORMS
from torchkiln.model.project import ProjectLock
from torchkiln.model.recipe import DEVICE_CODE_RULE, PYTHON_RULE, RECIPE
from torchkiln.model.untrusted import TOOLKIT, is_untrusted
from torchkiln.util.files import write_atomic
from torchkiln.util.strict_json import read_file

EVERYTHING = ("*",)


def kept_versions(previous: LockedCell | ProjectLock | None, upgrade: Collection[str]) -> dict[str, str]:
    """The version of each package of a *previous* lock that is not in *upgrade*."""
    if previous is None or set(EVERYTHING) & set(upgrade):
        return {}
    moving = {canonicalize_name(name) for name in upgrade}
    return {wheel.name: wheel.version for wheel in previous.wheels if wheel.name not in moving}


@dataclass(frozen=True, kw_only=True, slots=True)
class Versions:
    """The versions that a lock may use.

    `as_of` is an ISO date: files uploaded on that day or later (UTC) are ignored. `previous` is the present
    lock, whose versions are kept except those of packages in `upgrade`, which may be `EVERYTHING`.
    """

    as_of: str
    previous: LockedCell | None = None
    upgrade: tuple[str, ...] = ()

    @property
    def kept(self) -> dict[str, str]:
        return kept_versions(self.previous, self.upgrade)


@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """The parts of an image besides wheels. `archives` are those of the whole toolkit release."""

    base: LockedBase
    tools: LockedTools | None = None
    archives: tuple[LockedArchive, ...] = ()
    standalone: LockedStandalone | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PublicRecord:
    """The public record of the cell's wheels: see `matrix/public_record.py`.

    `torch` is the hex sha256 of torch's wheel; `known` are the wheels of PyTorch's own index, to be locked
    without querying it.
    """

    torch: str | None = None
    known: tuple[KnownWheel, ...] = ()


NO_RECORD = PublicRecord()

RULES = 1  # increase it when the same inputs result in other wheels
_SHOWN = 5  # names in a message
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")  # of the OCI distribution specification


class Index(Protocol):
    """The package indexes."""

    def wheels(self, wanted: IndexRequest) -> tuple[LockedWheel, ...]:
        """The wheels that satisfy *wanted*, each with its size.

        :raises Unresolvable: the requirements conflict.
        """
        ...


def lock(
    resolution: Resolution,
    index: Index,
    system: System,
    versions: Versions,
    *,
    bound: tuple[str, ...] = (),
    untrusted: Collection[Source] = (),
    record: PublicRecord = NO_RECORD,
) -> LockedCell:
    """The lock of *resolution*.

    Its date is that of the previous lock unless something is upgraded.

    :param bound: the packages that the matrix binds to the index `pytorch`; used only if the resolution's
        torch comes from there.
    :param untrusted: the untrusted indexes; the lock is marked if it uses one.
    :raises Unresolvable: the cell is unavailable, or its requirements conflict.
    :raises BuildFailed: the torch wheel on the index differs from the public record.
    """
    cell = resolution.cell
    build, previous, known = resolution.build, versions.previous, record.known
    if build is None:
        raise Unresolvable(f"torch {cell.torch} with CUDA {cell.cuda}: {resolution.why_unavailable}")
    by_record = tuple(sorted(wheel.name for wheel in known))
    date = previous.as_of if previous and not versions.upgrade else versions.as_of
    wheels = index.wheels(
        IndexRequest(
            requirements=tuple(text for text in resolution.requirements if _name(text) not in by_record),
            constraints=tuple(bound.requirement for bound in resolution.constraints),
            python=cell.python,
            glibc=operating_system(cell.os).glibc,
            as_of=date,
            keep=tuple(kept for kept in versions.kept.items() if kept[0] not in by_record),
            bound=bound if build.source is Source.PYTORCH and not known else (),
            known=known,
            image=True,
            platform=PLATFORMS[cell.platform],
        )
    )
    if previous:  # another mirror may have other paths
        before = {(wheel.filename, wheel.sha256): wheel.path for wheel in previous.wheels if wheel.path}
        paths = (before.get((wheel.filename, wheel.sha256), wheel.path) for wheel in wheels)
        wheels = tuple(replace(wheel, path=path) for wheel, path in zip(wheels, paths, strict=True))
    queried = {wheel.index for wheel in wheels if wheel.name not in by_record}
    torch = _torch_wheel(build, cell.torch, wheels)
    if record.torch and torch.index not in untrusted:
        _check_record(torch, record.torch)
    locked = LockedCell(
        resolution=resolution,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        base=system.base,
        as_of=date,
        epoch=int(datetime.fromisoformat(date).replace(tzinfo=timezone.utc).timestamp()),  # at midnight UTC
        inputs=inputs_digest(resolution, bound),
        layers=(),
        untrusted=bool(queried & {*untrusted}),
        by_record=by_record,
        tools=system.tools,
        archives=_archives(resolution, system.archives),
        standalone=system.standalone,
    )
    if previous and same_files(previous, locked) and _interpreter(previous) == _interpreter(locked):
        return replace(locked, layers=previous.layers)
    return locked


def same_files(one: LockedCell, other: LockedCell) -> bool:
    """Whether both have the same wheels; paths and libraries are not compared."""
    files = [[replace(wheel, path=None, libraries=()) for wheel in each.wheels] for each in (one, other)]
    return files[0] == files[1]


def on_base(locked: LockedCell, base: LockedBase, tools: LockedTools | None) -> LockedCell:
    """*locked* with another base and tools; the recorded layers are kept if they are the same on both."""
    found = replace(locked, base=base, tools=tools)
    return found if _interpreter(found) == _interpreter(locked) else replace(found, layers=())


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _archives(resolution: Resolution, known: Collection[LockedArchive]) -> tuple[LockedArchive, ...]:
    """*known*, checked against the digest in the resolution."""
    toolkit = resolution.toolkit
    if toolkit is None or not toolkit.release:
        return ()
    if digest_of(known) != toolkit.archives:
        raise Unresolvable(
            f"the archives of CUDA {toolkit.release} differ from those of the resolution",
            hint="pass to lock() the archives of the facts that resolve() used",
        )
    return tuple(sorted(known, key=lambda archive: archive.component))


def _interpreter(locked: LockedCell) -> tuple[object, ...]:
    """The base's Python packages and the standalone Python; with the wheels, they determine the layers."""
    packages = (package for package in locked.base.packages if re.match(r"(lib)?python3", package.name))
    return (*packages, locked.standalone)


def inputs_digest(resolution: Resolution, bound: tuple[str, ...]) -> Digest:
    """The digest of what the matrix, the facts and the rules determine for this cell.

    It does not depend on other cells, so that a new torch release does not make other locks stale.
    """
    build = resolution.build
    inputs = {
        "rules": RULES,
        "recipe": RECIPE,
        "resolution": plain(resolution),
        "bound": bound if build and build.source is Source.PYTORCH else (),
        "glibc": operating_system(resolution.cell.os).glibc,
        **({"device_code": DEVICE_CODE_RULE} if resolution.cell.gpus else {}),
        **({"standalone": PYTHON_RULE} if resolution.standalone else {}),
    }
    return digest_of_json(inputs)


def how_to_lock(cell: Cell, *, project: Path | None = None, by_record: bool = False) -> str:
    """The command that locks *cell*, or *project* on its image; *by_record*: with --public-record."""
    words = [f"torchkiln project lock {project}" if project else "torchkiln lock"]
    words += [f"--torch {cell.torch}", f"--cuda {cell.cuda}"]
    words += [f"--flavor {cell.flavor}"] if cell.flavor != "runtime" else []
    words += [f"--os {cell.os}"] if cell.os != DEFAULT_OS else []
    words += [f"--platform {cell.platform}"] if cell.platform != DEFAULT_PLATFORM else []
    words += [f"--gpus {','.join(cell.gpus)}"] if cell.gpus else []
    words += ["--own-use"] if cell.own_use else []
    words += ["--public-record"] if by_record else []
    return " ".join(words)


def load_locked(images: Path, tag: str, *, how: str = "") -> LockedCell:
    """The committed lock of *tag* in the folder *images*; *how*: the command that creates it.

    :raises ConfigError: *tag* is invalid.
    :raises Stale: the lock is missing, belongs to another image, or is invalid.
    """
    path = images / tag / "lock.json"
    if not _TAG.fullmatch(tag):
        raise ConfigError(
            f"{tag[:200]!r} is not the tag of an image", hint="`torchkiln list --all` shows all tags"
        )
    try:
        data = read_file(path, LIMIT, follow=False)
    except FileNotFoundError:
        how = how or f"torchkiln lock {tag}"
        raise Stale(f"{path}: no such file: the cell is not locked yet", hint=f"run: {how}") from None
    except OSError as error:
        raise Stale(f"{path}: {error.strerror}", hint=how_to_restore(str(path))) from None
    locked = from_json(data, where=str(path))
    if (own := tag_of(locked.resolution)) != tag:
        raise Stale(f"{path}: is the lock of {own}, not of {tag}", hint=how_to_restore(str(path)))
    return locked


def some_of(names: Sequence[str]) -> str:
    """The first of *names*, and the number of further ones."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def save(images: Path, locked: LockedCell) -> Path:
    folder = images / tag_of(locked.resolution)
    write_atomic(folder / "requirements.txt", requirements_txt(locked))
    write_atomic(folder / "lock.json", to_json(locked))
    return folder


def _check_record(torch: LockedWheel, recorded: str) -> None:
    """Check the hash of *torch* on an index against the public record."""
    if torch.sha256 != recorded:
        raise BuildFailed(
            f"{torch.filename}: checksum mismatch: sha256 {torch.sha256} on this index, {recorded} on public"
            " record",
            hint="use another mirror of PyTorch's own index; write untrusted+ before the address of a test"
            " index; correct a wrong record in compat.yaml, under index_sha256",
        )


def _torch_wheel(build: TorchBuild, release: str, wheels: tuple[LockedWheel, ...]) -> LockedWheel:
    """The wheel of torch among *wheels*."""
    torch = next((wheel for wheel in wheels if wheel.name == "torch"), None)
    expected = Version(build.version if build.source is Source.PYTORCH else release)
    if torch is None or Version(torch.version) != expected or torch.index is not build.source:
        found = f"torch {torch.version} from {torch.index.value}" if torch else "no torch"
        raise Unresolvable(
            f"expected torch {expected} from {build.source.value}, but the requirements resolve to {found}",
            hint="check the requirements and the pages of the index",
        )
    return torch


def untrusted_in(images: Path, resolution: Resolution) -> bool:
    """Whether the lock of *resolution* uses an untrusted source; False if there is no valid lock."""
    locked = _with_any(images, resolution, b'"untrusted"', TOOLKIT.encode())
    return locked is not None and is_untrusted(locked)


def by_record_in(images: Path, resolution: Resolution) -> tuple[str, ...]:
    """The wheels from public record in the lock of *resolution*; empty if there is no valid lock."""
    locked = _with_any(images, resolution, b'"by_record"')
    return locked.by_record if locked else ()


def _with_any(images: Path, resolution: Resolution, *words: bytes) -> LockedCell | None:
    """The lock if its file contains one of *words*: parsing all locks would slow `list` down."""
    if resolution.build is None:
        return None
    tag = tag_of(resolution)
    try:
        data = read_file(images / tag / "lock.json", LIMIT, follow=False)
        return load_locked(images, tag) if any(word in data for word in words) else None
    except (OSError, Stale):
        return None
