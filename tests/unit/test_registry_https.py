"""https by a private CA: trusted where the user says so, never left for http without being asked."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.press import press
from tests.pushing import image, push_to
from tests.standin.registry_server import RegistryServer
from torchkiln.errors import RegistryError
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.util.http.session import Network

_DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 0.0.0.0 by itself, and its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a registry")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - _DAY, now + _DAY
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("0.0.0.0"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "registry.pem"
    form = serialization.Encoding.PEM
    plain = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(made.public_bytes(form) + plain)
    return path


@pytest.fixture
def secure(certificate: Path) -> Iterator[RegistryServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with RegistryServer(context) as server:
        yield server


@pytest.fixture
def built(tmp_path: Path) -> ImageOnDisk:
    return image(tmp_path, "v1")


def test_a_private_ca(secure: RegistryServer, certificate: Path, built: ImageOnDisk) -> None:
    push_to(secure.host, "team/app", built, network=Network(ca_bundle=str(certificate)))

    assert secure.repository("team/app").tags == ["v1"]


def test_an_unknown_ca_is_told_with_what_to_do(secure: RegistryServer, built: ImageOnDisk) -> None:
    """Once, for it does not get better by trying again."""
    with pytest.raises(RegistryError, match="certificate verify failed") as error:
        push_to(secure.host, "team/app", built)

    assert "SSL_CERT_FILE" in error.value.hint


def test_the_users_ca_bundle_is_the_one_of_the_package_index(
    secure: RegistryServer, certificate: Path, tmp_path: Path
) -> None:
    desk = press(tmp_path / "desk")
    desk.build()
    done = subprocess.run(
        desk.command(*desk.publishing(f"{secure.host}/team/app", "--tag", "v1", "--override", "a test")),
        env={**desk.settings, "SSL_CERT_FILE": str(certificate), "NO_PROXY": "0.0.0.0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "v1" in secure.repository("team/app").tags


def test_plain_http_is_spoken_only_where_it_is_asked_for(built: ImageOnDisk) -> None:
    """0.0.0.0 is this machine too, but no name by which that is known."""
    with RegistryServer() as server:
        host = server.host.replace("127.0.0.1", "0.0.0.0")
        with pytest.raises(RegistryError, match="TLS handshake failed") as error:
            push_to(host, "team/app", built)
        assert "--plain-http" in error.value.hint

        push_to(host, "team/app", built, plain_http=True)
        assert server.repository("team/app").tags == ["v1"]


def test_https_is_not_left_for_http(secure: RegistryServer, certificate: Path, built: ImageOnDisk) -> None:
    """As registries ask for that do not know of the proxy before them; nothing is sent there."""
    secure.manners.uploads_at = f"http://{secure.host}"

    with pytest.raises(RegistryError, match="it leads from https to http") as error:
        push_to(secure.host, "team/app", built, network=Network(ca_bundle=str(certificate)))

    assert "relativeurls" in error.value.hint
    assert secure.repository("team/app").blobs == {}
