"""Repository → what is in it: manifests, blobs, tags. Each byte is held against its digest as it arrives."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

from torchkiln.errors import ConfigError, RegistryError, VerificationFailed
from torchkiln.files import replacing
from torchkiln.nouns import Digest, parse_digest
from torchkiln.oci.image import MANIFEST_TYPE, digest_of
from torchkiln.oci.layout import INDEX_TYPE
from torchkiln.registry.answer import Answer
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Refused, Registry
from torchkiln.registry.tokens import Scopes
from torchkiln.retry import ATTEMPTS, Transient
from torchkiln.strict import json_of

_DOCKER = "application/vnd.docker.distribution.manifest."
_ACCEPT = ", ".join((MANIFEST_TYPE, INDEX_TYPE, f"{_DOCKER}v2+json", f"{_DOCKER}list.v2+json"))
_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')
_MOST_PAGES = 1000
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
            found = json_of(self.data)
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
        answer = self.registry.persist("HEAD", path, what, scopes=self._scopes, headers={"Accept": _ACCEPT})
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
            near = [tag for tag in self.tags() if tag.startswith(name[:5])][:5]
            hint = f"there are: {', '.join(near)}" if near else "`catalog` lists what is there"
            raise ConfigError(f"{self.repository}: there is no {name}", hint=hint)
        return found

    def tags(self) -> list[str]:
        """Every tag, in the registry's order; none where there is no such repository.

        :raises RegistryError: the registry refuses, cannot be reached, or gives no list.
        """
        found: list[str] = []
        path: str | None = f"{self._base}/tags/list?n=1000"
        for _ in range(_MOST_PAGES):
            if path is None:
                break
            answer = self._get(path, "the list of tags", {})
            if answer is None:
                break
            try:
                listed = json_of(answer.body)["tags"] or []
                found += [tag for tag in listed if isinstance(tag, str)]
            except (ValueError, LookupError, TypeError):
                raise RegistryError(
                    f"{self.repository}: its list of tags is none", hint="the registry is at fault"
                ) from None
            link = _NEXT.search(answer.headers.get("Link", ""))
            path = urljoin(answer.url, link[1]) if link else None
        return list(dict.fromkeys(found))

    def referrers(self, digest: Digest) -> Answer | None:
        """The registry's own list of what goes with *digest*; None: it has no such list."""
        return self._get(
            f"{self._base}/referrers/{digest}", "what goes with the image", {"Accept": INDEX_TYPE}
        )

    def small(self, digest: Digest, limit: int) -> bytes:
        """The blob *digest*, of at most *limit* bytes.

        :raises VerificationFailed: it is longer, or not what its digest says.
        :raises RegistryError: it is not there, or the registry cannot be reached.
        """
        out = io.BytesIO()
        self.save(digest, out, limit=limit)
        return out.getvalue()

    def fetch(self, digest: Digest, size: int, path: Path, tell: Callable[[int], None]) -> None:
        """The blob *digest* of *size* bytes into the file *path*; wrong bytes leave no file.

        :raises VerificationFailed: they are wrong.
        """
        with replacing(path) as part, part.open("w+b") as out:
            self.save(digest, out, limit=size, tell=tell)

    def save(
        self, digest: Digest, out: BinaryIO, *, limit: int, tell: Callable[[int], None] = lambda _: None
    ) -> None:
        """The blob *digest* into *out*; a cut one goes on where it was, if the registry can.

        :param tell: hears of bytes that came, each once.
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

        failures, before, path = 0, 0, f"{self._base}/blobs/{digest}"
        while True:
            at = out.tell()
            headers = {"Range": f"bytes={at}-"} if at else {}
            try:
                answer = self.registry.ask(
                    "GET",
                    path,
                    what,
                    scopes=self._scopes,
                    headers=headers,
                    into=take,
                )
                break
            except Transient as error:
                failures = 1 if out.tell() > before else failures + 1
                before = max(before, out.tell())
                if failures == ATTEMPTS:
                    raise self.registry.lost(what, str(error)) from error
                if not isinstance(error, Refused):
                    self.registry.rest(failures, error.wait)
        if answer.status not in (200, 206, 416):
            raise self.registry.refused(what, answer)
        if f"sha256:{seen.hexdigest()}" != digest:
            raise VerificationFailed(
                f"{self.repository}: {what}: other bytes than its digest says", hint=_DAMAGED
            )

    def _get(self, path: str, what: str, headers: dict[str, str]) -> Answer | None:
        answer = self.registry.persist("GET", path, what, scopes=self._scopes, headers=headers)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self.registry.refused(what, answer)
        return answer


def listed(data: bytes) -> list[dict[str, Any]]:
    """The descriptors in an index that a registry gave; what is none is left out."""
    try:
        entries = json.loads(data)["manifests"]
        return [entry for entry in entries if isinstance(entry, dict)]
    except (ValueError, LookupError, TypeError):
        return []
