"""Repository → what is in it: manifests, blobs, tags. Each byte is held against its digest as it arrives."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

from requests.utils import parse_header_links

from torchkiln.errors import ConfigError, RegistryError, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.oci.documents import VALUES
from torchkiln.oci.image import MANIFEST_TYPE, digest_of
from torchkiln.oci.layout import INDEX_TYPE
from torchkiln.registry.answer import Answer
from torchkiln.registry.reference import Repository, is_tag
from torchkiln.registry.request import LIMIT, HttpRequest
from torchkiln.registry.session import READS, Registry
from torchkiln.registry.tokens import Scopes
from torchkiln.util.files import replacing
from torchkiln.util.http.retry import GivenUp, Progress, retry
from torchkiln.util.schema import shown as told_as
from torchkiln.util.strict_json import json_of

_DOCKER = "application/vnd.docker.distribution.manifest."
_ACCEPT = ", ".join((MANIFEST_TYPE, INDEX_TYPE, f"{_DOCKER}v2+json", f"{_DOCKER}list.v2+json"))
_PROGRESS = 64 << 10  # bytes that an attempt must bring to count as progress
_MOST_PAGES = 200
_MOST_TAGS = 5000
_LINK = 4 << 10  # characters of a Link header
_LIST = 48 << 20  # bytes of a list of referrers, with all its pages
_DAMAGED = "the registry, or what lies before it, gave other bytes than it names; nothing of it was kept"


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A manifest or an index, as it was given, its digest computed here."""

    digest: Digest
    media_type: str
    data: bytes = field(repr=False)

    @property
    def told(self) -> dict[str, Any]:
        """As plain values.

        :raises VerificationFailed: it is no JSON object.
        """
        try:
            found = json_of(self.data, values=VALUES)
        except ValueError as error:
            raise VerificationFailed(f"manifest {self.digest[:19]}: {error}", hint=_DAMAGED) from None
        if not isinstance(found, dict):
            raise VerificationFailed(f"manifest {self.digest[:19]}: no JSON object", hint=_DAMAGED)
        return found


class Reading:
    """Reads one repository."""

    def __init__(self, registry: Registry, repository: Repository) -> None:
        self.registry, self.repository = registry, repository
        self._base = f"/v2/{repository.name}"
        self._scopes: Scopes = (f"repository:{repository.name}:pull",)

    def manifest(self, name: str) -> Document | None:
        """The manifest under *name*, a tag or a digest; None: there is none.

        :raises VerificationFailed: its bytes are not what its digest says.
        :raises RegistryError: the registry refuses, or cannot be reached.
        """
        answer = self._get(f"{self._base}/manifests/{name}", f"manifest {name[:40]}", {"Accept": _ACCEPT})
        if answer is None:
            return None
        found = digest_of(answer.body)
        named = name if name.startswith("sha256:") else answer.headers.get("Docker-Content-Digest", found)
        if named != found:
            raise VerificationFailed(
                f"{self.repository}: {name} is {named}, and its bytes are {found}", hint=_DAMAGED
            )
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        return Document(digest=found, media_type=kind, data=answer.body)

    def digest(self, tag: str) -> Digest | None:
        """What *tag* stands for; None: there is no such tag.

        :raises RegistryError: the registry refuses, or cannot be reached.
        """
        path, what = f"{self._base}/manifests/{tag}", f"tag {tag}"
        answer = self.registry.persist(self._request("HEAD", path, what, {"Accept": _ACCEPT}))
        if answer.status == 404:
            return None
        if answer.status == 200 and "Docker-Content-Digest" in answer.headers:
            try:
                return parse_digest(answer.headers["Docker-Content-Digest"])
            except ValueError:
                pass
        found = self.manifest(tag)  # a HEAD need not tell it
        return found.digest if found else None

    def demand(self, name: str) -> Document:
        """`manifest`, which must be there.

        :raises ConfigError: it is not; says which tags look like it.
        """
        found = self.manifest(name)
        if found is None:
            try:
                near = [tag for tag in self.tags() if tag.startswith(name[:5])][:5]
            except RegistryError:  # too many: it is only for the hint
                near = []
            hint = f"there are: {', '.join(near)}" if near else "`catalog` lists what is there"
            raise ConfigError(f"{self.repository}: there is no {name}", hint=hint)
        return found

    def tags(self) -> list[str]:
        """Every tag, in the registry's order; none where there is no such repository.

        :raises RegistryError: the registry refuses or cannot be reached; the list is not valid or too long.
        """
        what = "the list of tags"
        found: dict[str, None] = {}
        for data in self._pages(f"{self._base}/tags/list?n=1000", what, {}):
            try:
                told = json_of(data)["tags"] or []
                if not isinstance(told, list):
                    raise TypeError
                wrong = next((tag for tag in told if not is_tag(tag)), None)
            except (ValueError, LookupError, TypeError):
                raise self._no_list(what) from None
            if wrong is not None:
                raise self._no_list(f"{what}: {told_as(wrong)} is not a tag")
            found.update(dict.fromkeys(told))
            if len(found) > _MOST_TAGS:
                raise RegistryError(
                    f"{self.repository}: more than {_MOST_TAGS} tags",
                    hint="name one image by its tag or digest; or delete the tags that are not needed",
                )
        return list(found)

    def referrers(self, digest: Digest) -> list[dict[str, Any]] | None:
        """The registry's own list of what goes with *digest*, all pages; None: it keeps no such list.

        :raises RegistryError: the registry refuses or cannot be reached; the list is not valid or too long.
        """
        what, found, there = "the list of referrers", [], False
        path = f"{self._base}/referrers/{digest}"
        for data in self._pages(path, what, {"Accept": INDEX_TYPE}, _LIST):
            there = True
            found += self.listed(data, what)
        return found if there else None

    def listed(self, data: bytes, what: str) -> list[dict[str, Any]]:
        """The descriptors in an index that the registry gave; an entry that is not an object is left out.

        :raises RegistryError: it is no index.
        """
        try:
            entries = json_of(data)["manifests"]
        except (LookupError, TypeError):
            entries = None
        except ValueError as error:
            raise self._no_list(f"{what}: {error}") from None
        if not isinstance(entries, list):
            raise self._no_list(what)
        return [entry for entry in entries if isinstance(entry, dict)]

    def _pages(self, path: str, what: str, headers: dict[str, str], limit: int = 4 << 20) -> Iterator[bytes]:
        """The bodies of a list's pages, of *limit* bytes together.

        :raises RegistryError: the pages go in a circle, lead elsewhere, or do not end.
        """
        seen: set[str] = set()
        left, origin = limit, ""
        for number in range(1, _MOST_PAGES + 1):
            answer = self._get(path, what, headers, left)
            if answer is None:
                return
            yield answer.body
            links = parse_header_links(answer.headers.get("Link", "")[:_LINK])
            address = next((str(one["url"]) for one in links if one.get("rel") == "next"), None)
            if address is None:
                return
            seen |= {path, answer.url}
            left -= len(answer.body)
            path = _joined(answer.url, address)
            origin = origin or _joined(answer.url, "/")
            if path in seen or number == _MOST_PAGES or not path.startswith(origin):
                raise RegistryError(
                    f"{self.repository}: {what}: its pages go in a circle, do not end or lead elsewhere",
                    hint="the registry is at fault",
                )

    def _no_list(self, what: str) -> RegistryError:
        return RegistryError(f"{self.repository}: {what}: not valid", hint="the registry is at fault")

    def small(self, digest: Digest, limit: int) -> bytes:
        """The blob *digest*, of at most *limit* bytes.

        :raises VerificationFailed: it is longer, or not what its digest says.
        :raises RegistryError: it is not there, or the registry cannot be reached.
        """
        out = io.BytesIO()
        self.save(digest, out, limit=limit, quick=True)
        return out.getvalue()

    def fetch(self, digest: Digest, size: int, path: Path, tell: Callable[[int], None]) -> None:
        """The blob *digest* of *size* bytes into the file *path*; wrong bytes leave no file.

        :raises VerificationFailed: they are wrong.
        """
        with replacing(path) as part, part.open("w+b") as out:
            self.save(digest, out, limit=size, tell=tell)

    def save(
        self,
        digest: Digest,
        out: BinaryIO,
        *,
        limit: int,
        tell: Callable[[int], None] = lambda _: None,
        quick: bool = False,
    ) -> None:
        """The blob *digest* into *out*; a cut one goes on where it was, if the registry can.

        :param tell: hears of bytes that came, each once.
        :param quick: it is a document, and has the time of one with all attempts.
        """
        what, seen, told = f"blob {digest[:19]}", hashlib.sha256(), 0

        def take(status: int, pieces: Iterator[bytes]) -> None:
            nonlocal seen, told
            if status == 200 and out.tell():
                out.seek(0)
                out.truncate()
                seen = hashlib.sha256()
            for piece in pieces:
                if out.tell() + len(piece) > limit:
                    raise VerificationFailed(f"{what}: longer than {limit} bytes", hint=_DAMAGED)
                out.write(piece)
                seen.update(piece)
                if (more := out.tell() - told) > 0:
                    told += more
                    tell(more)

        def attempt() -> Answer:
            at = out.tell()
            headers = {"Range": f"bytes={at}-"} if at else {}
            request = self._request("GET", f"{self._base}/blobs/{digest}", what, headers)
            return self.registry.ask(replace(request, into=take, quick=quick))

        # A server that gives a byte with each attempt makes no progress.
        progress, patience = Progress(out.tell, _PROGRESS), READS if quick else math.inf
        try:
            answer = retry(attempt, sleep=self.registry.rest, max_seconds=patience, progress=progress)
        except GivenUp as error:
            raise self.registry.lost(what, str(error), error.attempts) from error
        if answer.status not in (200, 206, 416):
            raise self.registry.refused(what, answer)
        if f"sha256:{seen.hexdigest()}" != digest:
            raise VerificationFailed(
                f"{self.repository}: {what}: other bytes than its digest says", hint=_DAMAGED
            )

    def _request(self, method: str, path: str, what: str, headers: Mapping[str, str]) -> HttpRequest:
        return HttpRequest(method=method, url=path, what=what, scopes=self._scopes, headers=headers)

    def _get(self, path: str, what: str, headers: Mapping[str, str], limit: int = LIMIT) -> Answer | None:
        request = self._request("GET", path, what, headers)
        answer = self.registry.persist(replace(request, limit=max(limit, 0)))
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self.registry.refused(what, answer)
        return answer


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError:
        return ""
