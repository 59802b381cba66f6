"""A network of a server and a node for benchmarks: a link of a given speed, a registry, and a share.

Server and node are processes of one network namespace. The speed is that of its loopback interface (tc tbf),
without latency. The share is sshfs without encryption: this kernel has no NFS.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.meters import Failed
from tests.engine.registry import free_port
from tests.engine.root import home, made
from torchkiln.model.digest import Digest

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_BURST = 1 << 18  # bytes, at least; more than a packet of the loopback interface
_PER_SECOND = 250  # ticks of the kernel
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_WAIT_S, _LOOK_S = 30.0, 0.05
_PACKAGES = ("sshfs", "openssh-sftp-server")


@contextmanager
def own_network() -> Iterator[None]:
    """Put this thread, and the processes that it starts, in a new network namespace.

    :raises Failed: only root can do so.
    """
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.unshare(_NEW_NETWORK):
            raise Failed(f"a network namespace is impossible: {os.strerror(ctypes.get_errno())}")
        _do("ip", "link", "set", "lo", "up")
        yield
    finally:
        libc.setns(before, _NEW_NETWORK)
        os.close(before)


def set_rate(bits_per_s: int) -> None:
    """Limit the link."""
    burst = max(bits_per_s // 8 // _PER_SECOND * 2, _BURST)
    limit = ("rate", f"{bits_per_s}bit", "burst", str(burst), "latency", "50ms")
    _do("tc", "qdisc", "replace", "dev", "lo", "root", "tbf", *limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedImage:
    """An image: its manifest, and its blobs by digest, as files or bytes."""

    manifest: bytes
    blobs: Mapping[str, Path | bytes]


def digest_of(data: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


@contextmanager
def registry(images: Mapping[str, ServedImage]) -> Iterator[str]:
    """A read-only registry with *images* as tags of one repository; yields the name of the repository."""

    manifests = {name: one.manifest for name, one in images.items()}
    manifests |= {digest_of(data): data for data in manifests.values()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = default_request_version = (
            "HTTP/1.1"  # an answer to TLS, too: Docker then uses http
        )

        def do_GET(self) -> None:
            kind, _, name = self.path.removeprefix("/v2/images/").partition("/")
            found: Path | bytes | None = b"{}" if self.path == "/v2/" else None
            if kind == "manifests":
                found = manifests.get(name)
            elif kind == "blobs":
                found = next((one.blobs[name] for one in images.values() if name in one.blobs), None)
            if found is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", _MANIFEST if kind == "manifests" else "application/octet-stream")
            size = found.stat().st_size if isinstance(found, Path) else len(found)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command == "HEAD":
                return
            if isinstance(found, bytes):
                self.wfile.write(found)
                return
            with found.open("rb") as file:
                self.wfile.flush()
                self.connection.sendfile(file)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}/images"
    finally:
        server.shutdown()
        server.server_close()


@dataclass(kw_only=True)
class Share:
    """The folder *source* of the server, mounted on the node at *target*."""

    source: Path
    target: Path
    port: int
    root: Path  # Debian with sshfs
    _client: subprocess.Popen[bytes] | None = None

    def mount(self) -> None:
        """Mount the folder again, so that the node has nothing of it in its page cache."""
        self.unmount()
        self.target.mkdir(exist_ok=True)
        options = f"directport={self.port},ro,kernel_cache"
        argv = [*_program(self.root, "usr/bin/sshfs"), "-f", "-o", options]
        argv += [f"127.0.0.1:{self.source}", str(self.target)]
        self._client = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        end = time.monotonic() + _WAIT_S
        while not os.path.ismount(self.target):
            if time.monotonic() > end or self._client.poll() is not None:
                raise Failed("sshfs did not mount the share")
            time.sleep(_LOOK_S)

    def unmount(self) -> None:
        if self._client:
            subprocess.run(["umount", "--lazy", str(self.target)], check=False)
            self._client.terminate()  # other processes' mount namespaces may have copies of the mount
            self._client.wait()
            self._client = None


def sshfs() -> Path:
    """A folder with Debian's sshfs and its server.

    :raises NoEngine: they cannot be had.
    """
    return made(home() / "share", "trixie", _PACKAGES, "--variant=extract")


@contextmanager
def share(source: Path, target: Path, root: Path) -> Iterator[Share]:
    """A server for *source*, and its share at *target*; *root* has the programs."""
    found = Share(source=source, target=target, port=free_port(), root=root)
    with socket.create_server(("127.0.0.1", found.port)) as server:
        thread = threading.Thread(target=_serve, args=(server, root), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.unmount()
            server.shutdown(socket.SHUT_RDWR)  # so that `accept` ends
            thread.join()


def _serve(server: socket.socket, root: Path) -> None:
    argv = [*_program(root, "usr/lib/openssh/sftp-server"), "-R"]
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = connection.fileno()
            subprocess.Popen(argv, stdin=number, stdout=number)


def _program(root: Path, name: str) -> list[str]:
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return [f"{libraries}/ld-linux-x86-64.so.2", "--library-path", str(libraries), str(root / name)]


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{argv[0]}: {done.stderr.strip()}")
