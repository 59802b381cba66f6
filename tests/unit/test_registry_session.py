"""References, challenges and tokens, tested without a network and without sleeping."""

from __future__ import annotations

import email.utils
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import ConfigError, RegistryError
from torchkiln.registry.credentials import Login
from torchkiln.registry.messages import HttpRequest, HttpResponse
from torchkiln.registry.reference import (
    ImageReference,
    Repository,
    api_host,
    is_local,
    parse_reference,
    parse_repository,
)
from torchkiln.registry.tokens import Authenticator, Challenge, parse_challenges
from torchkiln.util.http.retry import ATTEMPTS, pause, retry_after

PUSH = ("repository:team/app:pull,push",)
REALM = "https" + "://auth.example/token"
KIM = Login(user="kim", password="correct horse")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", []),
        ('Basic realm="a registry"', [("basic", {"realm": "a registry"})]),
        ("Basic", [("basic", {})]),
        (
            'Bearer realm="https'
            '://a.example/t?x=1,2",service="s",scope="repository:a/b:pull,push",error="invalid_token"',
            [
                (
                    "bearer",
                    {
                        "realm": "https" + "://a.example/t?x=1,2",
                        "service": "s",
                        "scope": "repository:a/b:pull,push",
                        "error": "invalid_token",
                    },
                )
            ],
        ),
        ('BEARER  Realm = "a" , SERVICE=b', [("bearer", {"realm": "a", "service": "b"})]),
        (
            'Negotiate, Basic realm="a, Bearer realm=b", Bearer realm="c"',
            [("negotiate", {}), ("basic", {"realm": "a, Bearer realm=b"}), ("bearer", {"realm": "c"})],
        ),
        (r'Basic realm="a \"quoted\" one"', [("basic", {"realm": 'a "quoted" one'})]),
        ('Bearer realm="never ends', [("bearer", {})]),
    ],
)
def test_challenges(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    challenges = [Challenge(scheme=scheme, parameters=found) for scheme, found in expected]

    assert parse_challenges(header)[: len(challenges)] == challenges


@given(st.text(alphabet='abB=",\\ \t', max_size=60))
def test_any_header_can_be_parsed(header: str) -> None:
    for challenge in parse_challenges(header):
        assert challenge.scheme == challenge.scheme.lower()


def test_a_challenge_is_read_up_to_its_limit() -> None:
    padding = 'a="' + "x" * (16 << 10) + '", '
    assert [challenge.scheme for challenge in parse_challenges(f"Basic {padding}Bearer b=c")] == ["basic"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("86400", 30.0),
        ("", 0.0),
        ("-5", 0.0),
        ("soon", 0.0),
        ("1e9", 0.0),
        ("²", 0.0),
        (email.utils.formatdate(1_000_020, usegmt=True), 20.0),
        (email.utils.formatdate(999_000, usegmt=True), 0.0),
        (email.utils.formatdate(2_000_000, usegmt=True), 30.0),
    ],
)
def test_retry_after(text: str, seconds: float) -> None:
    assert retry_after({"Retry-After": text}, now=lambda: 1_000_000.0) == seconds


def test_pauses_grow_and_are_limited() -> None:
    pauses = [pause(attempt, 0.0) for attempt in range(1, ATTEMPTS + 4)]

    assert pauses == sorted(pauses)
    assert pauses[0] < 1 < pauses[-1] == 8.0
    assert pause(1, 42.0) == 42.0


class TokenServer:
    """A server that issues numbered tokens, and records the requests."""

    def __init__(self, **token_fields: Any) -> None:
        self.requests: list[tuple[str, str, Mapping[str, str], bytes | None]] = []
        self.fields, self.status, self.now = token_fields, 200, 0.0

    def __call__(self, request: HttpRequest) -> HttpResponse:
        body, url = request.body, request.url
        assert body is None or isinstance(body, bytes)
        self.requests.append((request.method, url, request.headers, body))
        answer = json.dumps({"token": f"t{len(self.requests)}", **self.fields}).encode()
        return HttpResponse(url=url, status=self.status, headers={}, body=answer)

    def authority(self, login: Login | None = KIM, *, secure: bool = True) -> Authenticator:
        """An authenticator that gets its tokens from this server."""
        return Authenticator("registry.example", login, self, secure=secure, now=lambda: self.now)


def refusal(header: str) -> HttpResponse:
    return HttpResponse(url="", status=401, headers={"WWW-Authenticate": header}, body=b"")


BEARER = refusal(f'Bearer realm="{REALM}",service="the registry"')


def test_no_login_is_sent_without_a_challenge() -> None:
    assert TokenServer().authority().header(PUSH) is None


def test_a_token_is_requested_with_scopes_and_login() -> None:
    server = TokenServer()
    authority = server.authority()
    authority.learn(BEARER, PUSH, None)

    scopes = (*PUSH, "repository:other:pull")
    assert authority.header(scopes) == "Bearer t1"
    ((method, url, headers, _),) = server.requests
    assert method == "GET"
    assert url.startswith(REALM + "?")
    assert parse_qs(urlsplit(url).query) == {"service": ["the registry"], "scope": list(scopes)}
    assert headers["Authorization"].startswith("Basic ")


def test_an_identity_token_is_exchanged_and_not_in_the_url() -> None:
    server = TokenServer(token=None, access_token="mine")
    authority = server.authority(Login(identity_token="for ever"))
    authority.learn(BEARER, PUSH, None)

    assert authority.header(PUSH) == "Bearer mine"
    ((method, url, _, data),) = server.requests
    assert (method, url) == ("POST", REALM)
    form = parse_qs((data or b"").decode())
    assert (form["grant_type"], form["refresh_token"]) == (["refresh_token"], ["for ever"])


def test_a_token_is_cached_for_its_scopes_until_it_nearly_expires() -> None:
    server = TokenServer(expires_in=100)
    authority = server.authority()
    authority.learn(BEARER, PUSH, None)

    assert [authority.header(PUSH), authority.header(PUSH), authority.header(("other",))] == [
        "Bearer t1",
        "Bearer t1",
        "Bearer t2",
    ]
    server.now = 79.0
    assert authority.header(PUSH) == "Bearer t1"
    server.now = 81.0
    assert authority.header(PUSH) == "Bearer t3"


def test_only_the_refused_token_is_dropped() -> None:
    """Meanwhile another thread may have got a new token, which stays."""
    server = TokenServer()
    authority = server.authority()
    authority.learn(BEARER, PUSH, None)
    old = authority.header(PUSH)
    authority.learn(BEARER, PUSH, old)
    new = authority.header(PUSH)
    authority.learn(BEARER, PUSH, old)

    assert (old, new, authority.header(PUSH)) == ("Bearer t1", "Bearer t2", "Bearer t2")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "unsupported authentication scheme: none"),
        ("Negotiate", "unsupported authentication scheme: negotiate"),
        ('Bearer realm=""', "without a valid realm to get a token from"),
        ('Bearer realm="file:///etc/passwd"', "without a valid realm"),
        ('Bearer realm="http' + '://elsewhere.example/token"', "without https"),
        ('Bearer realm="http' + '://localhost:5000/token"', "without https"),
    ],
)
def test_unsafe_challenges_are_not_followed(header: str, message: str) -> None:
    server = TokenServer()
    authority = server.authority()

    def ask() -> None:
        authority.learn(refusal(header), PUSH, None)
        authority.header(PUSH)

    with pytest.raises(RegistryError, match=message):
        ask()
    assert server.requests == []


def test_a_registry_without_https_may_have_a_token_server_without_https() -> None:
    authority = TokenServer().authority(secure=False)
    authority.learn(refusal('Bearer realm="http' + '://elsewhere.example/token"'), PUSH, None)

    assert authority.header(PUSH) == "Bearer t1"


def test_basic_without_a_login_has_a_hint() -> None:
    with pytest.raises(RegistryError, match="no basic auth credentials") as error:
        TokenServer().authority(None).learn(refusal("Basic"), PUSH, None)

    assert error.value.hint == "docker login registry.example"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        *((code, "access denied for kim: token for repository:") for code in (400, 401, 403)),
        (404, "returned no token"),
    ],
)
def test_a_token_server_that_refuses(status: int, message: str) -> None:
    server = TokenServer(errors=[{"code": "DENIED", "message": "not with correct horse"}])
    server.status = status
    authority = server.authority()
    authority.learn(BEARER, PUSH, None)

    with pytest.raises(RegistryError, match=message) as error:
        authority.header(PUSH)

    assert "correct horse" not in error.value.message
    assert "registry.example" in error.value.message


DIGEST = "sha256:" + "0123456789abcdef" * 4
LABEL = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?", fullmatch=True)
HOSTS = st.one_of(
    st.just("localhost"),
    st.lists(LABEL, min_size=2, max_size=4).map(".".join),
    st.tuples(LABEL, st.integers(1, 65535)).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    st.ip_addresses(v=6).map(lambda found: f"[{found}]:5000"),
)
PART = st.from_regex(r"[a-z0-9]{1,6}((\.|_|__|-{1,3})[a-z0-9]{1,4}){0,2}", fullmatch=True)
NAMES = st.lists(PART, min_size=1, max_size=4).map("/".join)
TAGS = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)


@given(host=HOSTS, name=NAMES, tag=TAGS, digest=st.sampled_from([None, DIGEST]))
def test_references_read_back(host: str, name: str, tag: str | None, digest: str | None) -> None:
    text = f"{host}/{name}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")

    found = parse_reference(text)

    assert found == ImageReference(repository=Repository(host=host, name=name), tag=tag, digest=digest)
    assert str(found) == text


@given(st.text(max_size=40) | st.from_regex(r"[a-z.:/@ A-Z_-]{0,30}", fullmatch=True))
def test_other_references_are_refused_with_a_message(text: str) -> None:
    """Any text gives a reference or ConfigError. An accepted reference is written as it was read."""
    try:
        found = parse_reference(text)
    except ConfigError:
        return
    assert str(found) in (text, text.replace("docker.io/", "docker.io/library/", 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "invalid reference: it has no registry host"),
        ("pytorch", "invalid reference: it has no registry host"),
        ("team/pytorch", "invalid reference: it has no registry host"),
        ("registry.example", "invalid reference: it has no registry host"),
        ("https://registry.example/team/app", "it has a scheme"),
        ("registry.example:0/app", "invalid host 'registry.example:0'"),
        ("registry.example:65536/app", "invalid host"),
        ("registry.example:https/app", "invalid host"),
        ("-registry.example/app", "invalid host"),
        ("registry..example/app", "invalid host"),
        ("user:secret@registry.example/app", "invalid digest: it must be"),
        ("[::g]:5000/app", "invalid host"),
        ("[1:2]:5000/app", "invalid host"),
        ("registry.example/", "invalid repository name ''"),
        ("registry.example//app", "invalid repository name"),
        ("registry.example/Team/app", "invalid repository name 'Team/app'"),
        ("registry.example/team/app/", "invalid repository name"),
        ("registry.example/a___b", "invalid repository name"),
        ("registry.example/a..b", "invalid repository name"),
        ("registry.example/../b", "invalid repository name"),
        ("registry.example/app\n", "invalid repository name"),
        ("registry.example/app:", "invalid tag ''"),
        ("registry.example/app:.a", "invalid tag '.a'"),
        ("registry.example/app:a:b", "invalid tag 'a:b'"),
        ("registry.example/app:" + "a" * 129, "invalid tag"),
        ("registry.example/app@sha256:12", "invalid digest: it must be sha256:<64 hex"),
        ("registry.example/app@sha512:" + "0" * 128, "invalid digest: it must be sha256:<64 hex"),
        ("registry.example/app@" + DIGEST.upper(), "invalid digest: it must be sha256:<64 hex"),
        ("registry.example/" + "a" * 250, "longer than 255"),
    ],
)
def test_the_wrong_part_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        parse_reference(text)
    assert error.value.hint


def test_the_longest_reference() -> None:
    """As in the reference implementation, host and name together have at most 255 characters."""
    host = "registry.example"
    name = "a" * (255 - len(host) - 1)
    assert parse_reference(f"{host}/{name}").repository == Repository(host=host, name=name)
    with pytest.raises(ConfigError, match="longer than 255"):
        parse_reference(f"{host}/{name}a")


def test_docker_hubs_short_form_is_read_like_by_docker() -> None:
    assert str(parse_reference("docker.io/ubuntu:24.04")) == "docker.io/library/ubuntu:24.04"
    assert str(parse_reference("docker.io/team/app")) == "docker.io/team/app"
    assert api_host("docker.io") == "registry-1.docker.io"
    assert api_host("registry.example:5000") == "registry.example:5000"


@pytest.mark.parametrize("end", [":v1", f"@{DIGEST}"])
def test_a_repository_has_neither_tag_nor_digest(end: str) -> None:
    assert parse_repository("localhost/app") == Repository(host="localhost", name="app")
    with pytest.raises(ConfigError, match="neither tag nor digest"):
        parse_repository("localhost/app" + end)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.8.9.1", True),
        ("[::1]:5000", True),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("128.0.0.1", False),
        ("registry.example:80", False),
        ("[::2]", False),
    ],
)
def test_plain_http_is_only_for_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local
