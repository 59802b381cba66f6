"""The user's mirrors, proxy and CA bundle → what a build is told in secret, for the one step that runs apt.

BuildKit mounts a secret while a step runs; no layer, history or cache key has it. Without secrets apt
goes by what the base says. What pip is told stays here: wheels are fetched before the build, by us.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torchkiln.base.recipe import BaseRecipe
from torchkiln.base.sources import variables
from torchkiln.errors import ConfigError
from torchkiln.model.untrusted import declared

# The Dockerfile names the first as APT_CONFIG, which names the others. Apt passes over what is not there.
APT_CONFIG, SOURCES, CA = "apt-config", "apt-sources", "apt-ca"
_PLACE = "/run/secrets"
_PROXIES = {"http": ("http_proxy", "HTTP_PROXY"), "https": ("https_proxy", "HTTPS_PROXY")}


def apt_secrets(recipe: BaseRecipe, environ: Mapping[str, str], ca_bundle: Path | None) -> dict[str, bytes]:
    """Content by the secret's id; empty where the user's environment says nothing.

    :raises ConfigError: a mirror or proxy is no address, a security mirror stands alone, or the bundle cannot
        be read.
    """
    found: dict[str, bytes] = {}
    config: list[str] = []
    if sources := _sources(recipe, environ):
        found[SOURCES] = "".join(f"{line}\n" for line in sources).encode()
        config += [f'Dir::Etc::SourceList "{_PLACE}/{SOURCES}";', 'Dir::Etc::SourceParts "-";']
    if ca_bundle is not None:
        try:
            found[CA] = ca_bundle.read_bytes()
        except OSError as error:
            raise ConfigError(f"the CA bundle cannot be read: {error}", hint="see SSL_CERT_FILE") from error
        config.append(f'Acquire::https::CAInfo "{_PLACE}/{CA}";')
    for scheme, names in _PROXIES.items():
        if proxy := next((environ[name] for name in names if environ.get(name)), None):
            config.append(f'Acquire::{scheme}::Proxy "{_address(names[0], proxy)}";')
    if config:
        found[APT_CONFIG] = "".join(f"{line}\n" for line in config).encode()
    return found


def _sources(recipe: BaseRecipe, environ: Mapping[str, str]) -> list[str]:
    """Lines of a sources.list; none where no mirror is set."""
    mirror, security, _ = variables(recipe)
    given = {name: declared(environ.get(name, ""))[0] for name in (mirror, security)}
    if given[security] and not given[mirror]:
        raise ConfigError(f"{security} is set and {mirror} is not", hint="set both, or the latter")
    if not given[mirror]:
        return []
    where = [(mirror, recipe.suite), (mirror, f"{recipe.suite}-updates")]
    if given[security]:
        where.append((security, f"{recipe.suite}-security"))
    components = " ".join(recipe.components)
    return [f"deb {_address(name, given[name])} {suite} {components}" for name, suite in where]


def _address(name: str, value: str) -> str:
    """*value*, which is the variable *name*'s. It may hold a password, so no error repeats it."""
    if not re.fullmatch(r"https?://[^\s\"'\\;\[\]{}]+", value):
        raise ConfigError(f"{name} is not an http(s) address that apt could take")
    return value
