"""Parses image references by the grammar of the distribution project.

registry.example:5000/team/pytorch-cuda:v2.7@sha256:…
└─────── host ──────┘└─── name ───────┘ tag   digest
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from torchkiln.errors import ConfigError
from torchkiln.model.digest import Digest

DOCKER_HUB = "docker.io"
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?P<name>{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::(?P<port>[0-9]{{1,5}}))?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG_FORM = "at most 128 letters, digits, _ . -"
_LONGEST = 255  # characters of a name with its host
_FORM = "write HOST[:PORT]/REPOSITORY, as in registry.example:5000/team/pytorch-cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A repository in a registry. `host` is spelled as by the user: it is the key of the credentials."""

    host: str  # "registry.example:5000"
    name: str  # "team/pytorch-cuda"

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageReference:
    """An image in a repository, by tag, digest, both or neither."""

    repository: Repository
    tag: str | None = None
    digest: Digest | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> ImageReference:
    """`HOST[:PORT]/REPOSITORY[:TAG][@DIGEST]`; `docker.io/X` is `docker.io/library/X`, as in Docker.

    :raises ConfigError: the reference is invalid; the message names the wrong part.
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ConfigError(f"{text}: invalid digest: it must be sha256:<64 hex digits>", hint=_FORM)
    host, slash, path = rest.partition("/")
    if "://" in text:
        raise ConfigError(f"{text}: invalid reference: it has a scheme", hint=_FORM)
    if not slash or not (host == "localhost" or "." in host or ":" in host):
        raise ConfigError(
            f"{text}: invalid reference: it has no registry host", hint=f"{_FORM}; Docker Hub is {DOCKER_HUB}"
        )
    _demand_host(host, text)
    path, colon, tag = path.partition(":")
    if colon:
        _demand(_TAG, tag, f"{text}: invalid tag {tag!r}", _TAG_FORM)
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"  # as Docker reads it
    _demand(
        _NAME,
        path,
        f"{text}: invalid repository name {path!r}",
        "lower-case letters and digits, joined by . _ - /",
    )
    if len(host) + 1 + len(path) > _LONGEST:
        raise ConfigError(f"{text[:40]}…: longer than {_LONGEST} characters", hint="choose a shorter name")
    repository = Repository(host=host, name=path)
    return ImageReference(repository=repository, tag=tag or None, digest=Digest(digest) if at else None)


def parse_repository(text: str) -> Repository:
    """`HOST[:PORT]/REPOSITORY`.

    :raises ConfigError: it is invalid, or has a tag or a digest.
    """
    found = parse_reference(text)
    if found.tag or found.digest:
        raise ConfigError(f"{text}: a repository must have neither tag nor digest", hint=_FORM)
    return found.repository


def is_tag(text: object) -> bool:
    return isinstance(text, str) and _TAG.fullmatch(text) is not None


def parse_tag(text: str) -> str:
    """*text*, if it is a valid tag.

    :raises ConfigError: it is not.
    """
    _demand(_TAG, text, f"invalid tag {text!r}", _TAG_FORM)
    return text


def api_host(host: str) -> str:
    """The host of the API of the registry *host*; for Docker Hub it is not the host that references name."""
    return "registry-1.docker.io" if host == DOCKER_HUB else host


def is_local(host: str) -> bool:
    """Whether *host* is this machine, so that plain HTTP is safe."""
    match = _HOST.fullmatch(host)
    name = match["name"].strip("[]") if match else ""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _demand(pattern: re.Pattern[str], text: str, message: str, allowed: str) -> None:
    if not pattern.fullmatch(text):
        raise ConfigError(message, hint=f"allowed: {allowed}")


def _demand_host(host: str, text: str) -> None:
    match = _HOST.fullmatch(host)
    good = match is not None and (match["port"] is None or 0 < int(match["port"]) < 65536)
    if good and host.startswith("["):
        try:
            ipaddress.ip_address(host.partition("]")[0][1:])
        except ValueError:
            good = False
    if not good:
        raise ConfigError(f"{text}: invalid host {host!r}", hint=_FORM)
