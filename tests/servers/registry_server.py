"""A registry in memory, on this machine, that follows the OCI distribution specification 1.1 exactly.

Unlike Debian's docker-registry, it resumes interrupted uploads. It can behave like other registries:
with other upload URLs, or with fields missing from responses.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import ssl
import threading
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tests.servers.answering import QuietHandler
from tests.servers.background import InBackground, QuietHttpServer

_PIECE = 1 << 14


@dataclass
class Behaviour:
    """Behaviour that the specification leaves open, and violations of it."""

    uploads_at: str = ""  # "http://host" for uploads; empty: a path, without a host
    tells_digests: bool = True
    refuses_mounts: int = 0  # the HTTP status of the refusal
    refuses_manifests: str = ""  # an error's code
    redirects_heads_to: str = ""  # "http://host"
    short_by: int = 0  # a HEAD reports a size that is this many bytes too small
    lists_referrers: bool = False  # as specified since 1.1
    echo: bool = False  # every PUT is answered by a 403 whose body contains the login


@dataclass
class Repository:
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)  # by digest and by tag

    @property
    def tags(self) -> list[str]:
        """The tags, without those of referrers."""
        return sorted(name for name in self.manifests if ":" not in name and not name.startswith("sha256-"))

    def referrers(self, digest: str) -> bytes:
        """An index of the manifests whose subject is *digest*, as the specification describes it."""
        found = []
        for name, data in self.manifests.items():
            document = json.loads(data)
            if ":" in name and document.get("subject", {}).get("digest") == digest:
                kind = document.get("artifactType") or document["config"]["mediaType"]
                entry = {"mediaType": document["mediaType"], "digest": name, "size": len(data)}
                found.append({**entry, "artifactType": kind, "annotations": document.get("annotations", {})})
        kind = "application/vnd.oci.image.index.v1+json"
        return json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": found}).encode()


class RegistryServer(InBackground):
    """A registry; a context manager.

    :param tls: if set, it uses https with the host 0.0.0.0, which is local but not a loopback name.
    :param port: 0: any that is free.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.behaviour = Behaviour()
        self.repositories: dict[str, Repository] = {}
        self.uploads: dict[str, bytearray] = {}
        self.logins: list[str] = []  # Authorization headers
        self.guard = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self._name = "0.0.0.0" if tls else "127.0.0.1"
        self._server = QuietHttpServer((self._name, port), _handler(self))
        if tls:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )

    @property
    def host(self) -> str:
        """Host and port, as in `127.0.0.1:40124`."""
        return f"{self._name}:{self._server.server_address[1]}"

    def working(self, upload: str) -> threading.Lock:
        """A lock for requests on the upload."""
        with self.guard:
            return self._busy.setdefault(upload, threading.Lock())

    def repository(self, name: str) -> Repository:
        """The repository, created on first use."""
        with self.guard:
            return self.repositories.setdefault(name, Repository())


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _handler(server: RegistryServer) -> type[QuietHandler]:
    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def any(self) -> None:
            if login := self.headers.get("Authorization"):
                server.logins.append(login)
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            if path == "/v2/":
                self.answer(200)
            elif server.behaviour.echo and self.command == "PUT":
                self.read()
                self.wrong(403, "DENIED", f"not with {login}")
            elif found := re.fullmatch(r"/v2/(.+)/blobs/uploads/(\w*)", path):
                self.upload(found[1], found[2], {key: values[0] for key, values in query.items()})
            elif found := re.fullmatch(r"/v2/(.+)/blobs/(sha256:\w+)", path):
                self.show(server.repository(found[1]).blobs.get(found[2]), found[2])
            elif found := re.fullmatch(r"/v2/(.+)/manifests/([\w.:-]+)", path):
                self.manifest(found[1], found[2])
            elif (found := re.fullmatch(r"/v2/(.+)/referrers/(sha256:\w+)", path)) and self.lists():
                self.document(server.repository(found[1]).referrers(found[2]))
            elif found := re.fullmatch(r"/v2/(.+)/tags/list", path):
                self.document(
                    json.dumps({"name": found[1], "tags": server.repository(found[1]).tags}).encode()
                )
            else:
                self.wrong(404, "NAME_UNKNOWN")

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = any

        def upload(self, name: str, upload: str, query: dict[str, str]) -> None:
            if self.command == "POST":
                self.begin(name, query)
                return
            with server.working(upload):  # a status request waits for a PATCH in progress
                self.go_on(name, upload, query)

        def go_on(self, name: str, upload: str, query: dict[str, str]) -> None:
            data = server.uploads.get(upload)
            if data is None:
                self.read()
                self.wrong(404, "BLOB_UPLOAD_UNKNOWN")
            elif self.command == "GET":
                self.answer(204, self.progress(name, upload))
            elif self.command == "DELETE":
                del server.uploads[upload]
                self.answer(204)
            elif self.command == "PATCH":
                content_range = self.headers.get("Content-Range")
                if content_range and int(content_range.partition("-")[0]) != len(data):
                    self.close_connection = True
                    self.answer(416, self.progress(name, upload))
                    return
                self.read(data)
                self.answer(202, self.progress(name, upload))
            else:
                self.read(data)
                self.complete(name, upload, bytes(data), query.get("digest", ""))

        def begin(self, name: str, query: dict[str, str]) -> None:
            if digest := query.get("mount"):
                if server.behaviour.refuses_mounts:
                    self.wrong(server.behaviour.refuses_mounts, "DENIED")
                    return
                if (data := server.repository(query.get("from", "")).blobs.get(digest)) is not None:
                    server.repository(name).blobs[digest] = data
                    self.answer(201, {"Location": f"/v2/{name}/blobs/{digest}", **self.named(digest)})
                    return
            upload = secrets.token_hex(8)
            server.uploads[upload] = bytearray()
            self.answer(202, self.progress(name, upload))

        def progress(self, name: str, upload: str) -> dict[str, str]:
            have = len(server.uploads[upload])
            place = f"{server.behaviour.uploads_at}/v2/{name}/blobs/uploads/{upload}?at={have}"
            return {"Location": place, "Range": f"0-{max(have - 1, 0)}"}

        def complete(self, name: str, upload: str, data: bytes, digest: str) -> None:
            del server.uploads[upload]
            if _digest(data) != digest:
                self.wrong(400, "DIGEST_INVALID")
                return
            server.repository(name).blobs[digest] = data
            self.answer(201, {"Location": f"/v2/{name}/blobs/{digest}", **self.named(digest)})

        def manifest(self, name: str, reference: str) -> None:
            repository, data = server.repository(name), bytearray()
            if self.command == "DELETE":
                self.answer(202 if repository.manifests.pop(reference, None) else 404)
                return
            if self.command != "PUT":
                there = repository.manifests.get(reference)
                self.show(there, _digest(there or b""), json.loads(there or b"{}").get("mediaType", ""))
                return
            self.read(data)
            document = json.loads(data)
            named = [document["config"], *document["layers"]] if "config" in document else []
            referenced = {item["digest"] for item in named}
            if server.behaviour.refuses_manifests or not referenced <= repository.blobs.keys():
                self.wrong(400, server.behaviour.refuses_manifests or "MANIFEST_BLOB_UNKNOWN", "no such blob")
                return
            repository.manifests[reference] = repository.manifests[_digest(data)] = bytes(data)
            subject = document.get("subject", {}).get("digest", "")
            subject_header = {"OCI-Subject": subject} if subject and self.lists() else {}
            self.answer(201, self.named(_digest(data)) | subject_header)

        def lists(self) -> bool:
            return server.behaviour.lists_referrers

        def document(self, data: bytes) -> None:
            self.answer(200, {"Content-Length": str(len(data))}, data)

        def show(self, data: bytes | None, digest: str, kind: str = "") -> None:
            if server.behaviour.redirects_heads_to:
                self.answer(307, {"Location": server.behaviour.redirects_heads_to + self.path})
            elif data is None:
                self.wrong(404, "BLOB_UNKNOWN")
            else:
                length = str(len(data) - server.behaviour.short_by)
                type_header = {"Content-Type": kind} if kind else {}
                self.answer(200, {**self.named(digest), **type_header, "Content-Length": length}, data)

        def named(self, digest: str) -> dict[str, str]:
            return {"Docker-Content-Digest": digest} if server.behaviour.tells_digests else {}

        def read(self, into: bytearray | None = None) -> None:
            """Read the request's body *into* a buffer, which keeps the bytes if the connection breaks."""
            left = int(self.headers.get("Content-Length") or 0)
            while left and (piece := self.rfile.read1(min(left, _PIECE))):  # type: ignore[attr-defined]
                left -= len(piece)
                if into is not None:
                    into += piece
            if left:
                raise ConnectionError

        def wrong(self, status: int, code: str, message: str = "") -> None:
            self.answer(status, {}, json.dumps({"errors": [{"code": code, "message": message}]}).encode())

    return Handler
