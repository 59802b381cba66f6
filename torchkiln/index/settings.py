"""Reads the user's pip and uv settings into IndexSettings: index addresses, certificates, credentials.

The configuration is read with `pip config list`, because only pip knows all its files and variables; uv's
variables override it. Extra indexes and find-links are ignored: they allow dependency confusion, in
which anyone can upload a package of the same name to get it into an image. A lock would also depend on the
machine.
"""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit, urlunsplit

from torchkiln.errors import ConfigError, Unresolvable
from torchkiln.matrix import mirrors
from torchkiln.model.cell import Source
from torchkiln.model.untrusted import declared

PYTORCH_VARIABLE = "TORCHKILN_INDEX_PYTORCH"
PYTORCH_ADDRESS = "https://download.pytorch.org/whl"  # only for messages; it is not a default
_LEFT_OUT_OF_PIP = ("extra-index-url", "find-links")
_LEFT_OUT_OF_UV = ("UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS")
_OTHER_INDEX = f"the package index of {mirrors.NAME}, because another one is configured"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>`]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSettings:
    """Where packages come from. Addresses contain no credentials: `logins` has them."""

    default_url: str
    pytorch_url: str | None
    pytorch_untrusted: bool  # the user marked the address with untrusted+
    ca_bundle: str | None  # file or folder
    client_cert: str | None
    proxy: str | None = field(repr=False)
    logins: tuple[tuple[str, str, str], ...] = field(repr=False)  # (origin, user, password)
    left_out: tuple[str, ...]  # settings that the user has, but that are ignored

    @property
    def untrusted(self) -> tuple[Source, ...]:
        return (Source.PYTORCH,) if self.pytorch_untrusted else ()

    def url(self, source: Source) -> str:
        """The address of *source*, without a trailing slash.

        :raises Unresolvable: *source* is the index `pytorch`, which is not configured.
        """
        if source is Source.DEFAULT:
            return self.default_url
        if self.pytorch_url is None:
            raise Unresolvable(
                "these wheels are only on PyTorch's own index, and that index is not configured",
                hint=f"set {PYTORCH_VARIABLE} to {PYTORCH_ADDRESS} or its folder for one CUDA"
                f" ({PYTORCH_ADDRESS}/cu118), or to a mirror: a simple index, the part before /torch/",
            )
        return self.pytorch_url


def index_settings(
    environ: Mapping[str, str], *, pip_config: str | None = None, default_url: str | None = None
) -> IndexSettings:
    """The settings from *environ* and the user's pip configuration.

    :param pip_config: output of ``pip config list``; None runs pip.
    :param default_url: the index if neither the user nor the mirror sets one; None is PyPI.
    :raises ConfigError: an address is not an http(s) URL, or there is no such mirror.
    """
    pip = parse_pip_config(pip_config_list(environ) if pip_config is None else pip_config)
    configured = environ.get(mirrors.INDEX) or environ.get("UV_INDEX_URL") or pip.get("index-url")
    of_mirror = mirrors.preset_of(environ).get(mirrors.INDEX)
    if default_url is None and not (configured or of_mirror):
        from pypi_simple import PYPI_SIMPLE_ENDPOINT  # loads slowly

        default_url = PYPI_SIMPLE_ENDPOINT
    faults: list[str] = []
    logins: list[tuple[str, str, str]] = []
    default = _address(configured or of_mirror or default_url or "", "index-url", faults, logins)
    pytorch, untrusted = declared(environ.get(PYTORCH_VARIABLE, ""))
    pytorch_url = _address(pytorch, PYTORCH_VARIABLE, faults, logins) if pytorch else None
    if faults:
        raise ConfigError.of(faults, hint="use the URL of a simple index: https://host/path/simple")
    return IndexSettings(
        default_url=default,
        pytorch_url=pytorch_url,
        pytorch_untrusted=untrusted,
        ca_bundle=environ.get("SSL_CERT_FILE") or environ.get("SSL_CERT_DIR") or pip.get("cert"),
        client_cert=environ.get("SSL_CLIENT_CERT") or pip.get("client-cert"),
        proxy=pip.get("proxy"),
        logins=tuple(logins),
        left_out=tuple(name for name in _LEFT_OUT_OF_PIP if pip.get(name))
        + tuple(name for name in _LEFT_OUT_OF_UV if environ.get(name))
        + ((_OTHER_INDEX,) if configured and of_mirror else ()),
    )


def pip_config_list(environ: Mapping[str, str]) -> str:
    """Output of ``pip config list``: of this Python's pip, else of the one on PATH; "" without pip."""
    # -I: otherwise Python would run a pip.py in the current folder.
    for command in ([sys.executable, "-I", "-m", "pip"], ["pip"], ["pip3"]):
        try:
            done = subprocess.run(
                [*command, "--disable-pip-version-check", "config", "list"],
                env=dict(environ),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return done.stdout
    return ""


def parse_pip_config(text: str) -> dict[str, str]:
    """Option → value in ``pip config list``: variables override [install], which overrides [global]."""
    ranked: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        section, dot, option = key.rpartition(".")
        rank = {":env:": 3, "install": 2, "global": 1}.get(section, 0)
        with contextlib.suppress(ValueError, SyntaxError):
            literal = ast.literal_eval(value) if equals and dot else None
            if isinstance(literal, str) and rank > ranked.get(option, (0, ""))[0]:
                ranked[option] = (rank, literal)
    return {option: value for option, (_, value) in ranked.items()}


def redact(url: str) -> str:
    """*url* for a message: scheme, host and last path component, nothing else."""
    try:
        parts = urlsplit(url)
    except ValueError:  # https://[x]: not an IPv6 address
        return f"{url.partition('://')[0]}://…"
    name = PurePosixPath(parts.path).name
    return f"{origin_of(url)}/…/{name}" if name else origin_of(url)


def redact_text(text: str) -> str:
    return _URL.sub(lambda found: redact(found.group()), text)


def host_of(url: str) -> str:
    """Host, or host:port, without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def origin_of(url: str) -> str:
    return f"{urlsplit(url).scheme}://{host_of(url)}"


def with_address(settings: IndexSettings, url: str, setting: str) -> tuple[IndexSettings, str]:
    """*settings* with the credentials in *url*, and *url* without them.

    :raises ConfigError: *url* is not an http(s) URL.
    """
    faults: list[str] = []
    logins = list(settings.logins)
    plain = _address(url, setting, faults, logins)
    if faults:
        raise ConfigError.of(faults)
    return replace(settings, logins=tuple(logins)), plain


def _address(url: str, setting: str, faults: list[str], logins: list[tuple[str, str, str]]) -> str:
    """*url* without its credentials, which are added to *logins*."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port  # raises ValueError if the port is not a number
    except ValueError:  # https://[x]: not an IPv6 address
        host = None
    if not host or parts.scheme not in ("http", "https"):
        faults.append(f"{setting}: not an http(s) URL")
        return ""
    if parts.username is not None:
        logins.append((origin_of(url), unquote(parts.username), unquote(parts.password or "")))
    return urlunsplit((parts.scheme, host_of(url.strip()), parts.path.rstrip("/"), "", ""))
