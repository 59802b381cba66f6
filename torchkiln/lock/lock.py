"""Resolution → LockedCell: every byte named, once, so that every later build is the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchkiln.errors import BuildFailed, ConfigError, Stale, Unresolvable
from torchkiln.lock.file import (
    broken_seal,
    from_json,
    how_to_mend,
    lock_digest,
    locked_of,
    parse,
    plain,
    requirements_txt,
    to_json,
)
from torchkiln.lock.request import NO_RECORD, PublicRecord, System, Versions
from torchkiln.matrix.cuda_redist import digest_of
from torchkiln.matrix.tags import tag_of
from torchkiln.model.cell import Cell, Resolution, Source, TorchBuild
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.index import IndexRequest
from torchkiln.model.lock import (
    LockedArchive,
    LockedCell,
    LockedWheel,
    OsPackage,
    artefact_json,
)
from torchkiln.model.operating_system import DEFAULT_OS, operating_system
from torchkiln.model.recipe import RECIPE
from torchkiln.util.files import write_atomic
from torchkiln.util.strict_json import json_of, read_file, text_of

__all__ = [
    "Index",
    "from_json",
    "inputs_digest",
    "load_locked",
    "lock",
    "lock_digest",
    "requirements_txt",
    "save",
    "to_json",
]

RULES = 1  # raise it when the same question would be answered by other wheels
_LIMIT = 4 << 20  # bytes; a lock has fifty thousand
_SHOWN = 5
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")  # as registries have it
_PINNED = re.compile(r"^(\S+)==(\S+) --hash=sha256:(\S+)\r?$", re.MULTILINE)


class Index(Protocol):
    """All that `lock` needs of package indexes."""

    def wheels(self, wanted: IndexRequest) -> tuple[LockedWheel, ...]:
        """The wheels that *wanted* comes to, each measured.

        :raises Unresolvable: it cannot be had.
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
    """Name every byte of *resolution*.

    The date of a previous lock goes on to hold, unless something is upgraded.

    :param bound: the packages that the matrix binds to the index `pytorch`; they go there only if the
        resolution's torch does.
    :param untrusted: the indexes that are untrusted; the lock says so if it used one.
    :raises Unresolvable: the cell is unavailable, or its packages cannot be had.
    :raises BuildFailed: the index gave another torch wheel than the recorded one.
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
            keep=tuple(one for one in versions.kept.items() if one[0] not in by_record),
            bound=bound if build.source is Source.PYTORCH and not known else (),
            known=known,
        )
    )
    asked = {wheel.index for wheel in wheels if wheel.name not in by_record}
    torch = _check(build, cell.torch, wheels)
    if record.torch and torch.index not in untrusted:
        _check_record(torch, record.torch)
    locked = LockedCell(
        resolution=resolution,
        wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        base=system.base,
        as_of=date,
        epoch=epoch_of(date),
        inputs=inputs_digest(resolution, bound),
        layers=(),
        untrusted=bool(asked & {*untrusted}),
        by_record=by_record,
        tools=system.tools,
        archives=_archives(resolution, system.archives),
    )
    if previous and previous.wheels == locked.wheels and _interpreter(previous) == _interpreter(locked):
        return replace(locked, layers=previous.layers)
    return locked


def epoch_of(date: str) -> int:
    """The seconds that stand for an ISO date in an image: its midnight, UTC."""
    return int(datetime.fromisoformat(date).replace(tzinfo=timezone.utc).timestamp())


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _archives(resolution: Resolution, known: Collection[LockedArchive]) -> tuple[LockedArchive, ...]:
    """Those that the resolution means, of which it holds a digest."""
    toolkit = resolution.toolkit
    if toolkit is None or not toolkit.release:
        return ()
    if digest_of(known) != toolkit.archives:
        raise Unresolvable(
            f"the archives of CUDA {toolkit.release} are not those that the cell was resolved with",
            hint="hand `lock` the archives of the facts that `resolve` had",
        )
    return tuple(sorted(known, key=lambda one: one.component))


def _interpreter(locked: LockedCell) -> tuple[OsPackage, ...]:
    """The packages of the base's Python: with the wheels they decide the wheel layers, byte-code included."""
    return tuple(one for one in locked.base.packages if re.match(r"(lib)?python3", one.name))


def inputs_digest(resolution: Resolution, bound: tuple[str, ...]) -> Digest:
    """The digest of what the matrix and the facts say about this one cell, and of our own rules.

    Not of those files' bytes: a new torch release must not make the other cells' locks stale.
    """
    build = resolution.build
    inputs = {
        "rules": RULES,
        "recipe": RECIPE,
        "resolution": plain(resolution),
        "bound": bound if build and build.source is Source.PYTORCH else (),
        "glibc": operating_system(resolution.cell.os).glibc,
    }
    canonical = json.dumps(inputs, sort_keys=True, separators=(",", ":")).encode()
    return parse_digest("sha256:" + hashlib.sha256(canonical).hexdigest())


def how_to_lock(cell: Cell, *, by_record: bool = False) -> str:
    """The command that locks *cell*; *by_record*: by what is on public record."""
    words = ["torchkiln lock", f"--torch {cell.torch}", f"--cuda {cell.cuda}"]
    words += [f"--flavor {cell.flavor}"] if cell.flavor != "runtime" else []
    words += [f"--os {cell.os}"] if cell.os != DEFAULT_OS else []
    words += [f"--with {','.join(cell.components)}"] if cell.components else []
    words += ["--public-record"] if by_record else []
    return " ".join(words)


def load_locked(images: Path, tag: str, *, how: str = "torchkiln lock") -> LockedCell:
    """The committed lock of *tag* under the folder *images*; *how*: what would make one.

    :raises Stale: there is none, it is another image's, or it is not as `lock` wrote it; then also which of
        the files beside it disagree.
    """
    path = images / tag / "lock.json"
    if not _TAG.fullmatch(tag):
        raise ConfigError(f"{tag[:200]!r} is not the tag of an image", hint="`list` shows the tags there are")
    try:
        data = read_file(path, _LIMIT)
    except FileNotFoundError:
        raise Stale(f"{path} is not there: this cell was not locked yet", hint=f"run: {how}") from None
    except OSError as error:
        raise Stale(f"{path}: {error.strerror}", hint=how_to_mend(None, str(path))) from None
    document = parse(data, where=str(path))
    hint = how_to_mend(document, str(path))
    locked = locked_of(document)
    if told := broken_seal(document):
        beside = (f"  {line}" for line in disagreements(images, path.parent, locked))
        raise Stale("\n".join((f"{path}: {told}", *beside)), hint=hint)
    if (own := tag_of(locked.resolution)) != tag:
        raise Stale(f"{path}: is the lock of {own}, not of {tag}", hint=how_to_mend(None, str(path)))
    return locked


def disagreements(images: Path, folder: Path, locked: LockedCell) -> tuple[str, ...]:
    """Where what was made with the lock in *folder* tells something else than *locked*, a phrase each."""
    found = []
    wheels = {wheel.name: (wheel.version, wheel.sha256) for wheel in locked.wheels}
    with suppress(OSError, ValueError):
        lines = _PINNED.findall(text_of(read_file(folder / "requirements.txt", _LIMIT)))
        pinned = {name: (version, sha256) for name, version, sha256 in lines}
        other = sorted(n for n in wheels.keys() | pinned.keys() if wheels.get(n) != pinned.get(n))
        more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
        if other:
            found.append(f"requirements.txt disagrees on {', '.join(other[:_SHOWN])}{more}")
    with suppress(OSError, ValueError, AttributeError):
        rendered = json_of(read_file(folder / "image.json", _LIMIT)).get("lock")
        if rendered != lock_digest(locked):
            found.append("image.json and the Dockerfile were rendered from another lock")
    for artefact, file in ((locked.base, "base"), (locked.tools, locked.resolution.tools)):
        name = f"base-{locked.base.os}/{file}.json"
        with suppress(OSError, ValueError, AttributeError):
            beside = json_of(read_file(images / name, _LIMIT)) if artefact else {}
            told = artefact_json(artefact) if artefact else {}
            if other := sorted(key for key, value in told.items() if beside.get(key) != value):
                found.append(f"{name} disagrees on {', '.join(other)}")
    return tuple(found)


def save(images: Path, locked: LockedCell) -> Path:
    """Write both files of *locked*; returns their folder."""
    folder = images / tag_of(locked.resolution)
    write_atomic(folder / "requirements.txt", requirements_txt(locked))
    write_atomic(folder / "lock.json", to_json(locked))
    return folder


def _check_record(torch: LockedWheel, recorded: str) -> None:
    """An index that nobody here can see is believed no further than the record goes."""
    if torch.sha256 != recorded:
        raise BuildFailed(
            f"{torch.filename} has sha256 {torch.sha256} on this index; on public record it has {recorded}",
            hint="take another mirror of PyTorch's own index; one made for a test has untrusted+ before"
            " its address; a record that is wrong is mended in compat.yaml, under index_sha256",
        )


def _check(build: TorchBuild, release: str, wheels: tuple[LockedWheel, ...]) -> LockedWheel:
    """Torch's wheel: the index must have given the one that was resolved, not one that a resolver found."""
    torch = next((wheel for wheel in wheels if wheel.name == "torch"), None)
    found = Version(torch.version) if torch else None
    wanted = Version(build.version) if build.source is Source.PYTORCH else Version(release)
    if torch is None or found != wanted or torch.index is not build.source:
        raise Unresolvable(
            f"torch {wanted} was asked of {build.source.value}, which gave {found or 'none'}",
            hint="look at the requirements in matrix.yaml and at the index's pages",
        )
    return torch
