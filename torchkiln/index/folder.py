"""A requests adapter for file: URLs that answers range requests."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse


class FileAdapter(HTTPAdapter):
    """Serves local files. `redirects.unsafe` refuses file: links on pages and in redirects."""

    def send(self, request: requests.PreparedRequest, *_args: Any, **_kwargs: Any) -> requests.Response:
        """The file, or the requested range of it; 404 if it cannot be read."""
        path = Path(unquote(urlsplit(request.url or "").path))
        try:
            body: BinaryIO = path.open("rb")
            size = path.stat().st_size
        except OSError:
            return self.build_response(
                request, HTTPResponse(body=BytesIO(), status=404, preload_content=False)
            )
        requested = request.headers.get("Range", "").removeprefix("bytes=")
        start, _, end = requested.partition("-")
        first, last = int(start or 0), min(int(end or size - 1), size - 1)
        headers = {"Content-Length": str(last + 1 - first)}
        if requested:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        body.seek(first)
        if request.method == "HEAD":
            body.close()
            body = BytesIO()
        raw = HTTPResponse(
            body=body,
            headers=headers,
            status=206 if requested else 200,
            preload_content=False,
            request_method=request.method,
        )
        return self.build_response(request, raw)
