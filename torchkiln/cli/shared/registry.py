"""What the commands that go to a registry share: the registry as the user's Docker would reach it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torchkiln.cli.shared import console
from torchkiln.cli.shared.options import cache_root

if TYPE_CHECKING:
    from torchkiln.registry.history import History
    from torchkiln.registry.reference import Repository
    from torchkiln.registry.session import Registry


def registry_of(repository: Repository, plain_http: bool) -> Registry:
    """The registry, asked as the user's Docker would ask it, through the network as pip goes through it."""
    from torchkiln.registry.connections import Transport
    from torchkiln.registry.credentials import find_login
    from torchkiln.registry.reference import is_local
    from torchkiln.registry.session import Registry

    transport = Transport(plain_http=plain_http)
    if not plain_http and not is_local(repository.host):
        from torchkiln.index.settings import index_settings

        found = index_settings(os.environ)
        transport = Transport(ca_bundle=found.ca_bundle, client_cert=found.client_cert, proxy=found.proxy)
    return Registry(repository.host, find_login(repository, os.environ), transport)


def history() -> History:
    """What was pushed from this cache before."""
    from torchkiln.registry.history import History
    from torchkiln.store.store import Store

    return History(Store(cache_root(), on_wait=console.waiting))
