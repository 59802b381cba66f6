"""Reads METADATA of wheels on an index; compares the PEP 658 file with METADATA in the wheel.

An index may serve METADATA in a file beside the wheel (PEP 658), which is fast to read. The lock's
hash does not cover this file. So before a wheel is locked, the file is compared with METADATA in the wheel.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed
from torchkiln.index.download import Downloads
from torchkiln.index.listing import ListedFile, url_of
from torchkiln.index.pages import Pages
from torchkiln.index.remote_wheel import NoRanges, file_in, metadata_bytes
from torchkiln.index.session import get, http_error
from torchkiln.index.settings import redact
from torchkiln.model.cell import Source
from torchkiln.model.index import METADATA_LIMIT, FileAt, differing, read_metadata
from torchkiln.model.lock import LockedWheel
from torchkiln.util.http.redirects import unsafe

_KIND = "metadata"  # of cache records with METADATA read from wheels
_LIBRARIES = "libraries"  # of cache records with the names of a wheel's libraries
_LIBRARY = re.compile(rb"^((?:[A-Za-z0-9_]+/)+lib/[A-Za-z0-9_-]+\.so(?:\.[0-9]+)*),", re.MULTILINE)
_RECORD_LIMIT = 4 << 20  # bytes
_WHOLE = 4 << 30  # bytes of a wheel that may be downloaded for its METADATA or RECORD
_HINT = "use another index; nothing was locked"


class Metadata:
    """METADATA of wheels, with a cache; thread-safe."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def for_resolver(self, file: ListedFile, base: str, index: Source) -> bytes:
        """METADATA of *file*, whose link is relative to *base*: the PEP 658 file, else that in the wheel.

        :raises BuildFailed: METADATA cannot be read, or is invalid.
        """
        at = located(file, base)
        if (cached := self._cached(at)) is not None:
            return cached
        if file.metadata is None:
            try:
                return self.own(at)
            except NoRanges:
                return self.own(self._downloaded(at, index))
        data = self._beside(at, file.metadata)
        self._pages.store.put_record("beside", _key(at), {"index": index.value, "metadata": data.decode()})
        return data

    def own(self, at: FileAt) -> bytes:
        """METADATA in the wheel *at*.

        :raises NoRanges: the server does not support range requests.
        :raises BuildFailed: METADATA cannot be read, or is invalid.
        """
        if (cached := self._cached(at)) is not None:
            return cached
        data = metadata_bytes(self._pages.session, at)
        _check_metadata(at.filename, data)
        self._pages.store.put_record(_KIND, _key(at), {"metadata": data.decode()})
        return data

    def demand_same(self, at: FileAt) -> None:
        """Check that the resolver's METADATA equals that in the wheel *at*.

        :raises BuildFailed: the two differ.
        """
        beside = self._pages.store.record("beside", _key(at))
        if beside is None:
            return
        try:
            own = self.own(at)
        except NoRanges:  # the build checks it in the downloaded wheel
            return
        if fields := differing(read_metadata(str(beside["metadata"]).encode()), read_metadata(own)):
            raise BuildFailed(
                f"{at.filename}: the index's metadata file for this wheel differs from METADATA in the wheel:"
                f" {', '.join(fields)}",
                hint=_HINT,
            )

    def libraries(self, at: FileAt, index: Source) -> tuple[str, ...]:
        """The shared libraries that RECORD of the wheel *at* lists in folders called lib, sorted.

        :raises BuildFailed: RECORD cannot be read.
        """
        found = self._pages.store.record(_LIBRARIES, _key(at))
        if found is None:
            try:
                record = self._record(at)
            except NoRanges:
                record = self._record(self._downloaded(at, index))
            names = sorted(name.decode() for name in _LIBRARY.findall(record))
            self._pages.store.put_record(_LIBRARIES, _key(at), found := {"libraries": names})
        return tuple(found["libraries"])

    def _record(self, at: FileAt) -> bytes:
        path = re.compile(r"[^/]+\.dist-info/RECORD")
        if (found := file_in(self._pages.session, at, path, _RECORD_LIMIT)) is None:
            raise BuildFailed(f"{at.filename}: RECORD is missing", hint=_HINT)
        return found

    def _downloaded(self, at: FileAt, index: Source) -> FileAt:
        """The downloaded wheel, which a build needs anyway."""
        size = self._pages.measure(at).size or 0
        if size > _WHOLE:
            raise BuildFailed(
                f"{at.filename}: {size} bytes, and the server does not support range requests", hint=_HINT
            )
        project, version = at.filename.split("-")[:2]
        wheel = LockedWheel(
            name=canonicalize_name(project),
            version=version,
            filename=at.filename,
            sha256=at.sha256,
            size=size,
            index=index,
        )
        path = Downloads(self._pages).fetch_wheel(wheel, self._pages.store)
        return replace(at, url=path.as_uri(), size=size)

    def _cached(self, at: FileAt) -> bytes | None:
        found = self._pages.store.record(_KIND, _key(at))
        text = found.get("metadata") if found else None
        return text.encode() if isinstance(text, str) else None

    def _beside(self, at: FileAt, sha256: str) -> bytes:
        url = f"{at.url}.metadata"
        response, data = get(
            self._pages.session, url, METADATA_LIMIT, headers={"Accept-Encoding": "identity"}
        )
        if response.status_code != 200:
            raise http_error(url, response.status_code)
        if sha256 and (found := hashlib.sha256(data).hexdigest()) != sha256:
            raise BuildFailed(
                f"{redact(url)}: checksum mismatch: sha256 {found}, {sha256} on the index's page", hint=_HINT
            )
        _check_metadata(f"{at.filename}.metadata", data)
        return data


def located(file: ListedFile, base: str) -> FileAt:
    """*file* with its absolute URL.

    :raises BuildFailed: the link is unsafe.
    """
    url = url_of(base, file)
    if why := unsafe(url, base):
        raise BuildFailed(
            f"unsafe link to {file.filename}: {why}",
            hint="the index, or a proxy in front of it, is at fault; use another index",
        )
    return FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256)


def _check_metadata(filename: str, data: bytes) -> None:
    try:
        read_metadata(data)
    except ValueError as error:
        raise BuildFailed(f"{filename}: {error}", hint="the index is at fault; use another one") from error


def _key(at: FileAt) -> str:
    """The key of a cache record. It includes the host: one index cannot set the metadata of another."""
    host = urlsplit(at.url).netloc
    return hashlib.sha256(f"{host}\n{at.filename}\n{at.sha256}".encode()).hexdigest()
