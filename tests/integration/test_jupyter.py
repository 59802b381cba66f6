"""Jupyter in a container: who gets in, and that a kernel runs the image's Python."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
import requests
from websockets.sync.client import connect

from tests.workplace import Container, Workplace

pytestmark = pytest.mark.network  # wheels, and where the cache has none, the base

PUBLISHED = ("--publish", "127.0.0.1::8888")
TOKEN = r"http://\S+\?token=([0-9a-f]{32,})"


@pytest.fixture(scope="module")
def container(workplace: Workplace) -> Iterator[Container]:
    """One that was told nothing: it made a token."""
    with workplace.started(*PUBLISHED) as found:
        found.says("is running at")
        yield found


def asked(container: Container, path: str, token: str | None = None) -> requests.Response:
    """GET it, as this machine reaches it."""
    headers = {"Authorization": f"token {token}"} if token is not None else {}
    session = requests.Session()
    session.trust_env = False  # no proxy stands before 127.0.0.1
    url = f"http://127.0.0.1:{container.port(8888)}{path}"
    return session.get(url, headers=headers, timeout=30, allow_redirects=False)


def test_the_token_of_the_log_opens(container: Container) -> None:
    """128 bits and more; the same that Jupyter's own list shows."""
    token = container.says(TOKEN)[1]

    assert asked(container, "/api/contents", token).status_code == 200
    assert f"token={token}" in container.inside("jupyter", "server", "list")


@pytest.mark.parametrize("token", [None, "", "0" * 48])
def test_no_other_does(container: Container, token: str | None) -> None:
    assert asked(container, "/api/contents", token).status_code == 403
    assert asked(container, "/lab", token).headers["Location"].startswith("/login")


def test_two_containers_have_two_tokens(container: Container, workplace: Workplace) -> None:
    with workplace.started() as other:
        assert other.says(TOKEN)[1] != container.says(TOKEN)[1]


def test_the_token_stands_in_no_process_list(container: Container) -> None:
    assert container.says(TOKEN)[1] not in container.inside("ps", "-eo", "args=")


def test_a_token_of_the_users(workplace: Workplace) -> None:
    token = "of-our-own-and-long-enough"
    with workplace.started(*PUBLISHED, "-e", f"JUPYTER_TOKEN={token}") as found:
        found.says("is running at")
        assert asked(found, "/api/contents", token).status_code == 200


@pytest.mark.parametrize("token", ["", "short"])
def test_a_token_that_can_be_guessed_is_refused(workplace: Workplace, token: str) -> None:
    ran = workplace.run("-e", f"JUPYTER_TOKEN={token}")

    assert ran.returncode == 1
    assert "JUPYTER_TOKEN" in ran.stderr
    assert "is running at" not in ran.stderr


def test_another_port(workplace: Workplace) -> None:
    with workplace.started("--publish", "127.0.0.1::9999", "-e", "JUPYTER_PORT=9999") as found:
        token = found.says(r"127\.0\.0\.1:9999/lab\?token=(\w+)")[1]
        found.says("is running at")
        found.inside("/opt/torchkiln/healthcheck")
        url = f"http://127.0.0.1:{found.port(9999)}/api/status?token={token}"
        assert requests.get(url, timeout=30, proxies={"http": ""}).status_code == 200


def test_a_kernel_runs_the_images_python(container: Container) -> None:
    """Through REST and WebSocket, as a front end does."""
    token = container.says(TOKEN)[1]
    base = f"127.0.0.1:{container.port(8888)}"
    headers = {"Authorization": f"token {token}"}
    made = requests.post(f"http://{base}/api/kernels", headers=headers, timeout=60, proxies={"http": ""})
    assert made.status_code == 201, made.text

    code = "import sys, os, numpy; print(sys.prefix, os.getcwd(), numpy.arange(5).sum())"
    url = f"ws://{base}/api/kernels/{made.json()['id']}/channels"
    assert printed(url, headers, code) == "/opt/venv /workspace 10\n"


def printed(url: str, headers: dict[str, str], code: str) -> str:
    """What a kernel says to *code*, by Jupyter's messaging protocol 5.3."""
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
    said = ""
    with connect(url, additional_headers=headers, proxy=None) as socket:
        socket.send(json.dumps(message))
        while True:
            answer = json.loads(socket.recv(timeout=60))
            if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:  # type: ignore[index]
                continue
            if answer["msg_type"] == "stream":
                said += answer["content"]["text"]
            if answer["msg_type"] == "error":
                raise AssertionError(answer["content"])
            if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
                return said
