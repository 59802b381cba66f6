"""Invalid responses of a registry, and https with a private CA."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile_registry import hostile
from tests.programs import run_program
from tests.publisher import new_publisher
from tests.pushing import image, push_to
from tests.servers.certificate import self_signed
from tests.servers.registry_server import RegistryServer
from torchkiln.errors import RegistryError
from torchkiln.oci.layout import ImageOnDisk
from torchkiln.registry.credentials import Login
from torchkiln.util.http.session import Network

PING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def answering(answers: dict[str, bytes]) -> Iterator[str]:
    """A server that sends the given response for each method, and PING for /v2/; yields its host."""
    patterns = {"^[A-Z]+ /v2/$": answers.get("PING", PING)}
    with hostile(patterns | {f"^{method} ": answer for method, answer in answers.items()}) as server:
        yield server.host


def plain(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


MISSING = plain("404 Not Found")
DEEP = b"[" * 100_000
BEGUN = plain("202 Accepted", b"", "Location: /v2/team/app/blobs/uploads/1")
CHALLENGE = 'WWW-Authenticate: Bearer realm="http' + '://HOST/token",service="x"'


@pytest.mark.parametrize(
    "answers",
    [
        {"PING": b""},
        {"PING": b"SSH-2.0-OpenSSH_9.2\r\n"},
        {"PING": plain("418 Teapot", DEEP)},
        {"PING": plain("503 No", DEEP)},
        {"PING": plain("401 No", DEEP, "WWW-Authenticate: " + 'a="b", ' * 2000)},
        {"PING": plain("401 No", b"", CHALLENGE), "HEAD": MISSING, "GET": plain("200 OK", b"\xff\xfe")},
        {"PING": plain("401 No", b"", CHALLENGE.replace("HOST", "HOST:9:9")), "HEAD": MISSING},
        {"HEAD": plain("403 No", b"")},
        {"HEAD": plain("200 OK", b"", "Docker-Content-Digest: \x1b[31m" + "x" * 500)},
        {"HEAD": plain("299 Odd", b"")},
        {"HEAD": MISSING, "POST": plain("202 Accepted")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: file:///etc/passwd")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: http" + "://[")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: http" + "://HOST99999/")},
        {"HEAD": MISSING, "POST": plain("202 Accepted", b"", "Location: //")},
        {"HEAD": MISSING, "POST": plain("201 Created")},
        {"HEAD": MISSING, "POST": plain("400 Bad", b'{"errors":[{"code":[[]],"message":{}}, 7]}')},
        {"HEAD": MISSING, "POST": plain("400 Bad", b'{"errors":[{"message":"\\u001b[2J"}]}')},
        {"HEAD": MISSING, "POST": BEGUN, "PUT": plain("307 Go", b"", "Location: /x"), "PATCH": BEGUN},
        {
            "HEAD": MISSING,
            "POST": BEGUN,
            "PUT": plain("200 OK"),
            "PATCH": plain("307 Go", b"", "Location: /x"),
        },
        {"HEAD": MISSING, "POST": BEGUN, "PUT": plain("201 OK"), "PATCH": plain("202 OK")},
        {
            "HEAD": MISSING,
            "POST": BEGUN,
            "PUT": plain("503 No"),
            "PATCH": plain("503 No"),
            "GET": plain("204 OK", b"", "Range: 0-99999999999999999999"),
        },
        {
            "HEAD": MISSING,
            "POST": BEGUN,
            "PUT": plain("503 No"),
            "PATCH": plain("503 No"),
            "GET": plain("204 OK", b"", "Range: 0-999999999"),
        },
        {"HEAD": plain("200 OK", b"", "Content-Length: \xb2"), "PUT": plain("500 No", b"\0" * 5000)},
    ],
    ids=str,
)
def test_invalid_responses(answers: dict[str, bytes], tmp_path: Path) -> None:
    built = image(tmp_path, "v1", {"a": 1_200_000, "b": 10})
    with answering(answers) as host, pytest.raises(RegistryError) as error:
        push_to(host, "team/app", built, login=Login(user="kim", password="correct-horse"))

    message = error.value.message
    assert host in message
    assert len(message) < 1000
    assert "\x1b" not in message
    assert "correct-horse" not in message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls") / "registry.pem")


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


def test_an_unknown_ca_is_reported_with_a_hint(secure: RegistryServer, built: ImageOnDisk) -> None:
    """The request is not retried, because it would fail again."""
    with pytest.raises(RegistryError, match="certificate verify failed") as error:
        push_to(secure.host, "team/app", built)

    assert "SSL_CERT_FILE" in error.value.hint


def test_the_ca_bundle_of_the_package_index_is_used(
    secure: RegistryServer, certificate: Path, tmp_path: Path
) -> None:
    publisher = new_publisher(tmp_path / "publisher")
    publisher.build()
    done = run_program(
        publisher.command(
            *publisher.publishing(f"{secure.host}/team/app", "--tag", "v1", "--override", "a test")
        ),
        env={**publisher.settings, "SSL_CERT_FILE": str(certificate), "NO_PROXY": "0.0.0.0"},
    )

    assert done.returncode == 0, done.stderr
    assert "v1" in secure.repository("team/app").tags


def test_plain_http_is_used_only_on_request(built: ImageOnDisk) -> None:
    """0.0.0.0 reaches this machine, but is not one of the addresses for which plain HTTP is the default."""
    with RegistryServer() as server:
        host = server.host.replace("127.0.0.1", "0.0.0.0")
        with pytest.raises(RegistryError, match="TLS handshake failed") as error:
            push_to(host, "team/app", built)
        assert "--plain-http" in error.value.hint

        push_to(host, "team/app", built, plain_http=True)
        assert server.repository("team/app").tags == ["v1"]


def test_a_redirect_from_https_to_http_is_not_followed(
    secure: RegistryServer, certificate: Path, built: ImageOnDisk
) -> None:
    """A registry behind a misconfigured proxy may send it. No request goes to the http address."""
    secure.behaviour.uploads_at = f"http://{secure.host}"

    with pytest.raises(RegistryError, match="it leads from https to http") as error:
        push_to(secure.host, "team/app", built, network=Network(ca_bundle=str(certificate)))

    assert "relativeurls" in error.value.hint
    assert secure.repository("team/app").blobs == {}
