"""Records the .deb file of each package of a base, from the signed indexes of the archive; keeps the files.

apt has checked the signatures of the indexes in its lists. A base has no lists, so the files are recorded
when it is built: in the store, and beside its lock in ``images/base-<os>/debs.json``. The files of the devel
tools are in ``devel-debs.json``. The cache keeps the files themselves by their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

from torchkiln.base.plain_tree import open_deb
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
    return images / folder_of(found) / f"{name}.json"


def folder_of(found: LockedBase | LockedTools) -> str:
    """The name of the folder of the lock of *found*."""
    return f"base-{found.system if isinstance(found, LockedBase) else found.os}"


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


FOLDER = "debs"  # of the cache
RECORDS = "apt"  # the cache's records of layers that were made from .deb files
_INDEX = "Packages"
_PIECE = 1 << 20


def deb_path(deb: DebFile) -> str:
    """The path of the file in the cache."""
    return f"{FOLDER}/{deb.sha256}/{deb.filename}"


def missing(debs: Iterable[DebFile], store: Store) -> tuple[DebFile, ...]:
    return tuple(deb for deb in debs if _size(store.root / deb_path(deb)) != deb.size)


def keep(folder: Path, debs: Iterable[DebFile], store: Store) -> None:
    """Copy the .deb files in *folder* whose SHA-256 is that of one of *debs* into *store*."""
    wanted = {deb.sha256: deb for deb in missing(debs, store)}
    for path in sorted(folder.glob("*.deb")):
        temporary = store.temporary("deb")
        try:
            with store.writable():
                shutil.copyfile(path, temporary)
                if deb := wanted.get(sha256_of(temporary)):
                    store.adopt(temporary, store.root / deb_path(deb))
        finally:
            temporary.unlink(missing_ok=True)


def write_repository(folder: Path, debs: Iterable[DebFile], store: Store) -> None:
    """Create *folder* with copies of the files of *debs* in *store*; apt can install the packages from it.

    :raises BuildFailed: a file in the cache is damaged or malformed; that file is deleted.
    :raises OSError: the disk is full.
    """
    folder.mkdir()
    folder.chmod(0o755)  # regardless of the umask: apt reads it as another user
    stanzas = []
    for deb in debs:
        kept, name = store.root / deb_path(deb), f"{deb.sha256}.deb"
        copy = Path(shutil.copyfile(kept, folder / name))
        copy.chmod(0o644)
        try:
            with open_deb(copy, deb) as (control, _):
                fields = control["control"].data.decode(errors="replace").rstrip("\n")
        except BuildFailed as error:
            kept.unlink(missing_ok=True)
            raise BuildFailed(
                f"{error.message}; it is deleted from the cache", hint="run it again"
            ) from error
        store.touch(kept)
        stanzas.append(f"{fields}\nFilename: ./{name}\nSize: {deb.size}\nSHA256: {deb.sha256}\n")
    index = folder / _INDEX
    index.write_text("\n".join(stanzas))
    index.chmod(0o644)


def sha256_of(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
