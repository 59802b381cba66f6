"""Records the .deb file of each package of a base, from the signed indexes of the archive.

apt has checked the signatures of the indexes in its lists. A base has no lists, so the files are recorded
when it is built: in the store, and beside its lock in ``images/base-<os>/debs.json``. The files of the devel
tools are in ``devel-debs.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

from torchkiln.base.debs import keep
from torchkiln.errors import BuildFailed, ConfigError
from torchkiln.model.apt import LockedApt
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.lock import BaseFiles, DebFile, LockedBase, LockedCell, LockedTools, OsPackage
from torchkiln.store.store import Store
from torchkiln.util import codec
from torchkiln.util.deb822 import paragraphs
from torchkiln.util.files import write_atomic
from torchkiln.util.schema import sentences, shipped
from torchkiln.util.strict_json import json_of, read_file

SCHEMA = 1
_RECORDS = "debs"
_LIMIT = 4 << 20  # maximum bytes of debs.json, which has about 60,000
_HEX = re.compile(r"[0-9a-f]{64}")
_RELEASE = re.compile(r"^(Codename|Date): (.+)$", re.MULTILINE)


def read_lists(lists: Path, packages: Iterable[OsPackage]) -> tuple[DebFile, ...]:
    """The .deb files of *packages*, sorted by name, from the Packages files of apt's folder *lists*.

    :raises BuildFailed: an index cannot be read.
    """
    wanted = {(package.name, package.version) for package in packages}
    found: dict[tuple[str, str], DebFile] = {}
    for path in sorted(lists.glob("*_Packages")):
        try:
            security = "-security_" in path.name
            with path.open(encoding="utf-8", errors="replace") as lines:
                for fields in paragraphs(lines):
                    key = (fields.get("package", ""), fields.get("version", ""))
                    if key in wanted and _HEX.fullmatch(fields.get("sha256", "")):
                        found.setdefault(key, _deb(fields, security=security))
        except (OSError, ValueError) as error:
            raise BuildFailed(
                f"the package index {path.name} cannot be read: {error}", hint="build the base again"
            ) from error
    return tuple(found[key] for key in sorted(found))


def read_dates(lists: Path) -> dict[str, str]:
    """The time of each suite in apt's folder *lists*, "20261128T083012Z", by the suite's code name."""
    found = {}
    for path in sorted(lists.glob("*_InRelease")):
        fields = dict(_RELEASE.findall(path.read_text(encoding="utf-8", errors="replace")))
        if "Codename" in fields and "Date" in fields:
            with suppress(ValueError):
                when = parsedate_to_datetime(fields["Date"])
                found[fields["Codename"]] = f"{when:%Y%m%dT%H%M%SZ}"
    return found


def record_packages(
    packages: Iterable[OsPackage], blob: Digest, lists: Path, debs: Path, store: Store
) -> tuple[DebFile, ...]:
    """Keep the files of *packages*, of which *blob* was made, from apt's folders *lists* and *debs*."""
    files = BaseFiles(base=blob, debs=read_lists(lists, packages), dates=read_dates(lists))
    keep(debs, files.debs, store)
    record_files(store, files)
    return files.debs


def files_path(images: Path, found: LockedBase | LockedTools) -> Path:
    """The path, below *images*, of the list of the .deb files of *found*."""
    name = f"{found.name}-debs" if isinstance(found, LockedTools) else "debs"
    return images / f"base-{found.os}" / f"{name}.json"


def files_of(images: Path, locked: LockedCell, store: Store) -> BaseFiles | None:
    """The recorded .deb files of the base and the tools of *locked*, in one list; None without a record.

    :raises ConfigError: a committed file is malformed.
    """
    files = read_files(images, locked.base, store)
    tools = read_files(images, locked.tools, store) if locked.tools else None
    if tools is None:
        return files
    debs = sorted((*(files.debs if files else ()), *tools.debs), key=lambda deb: (deb.name, deb.version))
    return BaseFiles(base=locked.base.digest, debs=tuple(debs))


def to_json(files: BaseFiles) -> bytes:
    """*files* as the bytes of debs.json, with a line for each file."""
    debs = ",\n".join(f"    {json.dumps(codec.plain(deb))}" for deb in files.debs)
    inner = f"[\n{debs}\n  ]" if debs else "[]"
    dates = f'  "dates": {json.dumps(files.dates)},\n' if files.dates else ""
    return f'{{\n  "schema": {SCHEMA},\n  "base": "{files.base}",\n{dates}  "debs": {inner}\n}}\n'.encode()


def from_json(data: bytes, *, where: str = "debs.json") -> BaseFiles:
    """The inverse of `to_json`.

    :raises ConfigError: *data* is malformed; the message names *where*.
    """
    hint = "write it again: torchkiln base build --lock"
    try:
        value = json_of(data)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=hint) from error
    if faults := sentences(value, shipped("debs"), where):
        raise ConfigError.of(faults, hint=hint)
    debs = tuple(DebFile(**deb) for deb in value["debs"])
    return BaseFiles(base=parse_digest(value["base"]), debs=debs, dates=value.get("dates", {}))


def record_files(store: Store, files: BaseFiles) -> None:
    """Record *files* in *store*."""
    store.put_record(_RECORDS, files.base.removeprefix("sha256:"), json.loads(to_json(files)))


def read_files(
    images: Path | None, found: LockedBase | LockedTools | LockedApt, store: Store
) -> BaseFiles | None:
    """The recorded files of *found*, beside its lock in *images* or in *store*; None without a record.

    A project's lock has those of its OS packages.

    :raises ConfigError: the committed file is malformed.
    """
    if isinstance(found, LockedApt):
        return BaseFiles(base=found.digest, debs=found.debs, dates=found.dates)
    path = files_path(images or Path(), found)
    data = read_committed(path, _LIMIT) if images else None
    if data is not None and (committed := from_json(data, where=str(path))).base == found.digest:
        return committed
    record = store.record(_RECORDS, found.digest.removeprefix("sha256:"))
    try:
        return from_json(json.dumps(record).encode()) if record else None
    except ConfigError:  # written by another version of torchkiln
        return None


def read_committed(path: Path, limit: int) -> bytes | None:
    """The file *path* beside a lock; None if there is none.

    :raises ConfigError: it cannot be read.
    """
    try:
        return read_file(path, limit, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=f"restore it: git checkout -- {path}") from error


def write_files(images: Path, found: LockedBase | LockedTools, files: BaseFiles) -> Path:
    """Write *files* beside the lock of *found*."""
    path = files_path(images, found)
    write_atomic(path, to_json(files))
    return path


def commit_files(images: Path, found: LockedBase | LockedTools, store: Store) -> None:
    """Write the list of the .deb files of *found*, if it is recorded, beside its lock."""
    if files := read_files(images, found, store):
        write_files(images, found, files)


def _deb(fields: dict[str, str], *, security: bool) -> DebFile:
    return DebFile(
        name=fields["package"],
        version=fields["version"],
        architecture=fields.get("architecture", ""),
        source=fields.get("source", fields["package"]),
        size=int(fields.get("size", "0")),
        sha256=fields["sha256"],
        path=fields.get("filename"),
        security=security,
    )
