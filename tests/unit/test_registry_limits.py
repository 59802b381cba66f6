"""A hostile registry cannot cause unlimited memory, time or trust: the exit code is 9 or 12."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator

import pytest

from tests.hostile_registry import Answer, Hostile, document, endless, hostile
from tests.pushing import Rests
from torchkiln.errors import KilnError, RegistryError, VerificationFailed, printable
from torchkiln.model.digest import Digest
from torchkiln.registry import session
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.registry.tokens import parse_challenges

PING = {"GET /v2/$": document(b"{}")}
OPEN = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DIGEST = Digest("sha256:" + "a" * 64)
BEARER = 'WWW-Authenticate: Bearer realm="http' + '://HOST/token",service="x"'
MOVED = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n"
HEADER = b"X: " + b"y" * 8000 + b"\r\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit each of the six attempts to 0.1 seconds instead of 20, for a server that sends byte by byte.

    Not for other servers, because on a busy machine a normal response can take as long.
    """
    monkeypatch.setattr(session, "_DOCUMENT", 0.1)


_opened: list[Registry] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _opened:
        with _opened.pop():
            pass


def reading(server: Hostile, rests: Rests | None = None) -> RepositoryReader:
    registry = Registry(server.host, sleep=rests or Rests())
    _opened.append(registry)
    return RepositoryReader(registry, Repository(host=server.host, name="team/app"))


def sentence(error: KilnError) -> str:
    """The message of the error, which must be short and contain no control characters."""
    assert error.message == printable(error.message)
    assert len(error.message) < 1000
    return error.message


BODIES: dict[str, tuple[Answer | bytes, str]] = {
    "a body without an end": (endless(OPEN, b"x" * 65536), "longer than 4194304 bytes"),
    "chunks without an end": (endless(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"), "longer than"),
    "a chunk size without an end": (endless(CHUNKED, b"0" * 65536), "reading chunk size"),
    "a negative chunk size": (endless(CHUNKED + b"-5\r\n", b"x" * 65536), "negative chunk size"),
    "trailers without an end": (endless(CHUNKED + b"0\r\n", b"a: b\r\n", pause=0.001), "timed out"),
    "a status line without an end": (endless(b"HTTP/1.1 ", b"2" * 65536), "reading status line"),
    "600 header lines": (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 600 + b"\r\n", "more than 100 headers"),
    "header lines without an end": (endless(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"), "more than 100 headers"),
    "99 long header lines": (b"HTTP/1.1 200 OK\r\n" + HEADER * 99 + b"\r\n", "when reading header"),
    "a header line of a megabyte": (b"HTTP/1.1 200 OK\r\nA: " + b"b" * (1 << 20), "reading header line"),
    "a header line without a colon": (b"HTTP/1.1 200 OK\r\n\x1b[2J\r\n\r\n", "invalid response"),
    "100 Continue without an end": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.001), "timed out"),
    "a body byte by byte": (endless(OPEN, b" ", pause=0.05), "timed out"),
    "a header byte by byte": (endless(b"HTTP/1.1 200 OK\r\nA: ", b"b", pause=0.05), "timed out"),
    "a body of gzip": (
        document(gzip.compress(b"[" * (64 << 20), 1), "200 OK", "Content-Encoding: gzip"),
        "compressed, although the request forbids it",
    ),
    "a length that is too long": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        "connection closed before the end of the body",
    ),
    "a length of 9,000 digits": (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 9000 + b"\r\n\r\n{}", ""),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", ""),
    "a redirect to itself": (
        document(b"", "302 Found", "Location: /v2/team/app/tags/list?n=1000"),
        "redirects",
    ),
    "a redirect with a body without an end": (endless(MOVED, b"x" * 65536), ""),
    "a redirect to a file": (
        document(b"", "302 Found", "Location: file:///etc/passwd"),
        "neither http nor https",
    ),
    "a redirect that is not text": (
        document(b"", "302 Found", "Location: http" + "://\xff\xfe/"),
        "invalid URL",
    ),
    "a redirect to no host": (document(b"", "302 Found", "Location: http" + "://[::1/"), "invalid URL"),
    "a redirect to an invalid port": (
        document(b"", "302 Found", "Location: http" + "://a:99999/"),
        "invalid URL",
    ),
    "a 503 with a body without an end": (
        endless(b"HTTP/1.1 503 No\r\n\r\n", b"x" * 65536),
        "HTTP 503 (6 attempts)",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_endless_responses(name: str, request: pytest.FixtureRequest) -> None:
    """Only a limited part of each response is read, and the error has a message."""
    answer, message_part = BODIES[name]
    if message_part == "timed out":
        request.getfixturevalue("impatient")
    with hostile({**PING, "tags/list": answer}) as server:
        message = tags_message(server)
        assert any(text in message for text in message_part.split("|"))
        assert server.sent < 100 << 20
        assert len(server.requests) <= 12


def tags_message(server: Hostile) -> str:
    """The error message of listing the server's tags; empty if there is no error."""
    try:
        assert set(reading(server).tags()) <= set("abc")
    except RegistryError as error:
        return sentence(error)
    return ""


@pytest.mark.parametrize("value", ["31536000", "9" * 400, "60", "Fri, 31 Dec 9999 23:59:59 GMT"])
@pytest.mark.parametrize("status", ["429 Too Many", "503 No"])
def test_a_retry_after_of_a_year(value: str, status: str) -> None:
    """The pauses for one document are limited in total, so Retry-After is not respected here."""
    rests = Rests()
    with (
        hostile({"tags/list": document(b"", status, f"Retry-After: {value}")}) as server,
        pytest.raises(RegistryError, match=r"Retry-After is too long|[2-6] attempts"),
    ):
        reading(server, rests).tags()
    assert sum(rests.seconds) <= 40


@pytest.mark.parametrize("value", ["-5", "inf", "NaN", "1e999", "", "soon", "\u00b2"])
def test_an_invalid_retry_after(value: str) -> None:
    rests = Rests()
    with (
        hostile({"tags/list": document(b"", "503 No", f"Retry-After: {value}")}) as server,
        pytest.raises(RegistryError, match="HTTP 503"),
    ):
        reading(server, rests).tags()
    assert sum(rests.seconds) <= 40


def test_cookies_are_not_sent_back() -> None:
    """Otherwise a registry could make each later request megabytes long."""
    with hostile({"tags/list": document(b'{"tags": []}', "200 OK", "Set-Cookie: a=b")}) as server:
        both = reading(server)
        both.tags()
        both.tags()
        assert len(server.headers) == 2
        assert not any("cookie" in head.lower() for head in server.headers)


def test_a_login_is_not_sent_to_a_redirect_of_another_host() -> None:
    moved = document(b"", "302 Found", "Location: http" + "://localhost:PORT/x")

    def elsewhere(_: str) -> Iterator[bytes]:
        yield moved.replace(b"PORT", server.host.rpartition(":")[2].encode())

    token = document(b'{"token": "secret"}')

    def guarded(_: str) -> Iterator[bytes]:
        known = "Bearer secret" in server.headers[-1]
        yield from elsewhere("") if known else [document(b"", "401 No", BEARER)]

    with hostile(
        {"GET /token": token, "GET /x": document(b'{"tags": ["v1"]}'), "tags/list": guarded}
    ) as server:
        assert reading(server).tags() == ["v1"]
        assert "GET /x" in server.headers[-1]
        assert "secret" not in server.headers[-1]


# --- lists ----------------------------------------------------------------------------------------


def pages(body: bytes, link: str) -> Answer:
    """Pages of a list, each with a link to the next; in *link*, # is replaced by a counter."""
    count = itertools.count(1)
    return lambda _: [document(body, "200 OK", link.replace("#", str(next(count))))]


TAGS: dict[str, tuple[Answer | bytes, str]] = {
    "pages in a circle": (
        pages(b'{"tags": ["a"]}', 'Link: </v2/team/app/tags/list?n=1000>; rel="next"'),
        "loop",
    ),
    "pages without an end": (
        pages(b'{"tags": ["a"]}', 'Link: </v2/team/app/tags/list?n=#>; rel="next"'),
        "too many",
    ),
    "pages elsewhere": (
        pages(b'{"tags": ["a"]}', "Link: <http" + '://localhost:1/#>; rel="next"'),
        "another host",
    ),
    "an invalid address": (pages(b'{"tags": ["a"]}', "Link: <http" + '://[>; rel="next"'), "another"),
    "100,000 tags": (document(json.dumps({"tags": [f"t{n}" for n in range(100_000)]}).encode()), "5000 tags"),
    "a tag that is a path": (document(b'{"tags": ["../../../v2/other/manifests/x"]}'), "is not a tag"),
    "a tag with control characters": (document(b'{"tags": ["\\u001b]0;owned\\u0007"]}'), "is not a tag"),
    "a list for a tag": (document(b'{"tags": [["a"]]}'), "is not a tag"),
    "a number for a tag": (document(b'{"tags": [1]}'), "is not a tag"),
    "text for tags": (document(b'{"tags": "abc"}'), "invalid response"),
    "true for tags": (document(b'{"tags": true}'), "invalid response"),
}


@pytest.mark.parametrize("name", TAGS)
def test_lists_of_tags(name: str) -> None:
    answer, message_part = TAGS[name]
    with hostile({"tags/list": answer}) as server:
        assert message_part in tags_message(server)
        assert len(server.requests) <= 205


def test_all_documents_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_ALL", 1 << 20)
    page = pages(b'{"tags": ["a"]}' + b" " * (400 << 10), 'Link: </v2/team/app/tags/list?n=#>; rel="next"')
    with hostile({"tags/list": page}) as server:
        assert "the registry has sent more than 1 MiB of documents" in tags_message(server)
        assert len(server.requests) <= 5


def test_a_link_header_that_would_be_slow_for_a_regex() -> None:
    for link in ("<" * 60_000, "<a>;" * 15_000, '<a>; rel="' * 6_000, "<>" * 30_000):
        with hostile({"tags/list": document(b'{"tags": ["a"]}', "200 OK", f"Link: {link}")}) as server:
            assert reading(server).tags() == ["a"]


REFERRERS: dict[str, tuple[Answer | bytes, str]] = {
    "pages without an end": (
        pages(b'{"manifests": []}', 'Link: </v2/team/app/referrers/#>; rel="next"'),
        "too many",
    ),
    "pages in a circle": (
        pages(b'{"manifests": []}', f'Link: </v2/team/app/referrers/{DIGEST}>; rel="next"'),
        "loop",
    ),
    "a list without an end": (endless(OPEN, b" " * 65536), "longer than"),
    "text for manifests": (document(b'{"manifests": "abc"}'), "invalid response"),
    "NaN": (document(b'{"manifests": [{"size": NaN}]}'), "NaN is not valid JSON"),
}


@pytest.mark.parametrize("name", REFERRERS)
def test_lists_of_referrers(name: str) -> None:
    answer, message_part = REFERRERS[name]
    with hostile({"GET .*referrers/": answer}) as server:
        with pytest.raises(RegistryError, match=message_part) as error:
            reading(server).referrers(DIGEST)
        sentence(error.value)
        assert len(server.requests) <= 205


def test_all_pages_of_the_list_are_read() -> None:
    first = document(
        b'{"manifests": [{"a": 1}, 7]}', "200 OK", 'Link: </v2/team/app/referrers/more>; rel="next"'
    )
    with hostile({"referrers/more": document(b'{"manifests": [{"b": 2}]}'), "referrers/": first}) as server:
        assert reading(server).referrers(DIGEST) == [{"a": 1}, {"b": 2}]


# --- blobs and tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 70_000])
def test_a_blob_in_pieces(count: int) -> None:
    """A small blob has six attempts, whatever each of them receives."""
    with hostile({"blobs/": b"HTTP/1.1 206 OK\r\nContent-Length: 99999\r\n\r\n" + b"x" * count}) as server:
        with pytest.raises(RegistryError, match="6 attempts"):
            reading(server).small(DIGEST, 1 << 20)
        assert len(server.requests) == 6


@pytest.mark.parametrize("head", [OPEN, CHUNKED + b"10000000\r\n"], ids=["plain", "chunked"])
def test_an_endless_blob(head: bytes) -> None:
    with hostile({"blobs/": endless(head, b"x" * 65536)}) as server:
        with pytest.raises(VerificationFailed, match="longer than 1048576 bytes"):
            reading(server).small(DIGEST, 1 << 20)
        assert server.sent < 32 << 20


@pytest.mark.usefixtures("impatient")
def test_a_slow_blob() -> None:
    with (
        hostile({"blobs/": endless(OPEN, b"x", pause=0.05)}) as server,
        pytest.raises(RegistryError, match="timed out"),
    ):
        reading(server).small(DIGEST, 1 << 20)


TOKENS: dict[str, bytes] = {
    "a list": b"[]",
    "a number": b'{"token": 7}',
    "a list of one": b'{"token": ["x"]}',
    "a megabyte": json.dumps({"token": "x" * (1 << 20)}).encode(),
    "a line feed": b'{"token": "x\\r\\nHost: y"}',
    "not ASCII": '{"token": "ü"}'.encode(),
    "nothing": b"",
    "twice": b'{"token": "x", "token": "y"}',
}


@pytest.mark.parametrize("name", TOKENS)
def test_invalid_responses_of_token_services(name: str) -> None:
    answers = {"GET /token": document(TOKENS[name]), "tags/list": document(b"", "401 No", BEARER)}
    with hostile(answers) as server:
        with pytest.raises(RegistryError, match="returned no token") as error:
            reading(server).tags()
        sentence(error.value)
        assert len(server.requests) <= 4


@pytest.mark.parametrize("lives", ["true", "-1", "1e308", "1e-308", '"60"', "null", "9" * 19])
def test_lifetimes_of_tokens(lives: str) -> None:
    """For any lifetime, one request or refusal causes at most one request for a token."""
    token = b'{"token": "x", "expires_in": ' + lives.encode() + b"}"
    with hostile({"/token": document(token), "tags/list": document(b"", "401 No", BEARER)}) as server:
        with pytest.raises(RegistryError, match="access denied"):
            reading(server).tags()
        assert server.count("/token") <= 4


@pytest.mark.parametrize(
    "header", ["a," * 30_000, " " * 60_000, "a " * 30_000, 'a="' + "\\" * 60_000, "," * 60_000]
)
def test_a_huge_challenge(header: str) -> None:
    assert len(parse_challenges(header)) <= 16


# --- memory ---------------------------------------------------------------------------------------
