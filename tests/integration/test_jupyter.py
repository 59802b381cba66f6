"""Jupyter in a container: authentication, by HTTP and by a browser, and the Python of a kernel."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from playwright.sync_api import expect
from websockets.sync.client import connect

from tests.clients import TIMEOUT, browsing, output
from tests.engine.place import shared
from tests.engine.registry import free_port
from tests.needs import give_up, nightly
from tests.workplace import Container, Workplace

__all__ = ["shared"]

pytestmark = pytest.mark.network  # wheels, and if it is not cached, the base

PUBLISHED = ("--publish", "127.0.0.1::8888")
DIRECT = {"http": ""}  # no proxy for 127.0.0.1
TOKEN = r"http://\S+\?token=([0-9a-f]{32,})"


@pytest.fixture(scope="module")
def container(workplace: Workplace) -> Iterator[Container]:
    """A container without settings: it generated a token."""
    with workplace.started(*PUBLISHED) as found:
        found.serves()
        yield found


def get(container: Container, path: str, token: str | None = None) -> requests.Response:
    """GET *path* of the container's Jupyter from this machine."""
    headers = {"Authorization": f"token {token}"} if token is not None else {}
    session = requests.Session()
    session.trust_env = False  # no proxy for 127.0.0.1
    url = f"http://127.0.0.1:{container.port(8888)}{path}"
    return session.get(url, headers=headers, timeout=300, allow_redirects=False)


def test_the_token_of_the_log_is_accepted(container: Container) -> None:
    """It has at least 128 bits, and is the token that `jupyter server list` shows."""
    token = container.says(TOKEN)[1]

    assert get(container, "/api/contents", token).status_code == 200
    assert f"token={token}" in container.inside("jupyter", "server", "list")


@pytest.mark.parametrize("token", ["", pytest.param("short", marks=nightly)])
def test_a_weak_token_can_be_permitted(workplace: Workplace, token: str) -> None:
    """A setting permits it. An empty token disables authentication; the log states this."""
    options = ("-e", f"JUPYTER_TOKEN={token}", "-e", "JUPYTER_ALLOW_WEAK_TOKEN=yes")
    with workplace.started(*PUBLISHED, *options) as found:
        found.serves()
        assert get(found, "/api/contents", token or None).status_code == 200
        assert get(found, "/api/contents", "another").status_code == (403 if token else 200)
        assert ("no login" in found.logs()) == (not token)


@pytest.mark.parametrize("passes_host", [True, pytest.param(False, marks=nightly)])
def test_behind_a_reverse_proxy(workplace: Workplace, tmp_path: Path, passes_host: bool) -> None:
    """nginx with a path and WebSockets; it passes on the browser's Host header, or sends its own."""
    allowed = () if passes_host else ("-e", "JUPYTER_ALLOW_ORIGIN=http://gpu.example")
    with workplace.started(*PUBLISHED, "-e", "JUPYTER_BASE_URL=/lab/anna", *allowed) as found:
        token = found.says(r"127\.0\.0\.1:8888/lab/anna/lab\?token=(\w+)")[1]
        found.serves()
        with nginx(tmp_path, found.port(8888), "$http_host" if passes_host else "$proxy_host") as port:
            origin = f"http://127.0.0.1:{port}" if passes_host else "http://gpu.example"
            base = f"127.0.0.1:{port}/lab/anna"
            headers = {**as_a_browser(f"http://{base}/lab?token={token}"), "Origin": origin}

            assert printed(base, headers, "import sys; print(sys.prefix)") == "/opt/venv\n"
            other_origin = {**headers, "Origin": "http://evil.example"}
            url = f"http://{base}/api/kernels"
            assert requests.post(url, headers=other_origin, timeout=300, proxies=DIRECT).status_code == 404


def test_a_kernel_runs_the_images_python(container: Container) -> None:
    """The test uses REST and WebSocket, as Jupyter's front ends do."""
    headers = {"Authorization": f"token {container.says(TOKEN)[1]}"}
    code = "import sys, os, numpy; print(sys.prefix, os.getcwd(), numpy.arange(5).sum())"

    assert printed(f"127.0.0.1:{container.port(8888)}", headers, code) == "/opt/venv /workspace 10\n"


def test_a_terminal_is_a_bash(container: Container) -> None:
    """Jupyter's default is sh."""
    headers = {"Authorization": f"token {container.says(TOKEN)[1]}"}
    base = f"127.0.0.1:{container.port(8888)}"
    made = requests.post(f"http://{base}/api/terminals", headers=headers, timeout=300, proxies=DIRECT)
    url = f"ws://{base}/terminals/websocket/{made.json()['name']}"
    screen = ""
    with connect(url, additional_headers=headers, proxy=None, open_timeout=300) as socket:
        socket.send(json.dumps(["stdin", "echo $0-$((40 + 2)) $USER\r"]))
        while "-42 user" not in screen:
            kind, *more = json.loads(socket.recv(timeout=300))
            screen += more[0] if kind == "stdout" else ""
    assert "bash-42 user" in screen


def as_a_browser(address: str) -> dict[str, str]:
    """Headers of a browser at *address*: cookies, because a token in a header bypasses the origin check."""
    with requests.Session() as session:
        session.trust_env = False
        assert session.get(address, timeout=300).status_code == 200
        cookies = {cookie.name: str(cookie.value) for cookie in session.cookies}
    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
    return {"Cookie": cookie, "X-XSRFToken": cookies["_xsrf"]}


@contextmanager
def nginx(folder: Path, port: int, host: str) -> Iterator[int]:
    """Run Debian's nginx in front of *port*, with the Host header *host*; yields its port."""
    if not Path("/usr/sbin/nginx").exists():
        give_up("nginx is not installed: apt-get install nginx-light")
    own = free_port()
    settings = folder / "nginx.conf"
    settings.write_text(NGINX.format(folder=folder, own=own, port=port, host=host))
    argv = ["/usr/sbin/nginx", "-c", str(settings), "-e", str(folder / "error.log")]
    with subprocess.Popen(argv) as process:
        try:
            end = time.monotonic() + 300
            while not listens(own):
                assert time.monotonic() < end
                assert process.poll() is None, (folder / "error.log").read_text()
                time.sleep(0.05)
            yield own
        finally:
            process.terminate()


def listens(port: int) -> bool:
    """Whether a server listens on *port*."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


NGINX = """
daemon off; pid {folder}/pid; worker_processes 1;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
    server {{
        listen 127.0.0.1:{own};
        location /lab/anna/ {{
            proxy_pass http://127.0.0.1:{port};
            proxy_set_header Host {host};
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
        }}
    }}
}}
"""


def printed(base: str, headers: dict[str, str], code: str) -> str:
    """The output of *code* in a new kernel of the server at *base*, by Jupyter's messaging protocol 5.3."""
    made = requests.post(f"http://{base}/api/kernels", headers=headers, timeout=300, proxies=DIRECT)
    assert made.status_code == 201, made.text
    message = {
        "header": {
            "msg_id": uuid.uuid4().hex,
            "session": uuid.uuid4().hex,
            "username": "test",
            "date": "",
            "msg_type": "execute_request",
            "version": "5.3",
        },
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False, "store_history": False, "user_expressions": {}},
        "channel": "shell",
    }
    screen = ""
    url = f"ws://{base}/api/kernels/{made.json()['id']}/channels"
    with connect(url, additional_headers=headers, proxy=None, open_timeout=300) as socket:
        socket.send(json.dumps(message))
        while True:
            answer = json.loads(socket.recv(timeout=300))
            if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:  # type: ignore[index]
                continue
            if answer["msg_type"] == "stream":
                screen += answer["content"]["text"]
            if answer["msg_type"] == "error":
                raise AssertionError(answer["content"])
            if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
                return screen


@pytest.fixture(scope="module")
def browser_container(workplace: Workplace) -> Iterator[Container]:
    with workplace.started("--publish", "127.0.0.1::8888") as found:
        found.serves()
        yield found


def test_a_notebook_from_the_printed_address(browser_container: Container) -> None:
    """Open the URL of the log, create a notebook and run a cell; no other host is contacted."""
    with browsing() as (page, get):
        screen = output(
            browser_container, page, "import numpy, sys; print(sys.prefix, numpy.arange(5).sum())"
        )
        page.wait_for_timeout(2000)  # the news dialog appears late
        invitations = page.get_by_text("Jupyter news").count()

    assert screen == "/opt/venv 10"
    assert (get, invitations) == ({"127.0.0.1"}, 0)


@pytest.mark.parametrize("token", ["", "?token=" + "0" * 48])
def test_a_wrong_token_shows_only_the_login_page(browser_container: Container, token: str) -> None:
    """A wrong token in the URL or in the form is refused."""
    with browsing() as (page, _):
        page.goto(f"http://127.0.0.1:{browser_container.port(8888)}/lab{token}")
        page.get_by_label("Password or token").fill("0" * 48)
        page.get_by_role("button", name="Log in", exact=True).click()

        expect(page.get_by_text("Invalid credentials")).to_be_visible(timeout=TIMEOUT)
        assert page.locator(".jp-Launcher").count() == 0
