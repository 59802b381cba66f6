"""Makes Authorization headers for a registry: basic, or with bearer tokens, which are cached and renewed."""

from __future__ import annotations

import base64
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlencode, urlsplit

from torchkiln.errors import RegistryError
from torchkiln.registry.credentials import Login
from torchkiln.registry.messages import REGISTRY_AT_FAULT, HttpRequest, HttpResponse, Scopes
from torchkiln.util.strict_json import json_of

_TOKEN = "a token"  # its name in error messages
_DEFAULT_LIFE = 60.0  # seconds that a token is valid if the response has no expires_in, by the specification
_LONGEST = 32 << 10  # characters of a token, which is in the header of each request
_USED_LIFE = 0.8  # share of a token's life after which it is not used for a new request
_CHALLENGES = 16  # most challenges of a response
_HEADER = 16 << 10  # characters of a WWW-Authenticate header that are read (RFC 9110, 11.6.1)
_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_SCHEME = re.compile(rf"[\s,]*(?P<scheme>{_WORD})(?=\s|,|$)")
_PARAMETER = re.compile(
    rf'[\s,]*(?P<name>{_WORD})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{_WORD}))'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """An authentication scheme with its parameters. `scheme` and the parameters' names are lower-case."""

    scheme: str  # "basic", "bearer"
    parameters: dict[str, str] = field(hash=False)


def parse_challenges(header: str) -> list[Challenge]:
    """The challenges in *header*, in order, up to the first that is malformed or beyond the limit."""
    return list(islice(_challenges(header[:_HEADER]), _CHALLENGES))


def _challenges(header: str) -> Iterator[Challenge]:
    at = 0
    while found := _SCHEME.match(header, at):
        at, parameters = found.end(), {}
        while parameter := _PARAMETER.match(header, at):
            quoted = parameter["quoted"]
            value = parameter["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            parameters[parameter["name"].lower()] = value
            at = parameter.end()
        yield Challenge(scheme=found["scheme"].lower(), parameters=parameters)


@dataclass(frozen=True, slots=True)
class _Token:
    header: str
    until: float


class Authenticator:
    """Authenticates requests to one registry; thread-safe: each token is fetched once."""

    def __init__(
        self,
        host: str,
        login: Login | None,
        fetch: Callable[[HttpRequest], HttpResponse],
        *,
        secure: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._login, self._fetch, self._secure, self._now = host, login, fetch, secure, now
        self._challenge: Challenge | None = None
        self._tokens: dict[Scopes, _Token] = {}
        self._guard = threading.Lock()

    def header(self, scopes: Scopes) -> str | None:
        """The header for a request that needs *scopes*; None until the registry has sent a challenge.

        :raises RegistryError: the token server denies access, or the request failed.
        """
        if self._challenge is None:
            return None
        with self._guard:
            return self._current(scopes)

    def learn(self, response: HttpResponse, scopes: Scopes, used: str | None) -> None:
        """Read the challenge of a 401. *used*, the rejected header, is not used again.

        :raises RegistryError: the scheme is not supported, or the login is missing.
        """
        with self._guard:
            self._challenge = self._chosen(response)
            token = self._tokens.get(scopes)
            if token and token.header == used:
                del self._tokens[scopes]

    def redact(self, text: str) -> str:
        """*text*, which a registry sent, without the user's secrets."""
        found = [token.header.partition(" ")[2] for token in list(self._tokens.values())]
        for secret in (*found, *(self._login.secrets if self._login else ())):
            text = text.replace(secret, "…")
        return text

    def denied(self, what: str) -> RegistryError:
        """The error if access is denied with new credentials."""
        who = f"for {self._login.user or 'the owner of the token'}" if self._login else "without a login"
        return RegistryError(
            f"{self._host}: access denied {who}: {what}",
            hint=f"docker login {self._host}, as a user with push access",
        )

    def _chosen(self, response: HttpResponse) -> Challenge:
        found = parse_challenges(response.headers.get("WWW-Authenticate", ""))
        for scheme in ("bearer", "basic"):
            for challenge in found:
                if challenge.scheme == scheme:
                    if scheme == "basic" and not (self._login and self._login.user):
                        raise RegistryError(
                            f"{self._host}: unauthorized: no basic auth credentials",
                            hint=f"docker login {self._host}",
                        )
                    return challenge
        schemes = ", ".join(challenge.scheme for challenge in found) or "none"
        raise RegistryError(
            f"{self._host}: HTTP 401: unsupported authentication scheme: {schemes[:100]}",
            hint="torchkiln supports basic and bearer; check that the host is a registry",
        )

    def _current(self, scopes: Scopes) -> str:
        assert self._challenge is not None
        if self._challenge.scheme == "basic":
            return _basic(self._login)
        token = self._tokens.get(scopes)
        if token is None or token.until <= self._now():
            token = self._tokens[scopes] = self._fetch_token(self._challenge, scopes)
        return token.header

    def _fetch_token(self, challenge: Challenge, scopes: Scopes) -> _Token:
        realm, service = challenge.parameters.get("realm", ""), challenge.parameters.get("service", "")
        self._check_realm(realm)
        began = self._now()
        if self._login and self._login.identity_token:
            form = {
                "grant_type": "refresh_token",
                "service": service,
                "client_id": "torchkiln",
                "scope": " ".join(scopes),
                "refresh_token": self._login.identity_token,
            }
            kind, body = {"Content-Type": "application/x-www-form-urlencoded"}, urlencode(form).encode()
            request = HttpRequest(method="POST", url=realm, what=_TOKEN, headers=kind, body=body)
        else:
            named = [("service", service)] if service else []
            query = urlencode([*named, *(("scope", scope) for scope in scopes)])
            login = {"Authorization": _basic(self._login)} if self._login and self._login.user else {}
            url = f"{realm}{'&' if '?' in realm else '?'}{query}"
            request = HttpRequest(method="GET", url=url, what=_TOKEN, headers=login)
        response = self._fetch(request)
        if response.status in (400, 401, 403):
            raise self.denied(
                f"token for {' '.join(scopes) or 'no scope'} ({self.redact(response.error_text())})"
            )
        token, life = _token(response)
        if not token:
            raise RegistryError(
                f"{self._host}: the token server {urlsplit(realm).netloc.rpartition('@')[2]} returned no"
                f" token (HTTP {response.status})",
                hint="the registry is at fault; try again later",
            )
        return _Token(f"Bearer {token}", began + life * _USED_LIFE)

    def _check_realm(self, realm: str) -> None:
        """Check the URL that the password is sent to: require https, unless the registry itself uses http."""
        try:
            parts = urlsplit(realm)
            host = parts.hostname or ""
        except ValueError:
            host = ""
        if not host or parts.scheme not in ("http", "https"):
            raise RegistryError(
                f"{self._host}: HTTP 401 without a valid realm to get a token from", hint=REGISTRY_AT_FAULT
            )
        if parts.scheme == "http" and self._secure:  # even to this machine, where anyone can listen
            raise RegistryError(
                f"{self._host}: refusing to send the login to {host} without https", hint=REGISTRY_AT_FAULT
            )


def _basic(login: Login | None) -> str:
    assert login is not None
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _token(response: HttpResponse) -> tuple[str, float]:
    """The token in *response*, "" if there is none, and its life in seconds."""
    try:
        document = json_of(response.body) if response.status == 200 else {}
        token, life = document.get("token") or document.get("access_token"), document.get("expires_in")
    except (ValueError, AttributeError):
        return "", 0.0
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token):
        return "", 0.0
    if len(token) > _LONGEST:
        return "", 0.0
    if isinstance(life, bool) or not isinstance(life, (int, float)) or life <= 0:
        return token, _DEFAULT_LIFE
    return token, float(life)
