"""Challenge and Login → the Authorization header of a request; tokens are fetched, kept and renewed here."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from torchkiln.errors import RegistryError
from torchkiln.registry.answer import Answer
from torchkiln.registry.challenge import Challenge, parse_challenges
from torchkiln.registry.credentials import Login
from torchkiln.registry.reference import is_local
from torchkiln.util.strict_json import json_of

Scopes = tuple[str, ...]  # ("repository:team/app:pull,push",)
_USUAL = 60.0  # seconds that a token lives if nothing is said: the specification's own number
_LONGEST = 32 << 10  # characters of a token: it goes into the header of each request
_SPENT = 0.8  # of its life, after which a token is not used for a new request


class Fetch(Protocol):
    """One request with no other headers than those given; tried again while that may help."""

    def __call__(
        self, method: str, url: str, *, headers: Mapping[str, str], data: bytes | None = None
    ) -> Answer: ...


@dataclass(frozen=True, slots=True)
class _Token:
    header: str
    until: float


class Authority:
    """Who we are at one registry. Safe for threads: of those who want one token, one fetches it."""

    def __init__(
        self,
        host: str,
        login: Login | None,
        fetch: Fetch,
        *,
        secure: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._login, self._fetch, self._secure, self._now = host, login, fetch, secure, now
        self._challenge: Challenge | None = None
        self._tokens: dict[Scopes, _Token] = {}
        self._guard = threading.Lock()

    def header(self, scopes: Scopes) -> str | None:
        """The header for a request that needs *scopes*; None as long as nobody has asked for one.

        :raises RegistryError: the token server refuses, or cannot be reached.
        """
        if self._challenge is None:
            return None
        with self._guard:
            return self._current(scopes)

    def learn(self, answer: Answer, scopes: Scopes, used: str | None) -> None:
        """After a 401: what the registry wants. *used*, the header that was refused, is not used again.

        :raises RegistryError: it wants what we do not have, or nothing that we know.
        """
        with self._guard:
            self._challenge = self._chosen(answer)
            kept = self._tokens.get(scopes)
            if kept and kept.header == used:
                del self._tokens[scopes]

    def scrub(self, text: str) -> str:
        """*text* without our secrets, should a registry tell them back."""
        found = [token.header.partition(" ")[2] for token in list(self._tokens.values())]
        for secret in (*found, *(self._login.secrets if self._login else ())):
            text = text.replace(secret, "…")
        return text

    def denied(self, what: str) -> RegistryError:
        """The error for fresh credentials that were refused."""
        who = f"as {self._login.user or 'the owner of its token'}" if self._login else "without a login"
        return RegistryError(
            f"{self._host}: {what} is refused to us {who}",
            hint=f"docker login {self._host}, as somebody who may push there",
        )

    def _chosen(self, answer: Answer) -> Challenge:
        found = parse_challenges(answer.headers.get("WWW-Authenticate", ""))
        for scheme in ("bearer", "basic"):
            for challenge in found:
                if challenge.scheme == scheme:
                    if scheme == "basic" and not (self._login and self._login.user):
                        raise RegistryError(
                            f"{self._host} wants a user and a password, and there are none for it",
                            hint=f"docker login {self._host}",
                        )
                    return challenge
        wanted = ", ".join(challenge.scheme for challenge in found) or "nothing that it names"
        raise RegistryError(
            f"{self._host}: HTTP 401, and it wants {wanted[:100]}; basic and bearer are known here",
            hint="is it a registry?",
        )

    def _current(self, scopes: Scopes) -> str:
        assert self._challenge is not None
        if self._challenge.scheme == "basic":
            return _basic(self._login)
        kept = self._tokens.get(scopes)
        if kept is None or kept.until <= self._now():
            kept = self._tokens[scopes] = self._fetched(self._challenge, scopes)
        return kept.header

    def _fetched(self, challenge: Challenge, scopes: Scopes) -> _Token:
        realm, service = challenge.parameters.get("realm", ""), challenge.parameters.get("service", "")
        self._demand_realm(realm)
        began = self._now()
        if self._login and self._login.identity_token:
            form = {
                "grant_type": "refresh_token",
                "service": service,
                "client_id": "torchkiln",
                "scope": " ".join(scopes),
                "refresh_token": self._login.identity_token,
            }
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = self._fetch("POST", realm, headers=kind, data=urlencode(form).encode())
        else:
            asked = [("service", service)] if service else []
            query = urlencode([*asked, *(("scope", scope) for scope in scopes)])
            login = {"Authorization": _basic(self._login)} if self._login and self._login.user else {}
            answer = self._fetch("GET", f"{realm}{'&' if '?' in realm else '?'}{query}", headers=login)
        if answer.status in (400, 401, 403):
            raise self.denied(f"a token for {' '.join(scopes) or 'anything'} ({self.scrub(answer.told())})")
        token, lives = _token(answer)
        if not token:
            raise RegistryError(
                f"{self._host}: its token server {urlsplit(realm).netloc.rpartition('@')[2]} gave no token "
                f"(HTTP {answer.status})",
                hint="the registry is at fault; try again later",
            )
        return _Token(f"Bearer {token}", began + lives * _SPENT)

    def _demand_realm(self, realm: str) -> None:
        """Our password goes there: not in the clear, unless all of this registry is so."""
        try:
            parts = urlsplit(realm)
            host = parts.hostname or ""
        except ValueError:
            host = ""
        if not host or parts.scheme not in ("http", "https"):
            raise RegistryError(
                f"{self._host}: names no address to get a token from", hint="the registry is at fault"
            )
        if parts.scheme == "http" and self._secure and not is_local(host):
            raise RegistryError(
                f"{self._host}: would have us send the login to {host} unencrypted",
                hint="the registry is at fault",
            )


def _basic(login: Login | None) -> str:
    assert login is not None
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _token(answer: Answer) -> tuple[str, float]:
    """The token in *answer*, "" if there is none, and for how many seconds it is good."""
    try:
        told = json_of(answer.body) if answer.status == 200 else {}
        token, lives = told.get("token") or told.get("access_token"), told.get("expires_in")
    except (ValueError, AttributeError):
        return "", 0.0
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token):
        return "", 0.0
    if len(token) > _LONGEST:
        return "", 0.0
    if isinstance(lives, bool) or not isinstance(lives, (int, float)) or lives <= 0:
        return token, _USUAL
    return token, float(lives)
