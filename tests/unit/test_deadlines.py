"""Time limits of requests and transfers, with servers that send nothing, or one byte at a time."""

from __future__ import annotations

import ast
import hashlib
import socketserver
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roots import entry, layer
from tests.servers.background import InBackground, QuietServer
from tests.servers.hostile_index import HostileIndex, head, slowly
from tests.stored import locked_file
from torchkiln.errors import BuildFailed, RegistryError
from torchkiln.index import download
from torchkiln.index.download import DirectDownloads
from torchkiln.index.session import IndexSession
from torchkiln.index.settings import index_settings
from torchkiln.model.digest import Digest
from torchkiln.model.progress import Transfer
from torchkiln.oci import piped
from torchkiln.oci.erofs import Unmountable, convert
from torchkiln.registry import reading
from torchkiln.registry import session as registry_session
from torchkiln.registry.reading import RepositoryReader
from torchkiln.registry.reference import Repository
from torchkiln.registry.session import Registry
from torchkiln.smoke import pytest_wheels
from torchkiln.store.store import Store
from torchkiln.util.http.session import LEAST, LimitedSession, Network, Overdue
from torchkiln.util.places import ROOT


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a response whose header never ends."""
    with HostileIndex(lambda _: slowly(b"HTTP/1.1 200 OK\r\nX: ", b"y")) as index:
        yield index.url


@pytest.fixture
def session() -> Iterator[LimitedSession]:
    with LimitedSession(Network()) as opened:
        yield opened


def test_a_request_has_a_limit(session: LimitedSession, url: str) -> None:
    with pytest.raises(Overdue, match=r"in 0\.5 seconds"), session.deadlines.limit(0.5):
        session.get(url)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_limit_that_passes_before_the_connection(session: LimitedSession, url: str, requests: int) -> None:
    """Even if an attempt begins when no time is left, each of its connections is shut down."""
    for _ in range(requests):
        with pytest.raises(Overdue), session.deadlines.limit(0.0):
            session.get(url)


def test_a_limit_inside_of_one_that_has_passed(session: LimitedSession, url: str) -> None:
    with pytest.raises(Overdue), session.deadlines.limit(0.0), session.deadlines.limit(60.0):
        session.get(url)


def test_within_caps_every_limit(session: LimitedSession, url: str) -> None:
    with session.deadlines.within(0.2):
        for _ in range(2):
            with pytest.raises(Overdue), session.deadlines.limit(60.0):
                session.get(url)


def test_an_exceeded_limit_is_reported_even_if_an_inner_one_ended_with_it(session: LimitedSession) -> None:
    """It depended on whether the watcher ran between the two, and the message named the inner limit."""

    def late() -> None:
        with session.deadlines.limit(0.3):
            time.sleep(0.2)
            with session.deadlines.limit(60.0):
                time.sleep(0.15)
                raise OSError

    with pytest.raises(Overdue, match=r"in 0\.3 seconds"):
        late()


def test_after_a_limit_the_thread_has_none(session: LimitedSession, url: str) -> None:
    with pytest.raises(Overdue), session.deadlines.limit(0.0):
        session.get(url)
    with HostileIndex(lambda _: iter([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])) as index:
        assert session.get(index.url).content == b"ok"


# --- transfers --------------------------------------------------------------------------------------

SIZE = 3 * LEAST
SENT = head("x", f"Content-Length: {SIZE}")
CHUNKED = head("x", "Transfer-Encoding: chunked")
#: What a server sends, whatever it is asked: the beginning, and what it repeats without end.
STALLS = {
    "nothing": (b"", b""),
    "a header byte by byte": (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
    "100 Continue without end": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "headers, then nothing": (SENT, b""),
    "half of the body, then nothing": (SENT + bytes(SIZE // 2), b""),
    "the body byte by byte": (SENT, b"x"),
    "chunks of one byte": (CHUNKED, b"1\r\nx\r\n"),
    "the size of a chunk byte by byte": (CHUNKED + b"1;", b"x"),
    "TLS: nothing": (b"", b""),
    "TLS: the server's hello byte by byte": (b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03", b"x"),
}


class Stalling(InBackground):
    """Sends each client the *first* bytes, then *again* and *again*."""

    def __init__(self, first: bytes, again: bytes) -> None:
        outer, self.count = self, 0  # clients

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                outer.count += 1
                for piece in slowly(first, again):
                    self.request.sendall(piece)

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"


@pytest.fixture(params=STALLS)
def stalling(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server that stalls; a transfer then fails after some attempts of 0.3 seconds."""
    monkeypatch.setattr(download, "STALLED", 0.3)
    monkeypatch.setattr(download, "GIVEN_UP", 1.0)
    monkeypatch.setattr(registry_session, "_STALLED", 0.3)
    monkeypatch.setattr(reading, "SILENCE", 1.0)
    with Stalling(*STALLS[request.param]) as server:
        yield f"{'https' if request.param.startswith('TLS') else 'http'}://{server.host}"


LATE = r"timed out: (less than 64 KiB|no complete response) in 0\.3 seconds \([12] attempts?\)$"


def test_a_download_without_progress_fails(stalling: str, tmp_path: Path) -> None:
    """The error names the file, the server and the seconds."""
    wheel = locked_file("x", "1", "x-1-py3-none-any.whl", bytes(SIZE))
    with IndexSession(index_settings({}, pip_config="", default_url=stalling)) as session:
        downloads = DirectDownloads(session, lambda file: f"{stalling}/{file.filename}")
        for _ in range(2):  # the second run begins with the bytes that the first has received
            with pytest.raises(BuildFailed, match=f"^{stalling}/…/x-1-py3-none-any.whl: {LATE}") as caught:
                downloads.fetch(wheel, tmp_path / "part", Transfer())
            assert "another" in caught.value.hint


def test_a_blob_without_progress_fails(stalling: str, tmp_path: Path) -> None:
    host = stalling.partition("://")[2]
    digest = Digest(f"sha256:{hashlib.sha256(bytes(SIZE)).hexdigest()}")
    with Registry(host) as registry:
        registry.origin = stalling
        reader = RepositoryReader(registry, Repository(host=host, name="a/b"))
        with pytest.raises(RegistryError, match=f"^{host}: blob {digest[:19]}: {LATE}"):
            reader.fetch(digest, SIZE, tmp_path / "blob", lambda _: None)


@pytest.mark.parametrize("program", ["sleep 600", "cat >/dev/null; sleep 600"], ids=["deaf", "stays"])
def test_a_converter_without_progress_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """A stranger's layer may make mkfs.erofs hang, and a program of that name may be another one."""
    monkeypatch.setattr(piped, "_PATIENCE", 0.5)
    (made := tmp_path / "mkfs.erofs").write_text(f"#!/bin/sh\n{program}\n")
    made.chmod(0o755)
    with pytest.raises(Unmountable, match=r"^mkfs\.erofs timed out: no progress in 0\.5 seconds$"):
        convert(layer(tmp_path, entry("a", bytes(300_000))), tmp_path / "x.erofs", str(made))
    assert not list(tmp_path.glob("*x.erofs*"))


def test_pip_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(pytest_wheels, "_SECONDS", 2.0)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config := tmp_path / "pip.conf"))
    config.write_text(f"[global]\nindex-url = {url}\n")
    with pytest.raises(BuildFailed, match="cannot download pytest for the smoke tests: timed out after 2 s"):
        pytest_wheels.pytest_wheels(f"a==1 --hash=sha256:{'0' * 64}".encode(), Store(tmp_path / "cache"))


CALLS = ("subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output")
#: Modules that call `subprocess.run` without a time limit, and why; all others have one.
ENDLESS = {
    "cli/matrix": "torchkiln itself",
    "docker/daemon": "the user's Docker client",
    "jobs/run": "torchkiln itself",
    "projects/smoke/linkage_probe": "in a container, whose time the smoke tests limit",
    "runtimes/driver": "ldconfig -p of the host",
}


def test_programs_have_a_limit() -> None:
    """A program that runs on a stranger's input and never ends would hang the command."""
    package, found = ROOT / "torchkiln", set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = node if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS else None
            if called and "timeout" not in [keyword.arg for keyword in called.keywords]:
                found.add(file.relative_to(package).with_suffix("").as_posix())
    assert found == set(ENDLESS)
