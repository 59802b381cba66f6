"""Provides .deb files: from the cache, the distribution's archive, or its snapshot service.

The hashes are in the lock, so no source need be trusted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from torchkiln.base.archive import deb_path
from torchkiln.base.plain_tree import STREAMS
from torchkiln.base.recipe import SNAPSHOT, recipe, sources_of
from torchkiln.errors import BadWheel, BuildFailed, ConfigError
from torchkiln.index.download import Downloader
from torchkiln.index.session import IndexSession
from torchkiln.index.settings import index_settings, with_address
from torchkiln.index.verified import fetch_verified, verify
from torchkiln.model.index import FileAt
from torchkiln.model.lock import DebFile
from torchkiln.model.operating_system import operating_system
from torchkiln.model.progress import Transfer
from torchkiln.store.store import Store
from torchkiln.util.http.retry import GivenUp
from torchkiln.vault.places import vaults_of
from torchkiln.vault.sources import digest_of_file, read_from

OFF = "off"
_NAMED = 10  # packages in a message
_LINE = re.compile(r"^deb (?:\[[^\]]*\] )?(?P<address>\S+) (?P<suite>\S+) ", re.MULTILINE)
_TIME = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, kw_only=True, slots=True)
class DebSource:
    """An archive, or a snapshot of one: the addresses of its two parts; "" if unknown."""

    name: str  # in messages
    main: str
    security: str
    alone: bool = False  # whether it gets one request at a time

    def url(self, deb: DebFile) -> str:
        """The URL of *deb*; "" if it is unknown."""
        address = self.security if deb.security else self.main
        return f"{address}/{deb.path}" if address and deb.path else ""


def deb_sources(
    os_name: str, lists: str, dates: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[DebSource, ...]:
    """The sources of the packages of a base, in the order in which they are asked.

    :param lists: the base's sources.list, with the addresses that *environ* does not set.
    :param dates: of the suites from which it was made.
    :raises ConfigError: a mirror is not a URL.
    """
    mirrors = sources_of(recipe(os_name), environ)
    named = {_is_security(line["suite"]): line["address"] for line in _LINE.finditer(lists)}
    archive = DebSource(
        name="archive",
        main=_url(mirrors.mirror or named.get(False, "")),
        security=_url(mirrors.security_mirror or named.get(True, "")),
    )
    return (archive, *_snapshots(os_name, dates, environ.get(SNAPSHOT, "")))


def _snapshots(os_name: str, dates: Mapping[str, str], setting: str) -> Iterator[DebSource]:
    """The service imports an archive some hours after its date, so the next day is asked, too."""
    if setting not in ("", OFF) and not re.fullmatch(r"(https?|file)://\S+", setting):
        raise ConfigError(f"{SNAPSHOT} is not a valid URL of an archive: {setting!r}")
    system = operating_system(os_name)
    newest = ["", ""]  # of the main and the security archive
    for suite, date in dates.items():
        newest[_is_security(suite)] = max(newest[_is_security(suite)], date)
    if setting == OFF or not all(newest):
        return
    for days in (0, 1):
        try:
            main, security = (
                f"{setting or system.snapshot}/{part}{_later(date, days)}"
                for part, date in zip(system.snapshot_parts, newest, strict=True)
            )
        except (ValueError, OverflowError):  # a lock can have any digits
            return
        yield DebSource(name="snapshot", main=main, security=security, alone=True)


def _later(date: str, days: int) -> str:
    return (datetime.strptime(date, _TIME) + timedelta(days=days)).strftime(_TIME)


class Debs:
    """The packages of one base; thread-safe. A source that cannot be reached is not asked again."""

    def __init__(self, sources: Sequence[DebSource], store: Store, environ: Mapping[str, str]) -> None:
        self._sources, self._store, self._environ = sources, store, environ
        self._opened: dict[DebSource, _Downloads] = {}
        self._vaults = vaults_of(environ)
        self._opening, self._lost = threading.Lock(), dict[DebSource, str]()

    def path(self, deb: DebFile) -> Path:
        """The path of *deb* in the cache, downloaded and verified if it is not there.

        :raises BuildFailed: no source has it; the message names the sources.
        """
        path = self._store.root / deb_path(deb)
        if path.is_file():
            try:
                verify(deb, path)
                self._store.touch(path)
                return path
            except BadWheel:
                path.unlink(missing_ok=True)
        part = self._store.temporary("deb")
        if (reasons := read_from(self._vaults, digest_of_file(deb), deb.size, part, lambda _: None)) is None:
            return self._store.adopt(part, path)
        tried = [*reasons]
        for source in self._sources:
            reason = self._lost.get(source, "")
            if source.url(deb) and not reason:
                try:
                    return self._fetched(deb, source, path)
                except (BadWheel, BuildFailed) as error:
                    reason = error.message
                    if isinstance(error.__cause__, GivenUp):
                        self._lost[source] = reason
            unknown = "address unknown" if deb.path else "the lock has no path of it"
            tried.append(f"{source.name}: {reason or unknown}")
        lines = (f"{deb.filename} (sha256 {deb.sha256}) was not found:", *(f"  {line}" for line in tried))
        raise BuildFailed("\n".join(lines))

    def lacking(self, debs: Sequence[DebFile]) -> str:
        """The packages that cannot be had, each with the reasons; "" if there are none."""

        def reason(deb: DebFile) -> str:
            try:
                self.path(deb)
            except BuildFailed as error:
                return error.message
            return ""

        with ThreadPoolExecutor(STREAMS) as pool:
            reasons = [text for text in pool.map(reason, debs) if text]
        count = f"{len(reasons)} of {len(debs)} locked packages were not found"
        return "\n".join((count, *reasons[:_NAMED], *(("…",) if reasons[_NAMED:] else ()))) if reasons else ""

    def _fetched(self, deb: DebFile, source: DebSource, path: Path) -> Path:
        with self._opening:
            if source not in self._opened:
                self._opened[source] = _Downloads(source, self._environ)
            download = self._opened[source]
        part = self._store.temporary("deb")
        try:
            with self._store.writable(), download.asking if source.alone else nullcontext():
                fetch_verified(download.fetch, deb, part, Transfer())
                return self._store.adopt(part, path)
        finally:
            part.unlink(missing_ok=True)


class _Downloads(Downloader[DebFile]):
    """Downloads from one source."""

    def __init__(self, source: DebSource, environ: Mapping[str, str]) -> None:
        settings, addresses = index_settings(environ), [source.main, source.security]
        for number, address in enumerate(addresses):
            if address.startswith("http"):
                settings, addresses[number] = with_address(settings, address, source.name)
        super().__init__(IndexSession(settings))
        self._source = replace(source, main=addresses[0], security=addresses[1])
        self.asking = threading.Lock()

    def _locate(self, file: DebFile, *, fresh: bool) -> FileAt:
        url = self._source.url(file)
        return FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256)


def _is_security(suite: str) -> bool:
    return suite.endswith("-security")


def _url(mirror: str) -> str:
    """*mirror* as an address to which a path is appended; apt's "copy:" is "file:"."""
    return re.sub("^copy:", "file:", mirror).rstrip("/")
