"""Reads a repository: manifests, blobs, tags; pulls an image. Everything is checked against its digest."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

from requests.utils import parse_header_links

from torchkiln.errors import BuildFailed, ConfigError, RegistryError, VerificationFailed
from torchkiln.model.digest import Digest, parse_digest
from torchkiln.model.progress import Observer
from torchkiln.oci.documents import VALUES
from torchkiln.oci.image import MANIFEST_TYPE, digest_of
from torchkiln.oci.layout import ImageOnDisk, write_documents
from torchkiln.oci.platform_index import INDEX_TYPE
from torchkiln.registry.messages import LIMIT, REGISTRY_AT_FAULT, HttpRequest, HttpResponse, Scopes
from torchkiln.registry.reference import Repository, is_tag
from torchkiln.registry.session import READS, SILENCE, Registry
from torchkiln.util.files import replacing
from torchkiln.util.http.retry import GivenUp, Progress, retry
from torchkiln.util.http.session import LEAST
from torchkiln.util.schema import shown
from torchkiln.util.strict_json import json_of

_DOCKER = "application/vnd.docker.distribution.manifest."
_ACCEPT = ", ".join((MANIFEST_TYPE, INDEX_TYPE, f"{_DOCKER}v2+json", f"{_DOCKER}list.v2+json"))
_MOST_PAGES = 200
_MOST_TAGS = 5000
_LINK = 4 << 10  # characters of a Link header
_LIST = 48 << 20  # bytes of a list of referrers, all pages together
_DAMAGED = (
    "the registry, or a proxy in front of it, sent data that does not match the digest; nothing was stored"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A manifest or an index as the registry sent it, with the digest of its bytes."""

    digest: Digest
    media_type: str
    data: bytes = field(repr=False)

    @property
    def json(self) -> dict[str, Any]:
        """The parsed JSON.

        :raises VerificationFailed: it is not a JSON object.
        """
        try:
            found = json_of(self.data, values=VALUES)
        except ValueError as error:
            raise VerificationFailed(f"manifest {self.digest[:19]}: {error}", hint=_DAMAGED) from None
        if not isinstance(found, dict):
            raise VerificationFailed(f"manifest {self.digest[:19]}: not a JSON object", hint=_DAMAGED)
        return found


class RepositoryReader:
    def __init__(self, registry: Registry, repository: Repository) -> None:
        self.registry, self.repository = registry, repository
        self._base = f"/v2/{repository.name}"
        self._scopes: Scopes = (f"repository:{repository.name}:pull",)

    def manifest(self, name: str) -> Document | None:
        """The manifest under *name*, a tag or a digest; None: not found.

        :raises VerificationFailed: it does not match its digest.
        :raises RegistryError: the request failed.
        """
        response = self._get(f"{self._base}/manifests/{name}", f"manifest {name[:40]}", {"Accept": _ACCEPT})
        if response is None:
            return None
        found = digest_of(response.body)
        named = name if name.startswith("sha256:") else response.headers.get("Docker-Content-Digest", found)
        if named != found:
            raise VerificationFailed(
                f"{self.repository}: {name}: checksum mismatch: expected {named}, got {found}", hint=_DAMAGED
            )
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
        return Document(digest=found, media_type=kind, data=response.body)

    def digest(self, tag: str) -> Digest | None:
        """The digest of *tag*; None: no such tag.

        :raises VerificationFailed: the manifest does not match its digest.
        :raises RegistryError: the request failed.
        """
        found = self.manifest(tag)
        return found.digest if found else None

    def require(self, name: str) -> Document:
        """The manifest under *name*, like `manifest`, but a missing one is an error.

        :raises ConfigError: there is none; the hint has similar tags.
        """
        found = self.manifest(name)
        if found is None:
            try:
                near = [tag for tag in self.tags() if tag.startswith(name[:5])][:5]
            except RegistryError:  # the tags are needed only for the hint
                near = []
            hint = f"similar tags: {', '.join(near)}" if near else "`torchkiln ls` lists the tags"
            raise ConfigError(f"{self.repository}: {name}: manifest unknown", hint=hint)
        return found

    def tags(self) -> list[str]:
        """All tags, in the registry's order; empty if there is no such repository.

        :raises RegistryError: a request failed, or the list is invalid or too long.
        """
        what = "the list of tags"
        found: dict[str, None] = {}
        for data in self._pages(f"{self._base}/tags/list?n=1000", what, {}):
            try:
                tags = json_of(data)["tags"] or []
                if not isinstance(tags, list):
                    raise TypeError
                wrong = next((tag for tag in tags if not is_tag(tag)), None)
            except (ValueError, LookupError, TypeError):
                raise self._invalid_list(what) from None
            if wrong is not None:
                raise self._invalid_list(f"{what}: {shown(wrong)} is not a tag")
            found.update(dict.fromkeys(tags))
            if len(found) > _MOST_TAGS:
                raise RegistryError(
                    f"{self.repository}: more than {_MOST_TAGS} tags",
                    hint="name one image by tag or digest, or delete tags that are not needed",
                )
        return list(found)

    def referrers(self, digest: Digest) -> list[dict[str, Any]] | None:
        """The referrers of *digest* by the registry's API, all pages; None: it does not support the API.

        :raises RegistryError: a request failed, or the list is invalid or too long.
        """
        what = "the list of referrers"
        path = f"{self._base}/referrers/{digest}"
        pages = [
            self.descriptors(data, what) for data in self._pages(path, what, {"Accept": INDEX_TYPE}, _LIST)
        ]
        return list(chain.from_iterable(pages)) if pages else None

    def descriptors(self, data: bytes, what: str) -> list[dict[str, Any]]:
        """The descriptors in an index; entries that are not objects are skipped.

        :raises RegistryError: it is not an index.
        """
        try:
            entries = json_of(data)["manifests"]
        except (LookupError, TypeError):
            entries = None
        except ValueError as error:
            raise self._invalid_list(f"{what}: {error}") from None
        if not isinstance(entries, list):
            raise self._invalid_list(what)
        return [entry for entry in entries if isinstance(entry, dict)]

    def _pages(self, path: str, what: str, headers: dict[str, str], limit: int = 4 << 20) -> Iterator[bytes]:
        """The bodies of a list's pages, of *limit* bytes together.

        :raises RegistryError: the pages form a loop, lead to another host, or are too many.
        """
        seen: set[str] = set()
        left, origin = limit, ""
        for number in range(1, _MOST_PAGES + 1):
            response = self._get(path, what, headers, left)
            if response is None:
                return
            yield response.body
            links = parse_header_links(response.headers.get("Link", "")[:_LINK])
            address = next((str(link["url"]) for link in links if link.get("rel") == "next"), None)
            if address is None:
                return
            seen |= {path, response.url}
            left -= len(response.body)
            path = _joined(response.url, address)
            origin = origin or _joined(response.url, "/")
            if path in seen or number == _MOST_PAGES or not path.startswith(origin):
                raise RegistryError(
                    f"{self.repository}: {what}: its pages form a loop, are too many or lead to another host",
                    hint=REGISTRY_AT_FAULT,
                )

    def _invalid_list(self, what: str) -> RegistryError:
        return RegistryError(f"{self.repository}: invalid response: {what}", hint=REGISTRY_AT_FAULT)

    def small(self, digest: Digest, limit: int) -> bytes:
        """The blob *digest*, of at most *limit* bytes.

        :raises VerificationFailed: it is longer, or does not match its digest.
        :raises RegistryError: a request failed.
        """
        out = io.BytesIO()
        self.save(digest, out, limit=limit, quick=True)
        return out.getvalue()

    def fetch(self, digest: Digest, size: int, path: Path, on_progress: Callable[[int], None]) -> None:
        """Download the blob *digest* of *size* bytes to *path*; a blob that does not match leaves no file.

        :raises VerificationFailed: it does not match its digest.
        """
        with replacing(path) as part, part.open("w+b") as out:
            self.save(digest, out, limit=size, on_progress=on_progress)

    def save(
        self,
        digest: Digest,
        out: BinaryIO,
        *,
        limit: int,
        on_progress: Callable[[int], None] = lambda _: None,
        quick: bool = False,
    ) -> None:
        """Download the blob *digest* to *out*; a broken download is resumed if the registry supports that.

        :param on_progress: called with the number of new bytes, each counted once.
        :param quick: the blob is a small document: one time limit covers all attempts together.
        """
        what, hashed, reported = f"blob {digest[:19]}", hashlib.sha256(), 0

        def take(status: int, pieces: Iterator[bytes]) -> None:
            nonlocal hashed, reported
            if status == 200 and out.tell():
                out.seek(0)
                out.truncate()
                hashed = hashlib.sha256()
            for piece in pieces:
                if out.tell() + len(piece) > limit:
                    raise VerificationFailed(f"{what}: longer than {limit} bytes", hint=_DAMAGED)
                out.write(piece)
                hashed.update(piece)
                if (more := out.tell() - reported) > 0:
                    reported += more
                    on_progress(more)

        def attempt() -> HttpResponse:
            at = out.tell()
            headers = {"Range": f"bytes={at}-"} if at else {}
            request = self._request("GET", f"{self._base}/blobs/{digest}", what, headers)
            return self.registry.request_once(replace(request, into=take, quick=quick))

        # A server that sends one byte in each attempt makes no progress.
        progress, patience = (None, READS) if quick else (Progress(out.tell, LEAST), SILENCE)
        try:
            response = retry(attempt, sleep=self.registry.sleep, max_seconds=patience, progress=progress)
        except GivenUp as error:
            raise self.registry.unavailable(what, error) from error
        if response.status not in (200, 206, 416):
            raise self.registry.http_error(what, response)
        if f"sha256:{hashed.hexdigest()}" != digest:
            raise VerificationFailed(f"{self.repository}: {what}: checksum mismatch", hint=_DAMAGED)

    def _request(self, method: str, path: str, what: str, headers: Mapping[str, str]) -> HttpRequest:
        return HttpRequest(method=method, url=path, what=what, scopes=self._scopes, headers=headers)

    def _get(
        self, path: str, what: str, headers: Mapping[str, str], limit: int = LIMIT
    ) -> HttpResponse | None:
        request = self._request("GET", path, what, headers)
        response = self.registry.request(replace(request, limit=max(limit, 0)))
        if response.status == 404:
            return None
        if response.status != 200:
            raise self.registry.http_error(what, response)
        return response


def _joined(base: str, address: str) -> str:
    try:
        return urljoin(base, address)
    except ValueError:
        return ""


_LIMIT = 4 << 20  # bytes of a config
_JOBS = 4


def fetch_documents(reading: RepositoryReader, found: Document, layout: Path, ref: str) -> ImageOnDisk:
    """Write the image with the manifest *found* to *layout*, as *ref* and without its layers.

    :raises VerificationFailed: it is not an image manifest, or the config does not match its digest.
    :raises RegistryError: a request failed.
    """
    manifest = found.json
    if found.media_type != MANIFEST_TYPE or manifest.get("mediaType", MANIFEST_TYPE) != MANIFEST_TYPE:
        raise VerificationFailed(
            f"{reading.repository}: {ref} is not an image that torchkiln published: its media type is "
            f"{found.media_type[:80]!r}",
            hint="name an image that `torchkiln publish` pushed: `torchkiln ls` lists them",
        )
    try:
        config = parse_digest(manifest["config"]["digest"])
    except (LookupError, TypeError, ValueError):
        raise VerificationFailed(f"{reading.repository}: {ref}: no config in the manifest") from None
    data = reading.small(config, _LIMIT)
    return write_documents(layout, ref, found.data, data).image(ref)


def fetch_layers(reading: RepositoryReader, image: ImageOnDisk, observer: Observer) -> None:
    """Download the layers of *image* that its layout lacks.

    :raises VerificationFailed: a layer does not match its digest.
    :raises RegistryError: a request failed.
    :raises BuildFailed: no space left.
    """
    missing = {layer.digest: layer for layer in image.layers if not layer.path.exists()}
    with ThreadPoolExecutor(_JOBS, "pull") as pool:
        futures = [
            pool.submit(_layer, reading, layer.digest, layer.size, layer.path, observer)
            for layer in sorted(missing.values(), key=lambda layer: -layer.size)
        ]
        try:
            for future in futures:
                future.result()
        except BaseException:  # a failure, or Ctrl-C: stop the downloads in the other threads
            reading.registry.stop()
            raise


def _layer(reading: RepositoryReader, digest: Digest, size: int, path: Path, observer: Observer) -> None:
    observer.begin("download", digest[:19], size)
    try:
        reading.fetch(digest, size, path, lambda count: observer.advance("download", digest[:19], count))
    except OSError as error:
        raise BuildFailed(
            f"{path}: {error.strerror}", hint="free disk space: an image has 3 to 7 GB"
        ) from error
    observer.end("download", digest[:19])
