"""file: addresses for a session: a folder of this machine answers as a server with ranges would."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse


class Folder(HTTPAdapter):
    """No page and no server can lead here: `unsafe` refuses such links; only `own` makes these addresses."""

    def send(self, request: requests.PreparedRequest, *others: Any, **named: Any) -> requests.Response:
        """The file, or the part of it that is asked for."""
        path = Path(unquote(urlsplit(request.url or "").path))
        try:
            body: BinaryIO = path.open("rb")
            size = path.stat().st_size
        except OSError:
            return self.build_response(
                request, HTTPResponse(body=BytesIO(), status=404, preload_content=False)
            )
        wanted = request.headers.get("Range", "").removeprefix("bytes=")
        start, _, end = wanted.partition("-")
        first, last = int(start or 0), min(int(end or size - 1), size - 1)
        headers = {"Content-Length": str(last + 1 - first)}
        if wanted:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        body.seek(first)
        if request.method == "HEAD":
            body.close()
            body = BytesIO()
        raw = HTTPResponse(
            body=body,
            headers=headers,
            status=206 if wanted else 200,
            preload_content=False,
            request_method=request.method,
        )
        return self.build_response(request, raw)
