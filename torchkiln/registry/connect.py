"""Opens a registry with Docker's login and pip's network settings."""

from __future__ import annotations

from collections.abc import Mapping

from torchkiln.index.settings import index_settings
from torchkiln.registry.credentials import find_login
from torchkiln.registry.reference import Repository, is_local
from torchkiln.registry.session import Registry
from torchkiln.util.http.session import Network


def open_registry(
    repository: Repository, environ: Mapping[str, str], *, plain_http: bool = False
) -> Registry:
    """Open the registry, with Docker's login, and the network settings of *environ* and pip's configuration.

    :raises ConfigError: a setting is invalid.
    """
    network = Network()
    if not plain_http and not is_local(repository.host):
        settings = index_settings(environ)
        network = Network(
            ca_bundle=settings.ca_bundle, client_cert=settings.client_cert, proxy=settings.proxy
        )
    return Registry(repository.host, find_login(repository, environ), network, plain_http=plain_http)
