"""Reads requirements that name a git repository, `NAME @ git+https://…@REVISION`. Pure."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchkiln.model.project import REPOSITORY
from torchkiln.projects.asked import Repository
from torchkiln.projects.choice import is_name
from torchkiln.util.http.redirects import unsafe

_REPOSITORY = re.compile(r"(git|hg|svn|bzr)\+", re.IGNORECASE)
_BARE = re.compile(r"(?P<url>\S+)(\s+;(?P<marker>.*))?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.][A-Za-z0-9_.+-]*)*")
_COMMIT = re.compile(r"[0-9a-f]{40}", re.IGNORECASE)
_NAMED = "name the package: NAME @ git+https://…"
_HTTPS = "the URL of a repository must begin with https://"
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_LONGEST = 1000  # characters of a URL


def repository_required(text: str) -> tuple[str, Repository] | None:
    """The package (PEP 508, without a version) and the repository that the requirement *text* names.

    None: *text* names no repository.

    :raises ValueError: the requirement cannot be locked; the message says why.
    """
    if _REPOSITORY.match(text):
        found = _BARE.fullmatch(text)
        if found is None:
            raise ValueError(_NAMED)
        url, marker = found["url"], (found["marker"] or "").strip()
        named = ""
    else:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            return None
        if not _REPOSITORY.match(requirement.url or ""):
            return None
        url, marker = requirement.url or "", str(requirement.marker or "")
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        named = f"{requirement.name}{extras}"
    place, _, fragment = url.partition("#")
    values = _fragment(fragment)
    egg = values.get("egg", "")
    if (egg and not is_name(egg)) or not (named or egg):
        raise ValueError(_NAMED)
    try:
        package = Requirement(f"{named or egg} ; {marker}" if marker else named or egg)
    except InvalidRequirement:
        raise ValueError("invalid requirement") from None
    if egg and canonicalize_name(egg) != canonicalize_name(package.name):
        raise ValueError(f"egg={egg} does not match the name {package.name}")
    return str(package), _repository(place, values.get("subdirectory", ""))


def repository_at(url: str, revision: str, subdirectory: str) -> Repository:
    """The repository at *url*.

    :raises ValueError: the repository cannot be locked; the message says why.
    """
    scheme, separator, rest = url.partition("://")
    url = f"{scheme.lower()}{separator}{rest}"
    if why := url_fault(url):
        raise ValueError(why)
    if not re.match(REPOSITORY, url):
        raise ValueError("not the URL of a repository")
    if _COMMIT.fullmatch(revision):
        revision = revision.lower()
    elif not _REVISION.fullmatch(revision) or len(revision) > 200 or ".." in revision:
        raise ValueError(f"{revision[:100]!r} is not a valid name of a commit, a branch or a tag")
    folder = posixpath.normpath(subdirectory) if subdirectory else ""
    if folder.startswith(("/", "../")) or folder == ".." or not folder.isprintable() or len(folder) > 1000:
        raise ValueError("invalid subdirectory: it must be a relative path inside the repository")
    return Repository(url=url, revision=revision, subdirectory="" if folder == "." else folder)


def url_fault(url: str) -> str:
    """Why the repository at *url* is not fetched; "" if it is. `http://` is for this machine only."""
    if not url.lower().startswith(("https://", "http://")):
        return _HTTPS
    if why := unsafe(url, url):
        return f"{why}: put them into ~/.netrc" if why == "it contains credentials" else why
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _THIS_MACHINE:
        return _HTTPS
    if parts.query or parts.fragment or not parts.path.strip("/") or "@" in url:
        return "not the URL of a repository"
    return f"longer than {_LONGEST} characters" if len(url) > _LONGEST else ""


def _repository(place: str, subdirectory: str) -> Repository:
    """The repository at *place*, `git+https://host/path@revision`."""
    kind, _, url = place.partition("+")
    if kind.lower() != "git":
        raise ValueError(f"only git+https:// is supported, not {kind}+")
    # The name of a branch may have slashes; as in pip, the revision begins after the last @ of the path.
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    before, at, revision = path.rpartition("@")
    if at:
        url = f"{scheme}://{host}/{before}"
    if at and not revision:
        raise ValueError("no revision after the @")
    return repository_at(url, revision if at else "HEAD", subdirectory)


def _fragment(text: str) -> dict[str, str]:
    """The values of egg= and subdirectory= in *text*, the fragment of a URL."""
    found: dict[str, str] = {}
    for part in filter(None, text.split("&")):
        key, _, value = part.partition("=")
        if key not in ("egg", "subdirectory") or key in found:
            raise ValueError(f"{part[:100]!r}: after # only egg= and subdirectory= are supported, each once")
        found[key] = unquote(value)
    return found
