"""`lock` with a hostile index ends soon, with a message; torchkiln and uv use little memory."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.hostile_index import (
    JSON,
    Answer,
    HostileIndex,
    Pieces,
    bomb,
    directory_bomb,
    files,
    for_ever,
    head,
    lock_from,
    page,
    ranged,
    response,
    slowly,
)
from tests.servers.index_server import wheel_bytes

MOST = 400 << 20  # bytes, of torchkiln and uv together
NAME, DATA = DEMO = wheel_bytes("demo", "1.0")
ANY = "-py3-none-any.whl"
OPEN = b"<!DOCTYPE html><html><body>\n"
LINK = b'<a href="/files/demo-1.0-py3-none-any.whl#sha256=' + b"0" * 64 + b'">demo-1.0-py3-none-any.whl</a>\n'


def paged(make: bytes | Callable[[], bytes], kind: str = "text/html", then: Answer | None = None) -> Answer:
    """An index that serves the page *make* for the project `demo`; *then* serves all other paths."""

    def answer(request: str) -> Pieces | None:
        if request.startswith("/simple/demo/"):
            return response(make if isinstance(make, bytes) else make(), kind)
        return then(request) if then else None

    return answer


def many_files(count: int) -> bytes:
    """A JSON page of the project `demo` with *count* files."""
    one = '{"filename":"demo-%d-py3-none-any.whl","url":"/f/%d","hashes":{"sha256":"%064x"}}'
    listed = ",".join(one % (n, n, n) for n in range(count))
    return f'{{"meta":{{"api-version":"1.1"}},"name":"demo","files":[{listed}]}}'.encode()


def many_links(count: int) -> bytes:
    """An HTML page of the project `demo` with *count* files."""
    one = '<a href="/f/%d#sha256=%064x">demo-%d-py3-none-any.whl</a>\n'
    return OPEN + "".join(one % (n, n, n) for n in range(count)).encode()


def sized_page(size: int) -> bytes:
    """A JSON page with the wheel of `demo`."""
    hashes = {"sha256": hashlib.sha256(DATA).hexdigest()}
    file = {"filename": NAME, "url": f"/files/{NAME}", "size": size, "hashes": hashes}
    return json.dumps({"meta": {"api-version": "1.1"}, "name": "demo", "files": [file]}).encode()


def spoilt_wheel(answer: Callable[[], Pieces]) -> Answer:
    """An index with the wheel of `demo`, of which only the size is served; *answer* to other requests."""
    served = paged(page(DEMO), then=files(DEMO))
    return lambda request: (
        answer() if request.startswith("/files/") and not request.endswith(" 0-0") else served(request)
    )


def part(*more: str) -> bytes:
    """The head of a response with all bytes of the wheel."""
    content_range = f"Content-Range: bytes 0-{len(DATA) - 1}/{len(DATA)}"
    return head("application/octet-stream", content_range, *more, status="206 Partial Content")


def chain(request: str) -> Pieces | None:
    """An index in which demo requires x0, which requires x1, and so on without end."""
    path, _, byte_range = request.partition(" ")
    last = path.strip("/").rpartition("/")[2]
    name = last.partition("-")[0]
    number = -1 if name == "demo" else int(name[1:])
    wheel = wheel_bytes(name, "1.0", requires=[f"x{number + 1}"])
    return ranged(wheel[1], byte_range) if path.startswith("/files/") else response(page(wheel))


def headed(first: bytes, again: bytes, count: int) -> Pieces:
    yield first + again * count + b"\r\nx"


@functools.cache
def wide(count: int, length: int = 1) -> tuple[str, bytes]:
    """A wheel that requires *count* projects."""
    return wheel_bytes("demo", "1.0", requires=[f"x{n}" * length for n in range(count)])


def with_metadata(metadata: bytes) -> tuple[str, bytes]:
    """A wheel with this METADATA."""
    with zipfile.ZipFile(out := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo-1.0.dist-info/METADATA", metadata)
    return NAME, out.getvalue()


def of_wheel(make: Callable[[], tuple[str, bytes]]) -> Answer:
    """An index with one wheel."""
    return lambda request: paged(page(make()), then=files(make()))(request)


def fanned(request: str) -> Pieces | None:
    """An index in which demo requires 110 projects, which all exist."""
    path, _, byte_range = request.partition(" ")
    last = path.strip("/").rpartition("/")[2]
    wheel = wide(110) if last.startswith("demo") else wheel_bytes(last.partition("-")[0], "1.0")
    return ranged(wheel[1], byte_range) if path.startswith("/files/") else response(page(wheel))


KINDS: dict[str, tuple[Answer, str]] = {
    "endless page": (lambda _: for_ever(head() + OPEN, LINK), "longer than 16 MiB"),
    "endless line": (lambda _: for_ever(head() + OPEN + b'<a href="', b"x"), "longer than 16 MiB"),
    "endless header": (lambda _: for_ever(b"HTTP/1.1 200 OK\r\nX: ", b"x"), "not a valid HTTP response"),
    "endless error page": (lambda _: for_ever(head(status="418 I'm a teapot"), b"x"), "longer than 16 MiB"),
    "endless chunks": (
        lambda _: for_ever(
            head("text/html", "Transfer-Encoding: chunked"), b"400\r\n" + b"<a>\n" * 256 + b"\r\n"
        ),
        "longer than 16 MiB",
    ),
    "gzip bomb": (
        lambda _: response(bomb(64), "text/html", "Content-Encoding: gzip"),
        "longer than 16 MiB",
    ),
    "600 headers": (
        lambda _: headed(b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n", 600),
        "got more than 100 headers",
    ),
    "one giant line": (
        paged(lambda: OPEN + b'<a href="' + b"x" * (15 << 20)),
        "^demo: its page on the index lists no files$",
    ),
    "tags alone": (paged(lambda: OPEN + b"<a " * (5 << 20)), "more than 50000 links"),
    "comments alone": (paged(lambda: OPEN + b"<!--" * (3 << 20)), "comments"),
    "60,000 files": (paged(lambda: many_files(60_000), JSON), "more than 50000 files"),
    "100,000 links": (paged(lambda: many_links(100_000)), "more than 50000 links"),
    "empty lists": (paged(lambda: b"[" + b"[]," * (5 << 20) + b"[]]", JSON), "more than 1000000 values"),
    "deep lists": (paged(lambda: b"[" * 900_000, JSON), "nested too deep"),
    "empty texts": (paged(lambda: b'["' + b'","' * (5 << 20) + b'"]', JSON), "more than 1048576 values"),
    "huge number": (paged(b'{"files": ' + b"9" * 1_000_000 + b"}", JSON), "Number out of range"),
    "garbage": (paged(b"\0\xff\xfe<<a href"), "not HTML"),
    "wrong content type": (paged(b"%PDF-1.7", "application/pdf"), "its Content-Type is 'application/pdf'"),
    "redirect circle": (
        lambda _: response(b"", "text/html", "Location: /simple/demo/", status="302 Found"),
        "redirect loop: more than 10 redirects",
    ),
    "redirect with an endless body": (
        lambda _: for_ever(head("text/html", "Location: /simple/demo/", status="302 Found"), b"x"),
        "redirect loop: more than 10 redirects",
    ),
    "endless line before a chunk": (
        lambda _: for_ever(head("text/html", "Transfer-Encoding: chunked"), b"1"),
        "not a valid HTTP response|connection closed before",
    ),
    "redirect to a file": (
        lambda _: response(b"", "text/html", "Location: file:///etc/passwd", status="302 Found"),
        "unsafe redirect: file:",
    ),
    "no HTTP": (lambda _: iter([b"SSH-2.0-OpenSSH_9.2\r\n"]), "not a valid HTTP response"),
    "nothing": (lambda _: iter([b""]), "closed the connection without a response"),
    "slow body": (lambda _: slowly(head() + OPEN, b"x"), "no complete response within 2 seconds"),
    "slow headers": (
        lambda _: slowly(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        "no complete response within 2 seconds",
    ),
    "slow header": (
        lambda _: slowly(b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        "no complete response within 2 seconds",
    ),
    "waits for ever": (
        lambda _: response(b"", "text/html", "Retry-After: 3600", status="503 Busy"),
        "HTTP 503 Service Unavailable",
    ),
    "endless wheel": (spoilt_wheel(lambda: for_ever(part(), b"x")), "longer than 256 KiB"),
    "slow wheel": (spoilt_wheel(lambda: slowly(part(), b"x")), "no complete response within 2 seconds"),
    "gzip bomb for a wheel": (
        spoilt_wheel(lambda: iter([part("Content-Encoding: gzip") + bomb(64)])),
        "longer than 256 KiB",
    ),
    "METADATA that is not UTF-8": (of_wheel(lambda: with_metadata(b"X: \xff\xfe")), "not UTF-8"),
    "bomb for METADATA": (of_wheel(lambda: with_metadata(bytes(64 << 20))), "METADATA has more than"),
    "wheel gone": (spoilt_wheel(lambda: response(b"", status="410 Gone")), "HTTP 410 Gone"),
    "6,000 dependencies in METADATA": (of_wheel(lambda: wide(6_000)), "more than 5000 requirements"),
    "100,000 dependencies in the wheel": (of_wheel(lambda: wide(100_000)), "METADATA has more than"),
    "a dependency of 2 MB": (of_wheel(lambda: wide(1, 1_000_000)), "METADATA has more than"),
    "110 dependencies": (fanned, "more than 100 projects"),
    "endless chain": (chain, "more than 100 projects"),
    "zip directory of 19 MB": (of_wheel(lambda: directory_bomb(400_000)), "directory and the file take"),
    "zip directory of 5 MB": (of_wheel(lambda: directory_bomb(110_000)), "no METADATA"),
    "no wheel": (paged(page((NAME, b"no zip")), then=files((NAME, b"no zip"))), "invalid wheel"),
    "no ranges and no end": (
        paged(page(DEMO), then=lambda request: for_ever(head("application/octet-stream"), b"x")),
        "the server does not send the file size",
    ),
    "file with credentials": (
        paged(page(DEMO).replace(b"/files/", b"http://me:secret@127.0.0.1/")),
        "it contains credentials",
    ),
    "two files with one name": (
        paged(page(DEMO, (NAME, DATA + b"x"))),
        "lists it twice, with different sha256",
    ),
    "half a hash": (paged(page(DEMO).replace(b"#sha256=", b"#sha256=0")), "the index has no sha256 for it"),
    "page of another project": (
        paged(page(wheel_bytes("evil", "1.0"))),
        "^demo: the index lists no valid file of it:\n.*evil-1.0-py3-none-any.whl is not a file of demo$",
    ),
    **{
        f"only {what}": (paged(page((f"demo-1.0{name}", DATA), more=more)), why)
        for what, name, more, why in (
            ("an installer", ".exe", "", "^demo: the index lists neither wheels nor sdists of it$"),
            (
                "later files",
                ANY,
                ' data-upload-time="2026-09-01T00:00:00Z"',
                r"^demo: all of its files \(1\) were ",
            ),
            ("an sdist", ".tar.gz", "", "^demo: no wheel for this image, only source code:"),
            ("another system", "-py3-none-win_amd64.whl", "", "^no wheel of demo fits the image:"),
            ("another Python's wheel", "-cp313-cp313-any.whl", "", "^no wheel of demo fits the image:"),
            (
                "a later Python",
                ANY,
                ' data-requires-python="&gt;=3.13"',
                "^demo requires another version of Python:",
            ),
            ("a yanked wheel", ANY, ' data-yanked="x"', "^demo: yanked from the index:"),
        )
    },
    "a wrong size": (
        paged(sized_page(7), JSON, then=files(DEMO)),
        f"size mismatch: {len(DATA)} bytes on the server, 7 on the index's page",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_index_ends_with_a_message(kind: str, tmp_path: Path) -> None:
    """The message names the page or file, never credentials; exit code 4 or 6; memory below 400 MiB."""
    answer, why = KINDS[kind]
    with HostileIndex(answer) as index:
        found = lock_from(index.url, tmp_path / "cache", timeout=2 if kind.startswith("slow") else 300)

    assert re.search(why, found.message), found
    assert (found.kind, found.code) in (("BuildFailed", 6), ("Unresolvable", 4), ("OnlySource", 4))
    assert found.peak < MOST
    assert "secret" not in found.message
    assert "requirements conflict" not in found.message
    assert "demo" in found.message or "x" in found.message
    assert not [left for left in (tmp_path / "cache" / "tmp").iterdir() if "resolver" in left.name]


def test_a_sound_index_is_accepted(tmp_path: Path) -> None:
    """Without a fault, the index of the tests above works."""
    with HostileIndex(paged(page(DEMO), then=files(DEMO))) as index:
        found = lock_from(index.url, tmp_path / "cache")

    assert (found.kind, found.message) == ("", "demo==1.0")
