"""Checks the targets of redirects and links. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

MAX_REDIRECTS = 10


class UnsafeRedirect(Exception):
    """A redirect that is not followed; `str` is the reason, `url` is the address of the server."""

    def __init__(self, why: str, url: str) -> None:
        super().__init__(why)
        self.url = url


def unsafe(url: str, page: str) -> str:
    """Why *url*, a link or redirect on *page*, must not be followed; empty if it may."""
    try:
        parts, scheme = urlsplit(url), urlsplit(page).scheme
        host, login, _ = parts.hostname, parts.username or parts.password, parts.port
    except ValueError:
        return "invalid URL"
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme[:20] or 'no scheme'}: is neither http nor https"
    if (scheme, parts.scheme) == ("https", "http"):
        return "it leads from https to http"
    if login:
        return "it contains credentials"
    if not host or not url.isprintable() or re.search(r"[\s\\\"<>^`{|}]", url):
        return "invalid URL"
    return "" if unquote(parts.path, errors="replace").isprintable() else "it contains control characters"
