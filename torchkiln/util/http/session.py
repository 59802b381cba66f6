"""Network → Session: requests' own session, with the limits of this package."""

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
    """How the user's network is crossed. `proxy`: beside those of the environment."""

    ca_bundle: str | None = None
    client_cert: str | None = None
    proxy: str | None = field(default=None, repr=False)


DIRECT = Network()


class Session(requests.Session):
    """Follows redirects only to where `redirects.unsafe` has nothing against, without reading their bodies.

    *network* holds rather than REQUESTS_CA_BUNDLE, which requests would put above it.

    :raises UnsafeRedirect: from each request.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.opened = OpenSockets()
        self.deadlines = Deadlines(self.opened)
        self.verify = network.ca_bundle or True
        self.cert = network.client_cert
        self.max_redirects = redirects.MOST
        if network.proxy:
            self.proxies = {"http": network.proxy, "https": network.proxy}
        for scheme in ("http://", "https://"):
            self.mount(scheme, LimitedAdapter(self.opened))

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """As in requests; our certificates where the caller gives none."""
        if self.verify is not True:
            kwargs.setdefault("verify", self.verify)
        return super().request(*args, **kwargs)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where an answer redirects to.

        :raises UnsafeRedirect: an address that is not followed.
        """
        try:
            target = super().get_redirect_target(resp)
            why = redirects.unsafe(urljoin(resp.url, target), resp.url) if target else ""
        except ValueError:
            target, why = "", "not a valid address"
        if (target or why) and resp.raw is not None:
            resp.close()
            resp._content = b""  # else requests would read its body to the end, if it has one
            resp._content_consumed = True  # type: ignore[attr-defined]
        if why:
            raise redirects.UnsafeRedirect(why, resp.url)
        return target
