"""A private Debian archive: an HTTPS proxy with its own CA and a password, in front of the real archive."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.headers.get("Authorization") != expected:
                self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="private"'})
                return
            found = fetched(upstream + self.path)
            requested.append(self.path)
            forwarded = ("Last-Modified", "Content-Type")
            self._answer(
                found.status_code,
                found.content,
                {k: found.headers[k] for k in forwarded if k in found.headers},
            )

        def _answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 64

    server = Server((host, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    # The TLS handshake is done in the handler's thread. In the accept loop, it would block all other clients.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"https://{login}@{host}:{server.server_address[1]}"
        yield PrivateArchive(address=address, ca=ca, requested=requested)
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
