"""Reads METADATA and RECORD of wheels on an index.

An index may also serve METADATA in a file beside the wheel (PEP 658). That file is not read: the lock's hash
does not cover it, and if it differed from METADATA in the wheel, it would change the resolution.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed
from torchkiln.index.download import Downloads
from torchkiln.index.pages import Pages
from torchkiln.index.remote_wheel import NoRanges, file_in
from torchkiln.model.cell import Source
from torchkiln.model.index import METADATA_LIMIT, FileAt, read_metadata
from torchkiln.model.lock import LockedWheel

_KIND = "metadata"  # of cache records with METADATA read from wheels
_LIBRARIES = "libraries"  # of cache records with the names of a wheel's libraries
_LIBRARY = re.compile(rb"^((?:[A-Za-z0-9_]+/)+lib/[A-Za-z0-9_-]+\.so(?:\.[0-9]+)*),", re.MULTILINE)
_RECORD_LIMIT = 4 << 20  # bytes
_WHOLE = 4 << 30  # bytes of a wheel that may be downloaded for its METADATA or RECORD
_HINT = "the file on the index is malformed; use another index"


class Metadata:
    """METADATA of wheels, with a cache; thread-safe."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def of(self, at: FileAt, index: Source) -> bytes:
        """METADATA in the wheel *at*, which is downloaded if the server does not support range requests.

        :raises BuildFailed: METADATA cannot be read, or is invalid.
        """
        found = self._pages.store.record(_KIND, _key(at))
        if found and isinstance(text := found.get("metadata"), str):
            return text.encode()
        data = self._file(at, index, "METADATA", METADATA_LIMIT)
        try:
            read_metadata(data)
        except ValueError as error:
            raise BuildFailed(f"{at.filename}: invalid wheel: {error}", hint=_HINT) from error
        self._pages.store.put_record(_KIND, _key(at), {"metadata": data.decode()})
        return data

    def libraries(self, at: FileAt, index: Source) -> tuple[str, ...]:
        """The shared libraries that RECORD of the wheel *at* lists in folders called lib, sorted.

        :raises BuildFailed: RECORD cannot be read.
        """
        found = self._pages.store.record(_LIBRARIES, _key(at))
        if found is None:
            record = self._file(at, index, "RECORD", _RECORD_LIMIT)
            names = sorted(name.decode() for name in _LIBRARY.findall(record))
            self._pages.store.put_record(_LIBRARIES, _key(at), found := {"libraries": names})
        return tuple(found["libraries"])

    def _file(self, at: FileAt, index: Source, name: str, limit: int) -> bytes:
        """The file *name* in the folder .dist-info of the wheel *at*; *limit* is in bytes."""
        session, path = self._pages.session, re.compile(rf"[^/]+\.dist-info/{name}")
        try:
            found = file_in(session, at, path, limit)
        except NoRanges:
            found = file_in(session, self._downloaded(at, index), path, limit)
        if found is None:
            raise BuildFailed(f"{at.filename}: invalid wheel: no {name}", hint=_HINT)
        return found

    def _downloaded(self, at: FileAt, index: Source) -> FileAt:
        """The downloaded wheel, which a build needs anyway."""
        size = self._pages.measure(at).size or 0
        if size > _WHOLE:
            raise BuildFailed(
                f"{at.filename}: {size} bytes, and the server does not support range requests",
                hint="use another index",
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


def _key(at: FileAt) -> str:
    """The key of a cache record. It includes the host: one index cannot set the metadata of another."""
    host = urlsplit(at.url).netloc
    return hashlib.sha256(f"{host}\n{at.filename}\n{at.sha256}".encode()).hexdigest()
