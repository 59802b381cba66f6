"""Builds a locked cell in a Docker engine, in one call.

The user's mirrors, proxy and CA bundle are build secrets of the step that runs apt: no layer, history or
cache key contains them. Settings of pip are not passed: wheels are downloaded before the build.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torchkiln.base.recipe import BaseRecipe, recipe, values, variables
from torchkiln.docker.build import BuildxOptions, EngineImage, build
from torchkiln.docker.dockerfile import load_templates, render_folder
from torchkiln.engine.build import after, check_trusted
from torchkiln.engine.environment import Environment
from torchkiln.engine.prerequisites import BaseSources, ready
from torchkiln.errors import ConfigError
from torchkiln.index.settings import index_settings
from torchkiln.matrix.facts import Facts
from torchkiln.matrix.matrix import Matrix
from torchkiln.matrix.tags import tag_of
from torchkiln.model.lock import LockedCell
from torchkiln.model.untrusted import declared
from torchkiln.plan.load import plan_locked
from torchkiln.util.places import TEMPLATES

# Ids of secrets. The Dockerfile sets the variable APT_CONFIG to the file of the first secret, which names the
# files of the other two. apt ignores missing files.
APT_CONFIG, SOURCES, CA = "apt-config", "apt-sources", "apt-ca"
_FOLDER = "/run/secrets"
_PROXIES = {"http": ("http_proxy", "HTTP_PROXY"), "https": ("https_proxy", "HTTPS_PROXY")}


def build_on_docker(
    locked: LockedCell,
    matrix: Matrix,
    facts: Facts,
    environment: Environment,
    *,
    sources: BaseSources,
    options: BuildxOptions,
) -> EngineImage:
    """Provide base and tools (unless the user names a base), render the Dockerfile, and build it.

    The Dockerfile is rendered again, because the committed one can be stale.
    """
    started = time.monotonic()
    check_trusted(locked, sources)
    environment.store.sweep()
    base_recipe = recipe(locked.resolution.cell.os)
    if options.base is not None:  # apt may have to install packages that the user's base lacks
        bundle = Path(index_settings(environment.environ).ca_bundle or "")
        secrets = apt_secrets(base_recipe, environment.environ, bundle if bundle.is_file() else None)
        options = replace(options, secrets=secrets)
    with ready(
        locked,
        lambda cell: plan_locked(cell, matrix, facts),
        environment,
        sources if options.base is None else None,
        what=f"builds {tag_of(locked.resolution)} on Docker",
    ) as (plan, moved):
        prepared = time.monotonic() - started
        built = build(
            plan,
            render_folder(plan, load_templates(TEMPLATES, matrix.folder), base_recipe.packages),
            environment,
            repository=matrix.repository,
            options=options,
        )
    return replace(built, base_moved=moved, seconds=after(prepared, built.seconds))


def apt_secrets(recipe: BaseRecipe, environ: Mapping[str, str], ca_bundle: Path | None) -> dict[str, bytes]:
    """The content by secret id; empty if the environment sets no mirror, proxy or CA bundle.

    :raises ConfigError: a mirror or proxy is not an http(s) URL, only a security mirror is set, or the bundle
        cannot be read.
    """
    found: dict[str, bytes] = {}
    config: list[str] = []
    if sources := _sources(recipe, environ):
        found[SOURCES] = "".join(f"{line}\n" for line in sources).encode()
        config += [f'Dir::Etc::SourceList "{_FOLDER}/{SOURCES}";', 'Dir::Etc::SourceParts "-";']
    if ca_bundle is not None:
        try:
            found[CA] = ca_bundle.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read the CA bundle: {error}", hint="check SSL_CERT_FILE") from error
        config.append(f'Acquire::https::CAInfo "{_FOLDER}/{CA}";')
    for scheme, names in _PROXIES.items():
        if proxy := next((environ[name] for name in names if environ.get(name)), None):
            config.append(f'Acquire::{scheme}::Proxy "{_url(names[0], proxy)}";')
    if config:
        found[APT_CONFIG] = "".join(f"{line}\n" for line in config).encode()
    return found


def _sources(recipe: BaseRecipe, environ: Mapping[str, str]) -> list[str]:
    """Lines of a sources.list; none if no mirror is set."""
    mirror, security, _ = variables(recipe)
    found = values(recipe, environ)
    urls = {mirror: declared(found[0])[0], security: declared(found[1])[0]}
    if urls[security] and not urls[mirror]:
        raise ConfigError(f"{security} is set but {mirror} is not", hint=f"set both, or only {mirror}")
    if not urls[mirror]:
        return []
    suites = [(mirror, recipe.suite), (mirror, f"{recipe.suite}-updates")]
    if urls[security]:
        suites.append((security, f"{recipe.suite}-security"))
    components = " ".join(recipe.components)
    return [f"deb {_url(name, urls[name])} {suite} {components}" for name, suite in suites]


def _url(name: str, value: str) -> str:
    """The *value* of the variable *name*. It may contain a password, so the error does not repeat it."""
    if not re.fullmatch(r"https?://[^\s\"'\\;\[\]{}]+", value):
        raise ConfigError(f"{name} is not a valid http(s) URL for apt")
    return value
