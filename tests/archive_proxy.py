"""Proxies of the real Debian archive: one with its own CA and a password, one that does not change."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import re
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from torchkiln.base.recipe import recipe
from torchkiln.base.sources import values, variables


@dataclass(frozen=True, kw_only=True)
class PrivateArchive:
    """The archive's address with credentials, and its CA; `requested` has the served paths."""

    address: str  # with user and password
    ca: Path
    requested: list[str] = field(default_factory=list)


@retry(retry=retry_if_exception_type(requests.RequestException), stop=stop_after_attempt(6), reraise=True)
def fetched(url: str) -> requests.Response:
    """Get *url* from the archive; repeat the request if the connection fails, so that apt sees no failure."""
    return requests.get(url, timeout=300)


@contextmanager
def private_archive(upstream: str, host: str, login: str, folder: Path) -> Iterator[PrivateArchive]:
    """A context manager: serve *upstream* at `https://login@host:port`."""
    ca, certificate = _certificates(host, folder)
    expected = "Basic " + base64.b64encode(login.encode()).decode()
    requested: list[str] = []

    class Private(_Handler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != expected:
                self.answer(401, b"", {"WWW-Authenticate": 'Basic realm="private"'})
                return
            requested.append(self.path)
            self.forward(fetched(upstream + self.path))

    server = _Server((host, 0), Private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    # The TLS handshake is done in the handler's thread. In the accept loop, it would block all other clients.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    with _serving(server) as port:
        yield PrivateArchive(address=f"https://{login}@{host}:{port}", ca=ca, requested=requested)


@contextmanager
def held_archive(os_name: str, environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """A context manager: a proxy with the archive of *os_name* as it is at the first request of each file.

    Debian publishes at any time, so two builds from the archive itself may differ.

    :returns: *environ* with the proxy, and with mirrors that apt asks through it.
    """
    names = variables(recipe(os_name))[:2]
    mirrors = dict(zip(names, values(recipe(os_name), environ)[:2], strict=True))
    with_tls = tuple(at.removeprefix("https://") for at in mirrors.values() if at.startswith("https:"))
    held: dict[str, requests.Response] = {}
    locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    class Held(_Handler):
        def do_GET(self) -> None:
            place = self.path.removeprefix("http://")  # to a proxy, apt sends the whole URL
            with locks[place]:
                if place not in held:
                    held[place] = fetched(f"http{'s' * place.startswith(with_tls)}://{place}")
            self.forward(held[place])

    with _serving(_Server(("127.0.0.1", 0), Held)) as port:
        own = {name: re.sub("^https:", "http:", address) for name, address in mirrors.items()}
        yield {**environ, **own, "http_proxy": f"http://127.0.0.1:{port}", "no_proxy": ""}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def forward(self, found: requests.Response) -> None:
        kept = ("Last-Modified", "Content-Type")
        self.answer(
            found.status_code, found.content, {k: found.headers[k] for k in kept if k in found.headers}
        )

    def answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 64


@contextmanager
def _serving(server: ThreadingHTTPServer) -> Iterator[int]:
    """A context manager: *server* runs; yields its port."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _certificates(host: str, folder: Path) -> tuple[Path, Path]:
    """Write a CA's certificate, and the key and certificate that it signed for a server at *host*."""
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "private archive's CA")])
    today = datetime.datetime.now(datetime.timezone.utc)

    def signed(name: x509.Name, key: ec.EllipticCurvePrivateKey, more: x509.ExtensionType) -> bytes:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(today - datetime.timedelta(days=1))
        made = made.not_valid_after(today + datetime.timedelta(days=1))
        made = made.add_extension(more, critical=True)
        return made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca, server = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(signed(issuer, authority, x509.BasicConstraints(ca=True, path_length=None)))
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    key = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    server.write_bytes(key + signed(subject, own, alternative))
    return ca, server
