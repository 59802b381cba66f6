"""A local Git server over HTTP, which runs `git http-backend` on repositories that a test makes."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.checkouts import GIT, git
from tests.needs import tool
from tests.servers.answering import QuietHandler
from tests.servers.background import InBackground


def needs_git_server() -> None:
    """Skip if git or git-http-backend is not installed."""
    tool("git")
    programs = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout
    if not (Path(programs.strip()) / "git-http-backend").exists():
        pytest.skip("git has no http-backend: apt-get install git")


class GitServer(InBackground):
    """Serves the bare repositories in *root* and records each request; requires `login` if it is set.

    :param tls: if set, the server uses https, with the host 0.0.0.0.
    """

    def __init__(self, root: Path, tls: ssl.SSLContext | None = None) -> None:
        self.root = root
        self.requests: list[str] = []
        self.login: tuple[str, str] | None = None
        self.moved: dict[str, str] = {}  # path → Location of a redirect
        self._place = ("https", "0.0.0.0") if tls else ("http", "127.0.0.1")
        self._server = ThreadingHTTPServer((self._place[1], 0), _handler(self))
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )

    def url(self, name: str) -> str:
        """The URL of the repository *name*."""
        scheme, host = self._place
        return f"{scheme}://{host}:{self._server.server_address[1]}/{name}.git"

    def commit(self, name: str, files: Mapping[str, str | bytes], *more: str) -> str:
        """Commit only *files* to the branch `main` of the repository *name*; returns the commit's id.

        :param more: lines of `git update-index --index-info`, for submodules and other entries.
        """
        place = self.root / f"{name}.git"
        if not place.exists():
            git(self.root, "init", "--quiet", "--bare", "--initial-branch=main", str(place))
        rows = [*more]
        for path, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            rows.append(f"100644 {self.blob(name, data)}\t{path}")
        (place / "index").unlink(missing_ok=True)
        self._run(
            name, "update-index", "--add", "--index-info", data="".join(f"{row}\n" for row in rows).encode()
        )
        return self.put_tree(name, git(place, "write-tree"))

    def put_tree(self, name: str, tree: str) -> str:
        """Commit *tree* to `main`."""
        place = self.root / f"{name}.git"
        found = git(place, "commit-tree", tree, "-m", "a state")
        git(place, "update-ref", "refs/heads/main", found)
        return found

    def blob(self, name: str, data: bytes) -> str:
        """Store *data* in the repository *name*; returns its id."""
        return self._run(name, "hash-object", "-w", "--stdin", data=data)

    def tree(self, name: str, *entries: tuple[str, bytes, str]) -> str:
        """Store a tree of entries (mode, name, id) that git itself would not make; returns its id."""
        data = b"".join(
            mode.encode() + b" " + path + b"\0" + bytes.fromhex(one) for mode, path, one in entries
        )
        return self._run(name, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", data=data)

    def _run(self, name: str, *words: str, data: bytes) -> str:
        done = subprocess.run(
            ["git", *words],
            cwd=self.root / f"{name}.git",
            env=_ENV,
            input=data,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().strip()


_ENV = {**GIT, "PATH": "/usr/local/bin:/usr/bin:/bin"}


def _handler(server: GitServer) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.respond(b"")

        def do_POST(self) -> None:
            if self.headers.get("Transfer-Encoding") == "chunked":
                data = b""
                while length := int(self.rfile.readline(), 16):
                    data += self.rfile.read(length)
                    self.rfile.readline()
            else:
                data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.respond(data)

        def respond(self, data: bytes) -> None:
            server.requests.append(self.path)
            parts = urlsplit(self.path)
            name = parts.path.split("/")[1]
            if location := server.moved.get(name):
                self.answer(302, {"Location": location + self.path.partition(name)[2]})
                return
            if server.login:
                wanted = base64.b64encode(":".join(server.login).encode()).decode()
                if self.headers.get("Authorization") != f"Basic {wanted}":
                    self.answer(401, {"WWW-Authenticate": 'Basic realm="git"'})
                    return
            done = subprocess.run(
                ["git", "http-backend"],
                env={
                    **_ENV,
                    "GIT_PROJECT_ROOT": str(server.root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "REQUEST_METHOD": self.command,
                    "PATH_INFO": parts.path,
                    "QUERY_STRING": parts.query,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(data)),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "REMOTE_ADDR": "127.0.0.1",
                },
                input=data,
                capture_output=True,
                check=False,
            )
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            rows = [line.partition(": ") for line in head.decode().split("\r\n")]
            fields = {key: value for key, _, value in rows}
            self.answer(int(fields.pop("Status", "200").split()[0]), fields, body)

    return Handler
