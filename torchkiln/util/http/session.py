"""Provides a requests.Session with limits on time, headers and redirects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

import requests

from torchkiln.util.http import redirects
from torchkiln.util.http.connections import LimitedAdapter, OpenSockets
from torchkiln.util.http.deadlines import Deadlines


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """TLS and proxy settings. `proxy` is used in addition to those of the environment."""

    ca_bundle: str | None = None
    client_cert: str | None = None
    proxy: str | None = field(default=None, repr=False)


DIRECT = Network()


class LimitedSession(requests.Session):
    """Follows only redirects in which `redirects.unsafe` finds no fault, without reading their bodies.

    The CA bundle of *network* takes precedence over REQUESTS_CA_BUNDLE, unlike in requests.

    :raises UnsafeRedirect: from each request.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.opened = OpenSockets()
        self.deadlines = Deadlines(self.opened)
        self.verify = network.ca_bundle or True
        self.cert = network.client_cert
        self.max_redirects = redirects.MAX_REDIRECTS
        if network.proxy:
            self.proxies = {"http": network.proxy, "https": network.proxy}
        for scheme in ("http://", "https://"):
            self.mount(scheme, LimitedAdapter(self.opened))

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As in requests, with the CA bundle of the network by default."""
        if self.verify is not True:
            kwargs.setdefault("verify", self.verify)
        return super().request(*args, **kwargs)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """The target of a redirect.

        :raises UnsafeRedirect: it is not followed.
        """
        try:
            target = super().get_redirect_target(resp)
            why = redirects.unsafe(urljoin(resp.url, target), resp.url) if target else ""
        except ValueError:
            target, why = "", "invalid URL"
        if (target or why) and resp.raw is not None:
            resp.close()
            resp._content = b""  # otherwise requests reads its body to the end
            resp._content_consumed = True  # type: ignore[attr-defined]
        if why:
            raise redirects.UnsafeRedirect(why, resp.url)
        return target
