"""Where a redirect, a Location or a link may lead. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

MOST = 10  # redirects of one request


class UnsafeRedirect(Exception):
    """A server leads to an address that is not followed; `str` is why, `url` is the address of the server."""

    def __init__(self, why: str, url: str) -> None:
        super().__init__(why)
        self.url = url


def unsafe(url: str, page: str) -> str:
    """Why *url*, to which *page* leads, is not to be asked; "" when it is."""
    try:
        parts, scheme = urlsplit(url), urlsplit(page).scheme
        host, login, _ = parts.hostname, parts.username or parts.password, parts.port
    except ValueError:
        return "not a valid address"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme[:20] or 'no scheme'}: is neither http nor https"
    if (scheme, parts.scheme) == ("https", "http"):
        return "it leaves https for http"
    if login:
        return "it holds credentials"
    if not host or not url.isprintable() or re.search(r"[\s\\\"<>^`{|}]", url):
        return "not a valid address"
    if not unquote(parts.path, errors="replace").isprintable():
        return "it holds control characters"
    return ""
