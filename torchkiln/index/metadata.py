"""A wheel on an index → the METADATA that a lock is resolved by, and whether it is the wheel's own.

An index may serve METADATA beside a wheel (PEP 658), which is quick. Nothing ties it to the wheel but the
index's word, so what is locked by it is held against the wheel itself.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from torchkiln.errors import BuildFailed
from torchkiln.index.download import Downloads
from torchkiln.index.listing import Listed, url_of
from torchkiln.index.pages import Pages
from torchkiln.index.remote_wheel import NoRanges, metadata_bytes
from torchkiln.index.session import get, refused
from torchkiln.index.settings import redact
from torchkiln.model.cell import Source
from torchkiln.model.index import METADATA_LIMIT, FileAt, differing, read_metadata
from torchkiln.model.lock import LockedWheel
from torchkiln.util.http.redirects import unsafe

_KIND = "metadata"  # of records: the wheel's own
_WHOLE = 4 << 30  # bytes of a wheel that is fetched whole for its METADATA
_AGAIN = "use another index; nothing was locked"


class Metadata:
    """METADATA of wheels; the wheel's own is kept. Safe to use from several threads."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages

    def for_resolver(self, file: Listed, base: str, index: Source) -> bytes:
        """METADATA of *file*, whose address is relative to *base*: what lies beside it, else its own.

        :raises BuildFailed: it is not to be had, or not as it must be.
        """
        at = located(file, base)
        if (kept := self._kept(at)) is not None:
            return kept
        if file.metadata is None:
            try:
                return self.own(at)
            except NoRanges:
                return self._of_whole(at, index)
        data = self._beside(at, file.metadata)
        self._pages.store.put_record("beside", _key(at), {"index": index.value, "metadata": data.decode()})
        return data

    def own(self, at: FileAt) -> bytes:
        """METADATA as it stands in the wheel *at*.

        :raises NoRanges: the server does not answer range requests.
        :raises BuildFailed: it is not to be had, or not as it must be.
        """
        if (kept := self._kept(at)) is not None:
            return kept
        data = metadata_bytes(self._pages.session, at)
        _demand_readable(at.filename, data)
        self._pages.store.put_record(_KIND, _key(at), {"metadata": data.decode()})
        return data

    def demand_same(self, at: FileAt) -> None:
        """What the lock was resolved by is what the wheel *at* says.

        :raises BuildFailed: it is not.
        """
        told = self._pages.store.record("beside", _key(at))
        if told is None:
            return
        try:
            own = self.own(at)
        except NoRanges:  # then the build finds it, when it has the wheel
            return
        if other := differing(read_metadata(str(told["metadata"]).encode()), read_metadata(own)):
            raise BuildFailed(
                f"{at.filename}: the metadata file that the index serves beside this wheel is not the wheel's"
                f" own METADATA: {', '.join(other)} differ",
                hint=_AGAIN,
            )

    def _of_whole(self, at: FileAt, index: Source) -> bytes:
        """By fetching all of it, which a build needs anyway."""
        size = self._pages.measure(at).size or 0
        if size > _WHOLE:
            raise BuildFailed(
                f"{at.filename}: {size} bytes, and the server does not answer ranges", hint=_AGAIN
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
        return self.own(replace(at, url=path.as_uri(), size=size))

    def _kept(self, at: FileAt) -> bytes | None:
        found = self._pages.store.record(_KIND, _key(at))
        text = found.get("metadata") if found else None
        return text.encode() if isinstance(text, str) else None

    def _beside(self, at: FileAt, sha256: str) -> bytes:
        url = f"{at.url}.metadata"
        answer, data = get(self._pages.session, url, METADATA_LIMIT, headers={"Accept-Encoding": "identity"})
        if answer.status_code != 200:
            raise refused(url, answer.status_code)
        if sha256 and (found := hashlib.sha256(data).hexdigest()) != sha256:
            raise BuildFailed(
                f"{redact(url)}: checksum mismatch: its sha256 is {found}, the index's page says {sha256}",
                hint=_AGAIN,
            )
        _demand_readable(f"{at.filename}.metadata", data)
        return data


def located(file: Listed, base: str) -> FileAt:
    """*file* with its whole address.

    :raises BuildFailed: it is an address that is not followed.
    """
    url = url_of(base, file)
    if why := unsafe(url, base):
        raise BuildFailed(
            f"the address of {file.filename} is not followed: {why}",
            hint="the index, or something on the way to it, is at fault; try another one",
        )
    return FileAt(filename=file.filename, url=url, size=file.size, sha256=file.sha256)


def _demand_readable(filename: str, data: bytes) -> None:
    try:
        read_metadata(data)
    except ValueError as error:
        raise BuildFailed(f"{filename}: {error}", hint="the index is at fault; try another one") from error


def _key(at: FileAt) -> str:
    """By content and host: what another index says of the same hash does not count here."""
    host = urlsplit(at.url).netloc
    return hashlib.sha256(f"{host}\n{at.filename}\n{at.sha256}".encode()).hexdigest()
