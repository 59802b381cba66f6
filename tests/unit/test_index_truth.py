"""An index's metadata is compared with the wheels, and errors of the index are reported exactly."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3
from requests.exceptions import ConnectionError as NoConnection

from tests.planned import locked
from tests.servers.hostile_index import REQUEST
from tests.servers.index_server import IndexServer, metadata_of, wheel_bytes
from tests.stored import put_file
from torchkiln.engine.dependencies import check_metadata
from torchkiln.errors import BadWheel, BuildFailed, KilnError, Unresolvable
from torchkiln.index.package_index import PackageIndex, open_index
from torchkiln.model.index import read_metadata
from torchkiln.model.lock import LockedCell
from torchkiln.store.store import Store
from torchkiln.util.http.failures import reason_of, status_text


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    monkeypatch.setattr("torchkiln.util.http.retry.pause", lambda *_: 0.0)
    with IndexServer() as server:
        yield server


def index_at(url: str, cache: Path) -> PackageIndex:
    settings = {"UV_DEFAULT_INDEX": url, "PATH": "/usr/bin", "PIP_CONFIG_FILE": os.devnull}
    return open_index(settings, Store(cache))


# --- METADATA beside the wheel --------------------------------------------------------------------

HONEST = metadata_of(
    wheel_bytes("demo", "1.0", requires=["numpy>=2", "extra-one; extra == 'more'"], python=">=3.9")[1]
).decode()
WRONG_METADATA = {
    "no requirement": HONEST.replace("Requires-Dist: numpy>=2\n", ""),
    "a requirement by another marker": HONEST.replace("numpy>=2", "numpy>=2; sys_platform=='win32'"),
    "another requirement": HONEST.replace("numpy>=2", "evil"),
    "no extra": HONEST.replace("Requires-Dist: extra-one; extra == 'more'\n", ""),
    "another Python": HONEST.replace(">=3.9", ">=3.99"),
    "another name": HONEST.replace("Name: demo", "Name: other"),
    "another version": HONEST.replace("Version: 1.0", "Version: 2.0"),
    "a further requirement": HONEST + "Requires-Dist: evil\n",
}


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
@pytest.mark.parametrize("wrong", WRONG_METADATA)
def test_metadata_beside_a_wheel_is_not_read(
    wrong: str, ranges: bool, server: IndexServer, tmp_path: Path
) -> None:
    """The resolver sees METADATA of the wheel, so a file that differs from it changes no lock."""
    server.metadata = True
    for name in ("numpy", "extra-one"):
        server.add("simple", name, "2.0")
    server.add("simple", "evil", "1.0")
    filename, _ = server.add(
        "simple", "demo", "1.0", requires=["numpy>=2", "extra-one; extra == 'more'"], python=">=3.9"
    )
    assert WRONG_METADATA[wrong] != HONEST
    server.beside[filename] = WRONG_METADATA[wrong].encode()
    server.faults.no_ranges = not ranges
    wanted = replace(REQUEST, requirements=("demo[more]",))
    found = index_at(server.url("simple"), tmp_path).wheels(wanted)

    assert [(wheel.name, wheel.version) for wheel in found] == [
        ("demo", "1.0"),
        ("extra-one", "2.0"),
        ("numpy", "2.0"),
    ]
    assert not [path for _, path, _ in server.requests if path.endswith(".metadata")]


@pytest.mark.parametrize(
    "data",
    [b"Name: \xff\n", b"x" * ((1 << 20) + 1), b"Requires-Dist: x\n" * 6000, b"requires-DIST :x\r\n" * 6000],
)
def test_metadata_over_the_limits_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="METADATA"):
        read_metadata(data)


# --- the build ------------------------------------------------------------------------------------


def cell_of(store: Store, *wheels: tuple[str, bytes], **changes: str) -> LockedCell:
    """A lock of these wheels, which are written to *store*."""
    found = []
    for filename, data in wheels:
        name, version = filename.split("-")[:2]
        found.append(put_file(name.replace("_", "-"), changes.get(name, version), filename, data, store))
    plain = locked()
    return replace(
        plain, wheels=tuple(found), resolution=replace(plain.resolution, requirements=("demo[more]",))
    )


DISAGREE = {
    "missing": ({"requires": ["numpy"]}, "requires numpy, which is not locked"),
    "too old": ({"requires": ["other>=2"]}, "requires other>=2, but other 1.0 is locked"),
    "required by an extra": (
        {"requires": ["numpy; extra == 'more'"]},
        "requires numpy; extra == 'more', which is not locked",
    ),
    "required by an extra of another": (
        {"requires": ["other[deep]"]},
        "other-1.0-py3-none-any.whl: requires hidden; extra == 'deep', which is not locked",
    ),
    "by a marker of the image": (
        {"requires": ["numpy; python_version == '3.11' and sys_platform == 'linux'"]},
        "which is not locked",
    ),
    "Python": ({"python": ">=3.12"}, "requires a different Python: 3.11.2 not in '>=3.12'"),
    "a patch of Python": ({"python": ">=3.11.3"}, "requires a different Python: 3.11.2 not in '>=3.11.3'"),
    "garbage for Python": ({"python": "new"}, "invalid Requires-Python: 'new'"),
    "garbage for a requirement": ({"requires": ["a b c"]}, "invalid Requires-Dist: 'a b c'"),
}


@pytest.mark.parametrize("kind", DISAGREE)
def test_a_build_finds_metadata_that_the_lock_did_not_see(kind: str, tmp_path: Path) -> None:
    """Like `pip check`, the build reads the METADATA in the wheels."""
    details, why = DISAGREE[kind]
    store = Store(tmp_path)
    other = wheel_bytes("other", "1.0", requires=["hidden; extra == 'deep'"])
    cell = cell_of(store, wheel_bytes("demo", "1.0", **details), other)  # type: ignore[arg-type]
    for _ in range(2):  # a second time, because a failed check must not be cached as a success
        with pytest.raises(BuildFailed) as caught:
            check_metadata(cell, store)
        assert why in caught.value.message
        assert "-1.0-py3-none-any.whl: " in caught.value.message


@pytest.mark.parametrize("version", ["2.0", "1.0.post1", "1.0+cu118"])
def test_a_build_finds_a_wheel_of_another_version(version: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(
        BuildFailed, match=r"inconsistent name or version: METADATA has Name 'demo' and Version '1\.0'"
    ):
        check_metadata(cell_of(store, wheel_bytes("demo", "1.0"), demo=version), store)


def test_requirements_that_do_not_apply_are_ignored(tmp_path: Path) -> None:
    """They are for other systems, or for unused extras, or name an equal version in another spelling."""
    store = Store(tmp_path)
    requires = [
        "win; sys_platform == 'win32'",
        "old; python_version < '3.9'",
        "unwanted; extra == 'less'",
        "Other_Thing[x] (==1)",
    ]
    cell = cell_of(
        store, wheel_bytes("demo", "1.0", requires=requires), wheel_bytes("other-thing", "1.0+cu118")
    )
    check_metadata(cell, store)
    check_metadata(cell, store)


def test_missing_metadata_is_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(BadWheel):
        check_metadata(cell_of(store, ("demo-1.0-py3-none-any.whl", b"no zip")), store)


# --- yanked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("json", "reason"), [(False, "broken"), (True, "")], ids=["html", "json"])
def test_a_yanked_release_is_avoided_or_reported(
    json: bool, reason: str, server: IndexServer, tmp_path: Path
) -> None:
    """The resolver avoids it if it can; an existing lock or a pin keeps it, with a warning."""
    server.json = json
    server.add("simple", "demo", "1.0")
    server.yanked[server.add("simple", "demo", "2.0")[0]] = reason
    index = index_at(server.url("simple"), tmp_path)

    assert [wheel.version for wheel in index.wheels(REQUEST)] == ["1.0"]
    assert index.yanked == {}
    assert [wheel.version for wheel in index.wheels(replace(REQUEST, requirements=("demo==2.0",)))] == ["2.0"]
    assert index.yanked == {("demo", "2.0"): reason}


# --- a changed file -------------------------------------------------------------------------------


def test_another_file_with_a_locked_name_is_reported_with_both_hashes(
    server: IndexServer, tmp_path: Path
) -> None:
    """The hint must not suggest to lock again."""
    server.add("simple", "demo", "1.0")
    [wheel] = index_at(server.url("simple"), tmp_path).wheels(REQUEST)
    server.add("simple", "demo", "1.0", payload=b"another")
    pages = index_at(server.url("simple"), tmp_path / "other").pages
    with pytest.raises(BuildFailed, match="checksum mismatch") as caught:
        pages.find(wheel)

    [now] = index_at(server.url("simple"), tmp_path / "third").wheels(REQUEST)
    assert now.sha256 in caught.value.message
    assert wheel.sha256 in caught.value.message
    assert "--upgrade" not in caught.value.hint
    assert "torchkiln lock" not in caught.value.hint


# --- responses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected", "kind"),
    [
        (401, "HTTP 401 Unauthorized", BuildFailed),
        (404, "HTTP 404 Not Found", Unresolvable),
        (429, "HTTP 429 Too Many Requests", BuildFailed),
        (503, "HTTP 503 Service Unavailable", BuildFailed),
    ],
)
def test_an_http_status_is_reported_exactly(
    status: int, expected: str, kind: type[KilnError], server: IndexServer, tmp_path: Path
) -> None:
    """The message has the page's URL without credentials, and is never about conflicting requirements."""
    server.add("simple", "demo", "1.0")
    server.faults.page_errors = [status] * 50
    url = server.url("simple").replace("http://", "http://me:secret@")
    with pytest.raises(kind, match=expected) as caught:
        index_at(url, tmp_path).wheels(REQUEST)

    assert "/…/demo" in caught.value.message
    assert "conflict" not in caught.value.message
    assert "secret" not in caught.value.message + caught.value.hint
    assert caught.value.hint


def test_a_refused_connection_is_reported(tmp_path: Path, server: IndexServer) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for url, why in (
        (f"http://127.0.0.1:{port}/simple", "connection refused"),
        ("http://absent.invalid/simple", "host name does not resolve"),
        (server.url("simple").replace("http:", "https:"), "TLS handshake failed"),
    ):
        with pytest.raises(BuildFailed, match=why):
            index_at(url, tmp_path).wheels(REQUEST)


def test_conflicting_requirements_are_reported_as_such(server: IndexServer, tmp_path: Path) -> None:
    """If the index does not have a project, the message names the project's page."""
    server.add("simple", "demo", "1.0", requires=["other<2"])
    server.add("simple", "other", "2.0")
    with pytest.raises(Unresolvable, match=r"^the requirements conflict:\n"):
        index_at(server.url("simple"), tmp_path).wheels(REQUEST)
    with pytest.raises(Unresolvable, match=r"^no version of other satisfies the requirements:\n"):
        index_at(server.url("simple"), tmp_path).wheels(replace(REQUEST, requirements=("other==3",)))
    with pytest.raises(Unresolvable, match="/…/nothing: HTTP 404 Not Found: no such project"):
        index_at(server.url("simple"), tmp_path).wheels(replace(REQUEST, requirements=("nothing",)))


def verification() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (verification(), "certificate verify failed: self-signed certificate"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] x"), "TLS handshake failed"),
        (ConnectionRefusedError(), "connection refused"),
        (ConnectionResetError(), "connection reset by peer"),
        (socket.gaierror(-2, "Name or service not known"), "host name does not resolve"),
        (TimeoutError(), "timed out"),
        (OSError(113, "No route to host"), "no route to host"),
        (http.client.LineTooLong("header line"), "not a valid HTTP response: got more than 65536 bytes"),
        (http.client.BadStatusLine("x"), "not a valid HTTP response: x"),
        (http.client.IncompleteRead(b""), "connection closed before the end of the body"),
        (http.client.RemoteDisconnected("x"), "the server closed the connection without a response"),
        (urllib3.exceptions.DecodeError("x"), "the body does not match its Content-Encoding"),
        (RuntimeError("x"), "no connection (RuntimeError)"),
    ],
)
def test_an_error_of_a_library_becomes_a_phrase(error: Exception, expected: str) -> None:
    """The error may be wrapped any number of times; a cycle of causes does not loop forever."""
    outer = NoConnection(urllib3.exceptions.ProtocolError("aborted", error))
    error.__context__ = outer
    assert reason_of(outer).startswith(expected)
    assert status_text(799) == "HTTP 799"
