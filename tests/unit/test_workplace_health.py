"""The health check, which asks the services; and the variables that SSH sessions get."""

from __future__ import annotations

import json
import os
import socket
import string
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.inside import needs_sshd, says, sshd
from tests.servers.answering import Answer, Answering
from workplace import health
from workplace.health import expect, main, states
from workplace.session import set_env, shared
from workplace.supervision import Service


def service(port: int, path: str | None, name: str = "one") -> Service:
    return Service(name=name, command=("true",), environ={}, port=port, path=path)


def fault(folder: Path, port: int, path: str | None) -> str:
    expect(folder, [service(port, path)])
    ((name, found),) = states(folder)
    assert name == "one"
    return found


@pytest.fixture
def web() -> Iterator[int]:
    """The port of a server: it responds with 200 to /lab/api, to other paths with the status in the path."""

    def answer(path: str, _: object) -> Answer:
        found = path.strip("/")
        return 200 if found == "lab/api" else int(found), {"Location": "/lab/api"}, b"{}"

    with Answering(answer) as server:
        yield server.port


def closed() -> int:
    """A port without a server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_service_that_responds(web: int, tmp_path: Path) -> None:
    assert fault(tmp_path, web, "/lab/api") == ""


@pytest.mark.parametrize("status", [204, 302, 403, 404, 500, 503])
def test_another_status_is_reported(status: int, web: int, tmp_path: Path) -> None:
    """A redirect is reported, too, because it may lead to another server's page."""
    found = fault(tmp_path, web, f"/{status}")

    assert str(status) in found
    assert str(web) in found


def test_a_proxy_is_not_used(web: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed()}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    assert fault(tmp_path, web, "/lab/api") == ""


def test_ssh_sends_its_banner_first(tmp_path: Path) -> None:
    with says(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert fault(tmp_path, port, None) == ""


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400\r\n\r\n", b"220 ready\r\n", b""])
def test_another_banner_is_not_ssh(greeting: bytes, tmp_path: Path) -> None:
    with says(greeting) as port:
        assert str(port) in fault(tmp_path, port, None)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b""])
def test_another_protocol_than_http_is_reported(greeting: bytes, tmp_path: Path) -> None:
    with says(greeting) as port:
        assert str(port) in fault(tmp_path, port, "/lab/api")


@pytest.mark.parametrize("path", ["/lab/api", None])
def test_a_refused_connection(path: str | None, tmp_path: Path) -> None:
    port = closed()
    assert str(port) in fault(tmp_path, port, path)


@pytest.mark.parametrize("path", ["/lab/api", None])
def test_a_service_that_hangs(path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and never responds, because it is stopped or out of memory, for example."""
    monkeypatch.setattr(health, "TIMEOUT", 0.2)
    with says(None) as port:
        assert str(port) in fault(tmp_path, port, path)


def test_every_unhealthy_service_is_reported(web: int, tmp_path: Path) -> None:
    expect(tmp_path, [service(closed(), "/", "lab"), service(web, "/lab/api", "board")])

    assert [(name, bool(found)) for name, found in states(tmp_path)] == [("lab", True), ("board", False)]


def test_the_noted_services_contain_no_secret(tmp_path: Path) -> None:
    """Every user can read this file. It has only names, ports and paths."""
    lab_service = Service(name="lab", command=("a",), environ={"TOKEN": "secret"}, port=1, path="/")
    expect(tmp_path, [lab_service])

    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text()) == [{"name": "lab", "port": 1, "path": "/"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the health check looks for the list of services."""
    monkeypatch.setattr(health, "runtime_folder", lambda: tmp_path)
    return tmp_path


def test_healthy_if_every_service_responds(
    web: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(folder, [service(web, "/lab/api")])

    assert main() == 0
    assert capsys.readouterr() == ("", "")


def test_unhealthy_if_a_service_does_not_respond(
    web: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed message names the service, and Docker stores it."""
    expect(folder, [service(web, "/lab/api", "board"), service(web, "/500", "lab")])

    assert main() == 1
    assert capsys.readouterr().err.startswith("lab:")


@pytest.mark.usefixtures("folder")
def test_a_container_that_runs_a_command_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    """Its first process is not torchkiln's entrypoint, as on this machine."""
    assert main() == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("folder")
def test_a_container_whose_services_have_not_started_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Path("/proc/1/cmdline").read_bytes().rstrip(b"\0").split(b"\0")[-1].decode()
    monkeypatch.setattr(health, "_ENTRYPOINT", last)

    assert main() == 1


OWN = ("HOME", "USER", "LOGNAME", "SHELL", "TERM", "PWD", "OLDPWD", "SHLVL", "MAIL", "_", "HOSTNAME")
SECRET = ("JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE", "SSH_PUBLIC_KEY")
_FIRST = string.ascii_letters + "_"
NAMES = st.builds(str.__add__, st.sampled_from(_FIRST), st.text(_FIRST + string.digits, max_size=8))
# A variable of a Linux process may have any bytes except NUL; they may be invalid UTF-8.
ODD = st.text("\"'\\ \t#=%$`\x0b\x0c\x85\u2028é", max_size=20)
ANY = st.binary(max_size=40).map(lambda value: os.fsdecode(value.replace(b"\0", b"")))
ENVIRONMENTS = st.dictionaries(NAMES | st.sampled_from([*OWN, *SECRET]), ODD | ANY, max_size=12)


def words(line: str) -> list[str]:
    """The words into which argv_split() in OpenSSH's misc.c divides *line*."""
    found: list[str] = []
    at, quote, inside = 0, "", False
    while at < len(line):
        sign, following = line[at], line[at + 1 : at + 2]
        if not quote and sign in " \t":
            inside = False
        elif not inside and sign == "#":
            break
        else:
            if not inside:
                found.append("")
                inside = True
            if sign == "\\" and (following in ("'", '"', "\\") or (following == " " and not quote)):
                found[-1] += following
                at += 1
            elif not quote and sign in "\"'":
                quote = sign
            elif sign == quote:
                quote = ""
            else:
                found[-1] += sign
        at += 1
    assert not quote, "sshd refuses a line that ends within quotes"
    return found


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the session is expected to have."""
    removed = {*OWN, *SECRET}
    return {
        name: value
        for name, value in environ.items()
        if name not in removed and "\n" not in value and "\r" not in value
    }


@pytest.fixture(scope="module")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host key: without one, sshd does not read its configuration."""
    place = tmp_path_factory.mktemp("sshd") / "key"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place)]
    subprocess.run(argv, check=True)
    return place


@given(ENVIRONMENTS)
@example({})
@example({"A": 'a "word" \\ and $more\\', "B": "'", "C": "#", "D": "", "E": " = ", "F": '\\"'})
def test_passed_on_variables_read_back(environ: Mapping[str, str]) -> None:
    variables, _ = shared(environ)
    line = set_env(variables)

    expected = ["SetEnv", *(f"{name}={value}" for name, value in sorted(passed_on(environ).items()))]
    assert words(line.removesuffix("\n")) == (expected if len(expected) > 1 else [])
    assert line.count("\n") == bool(line)


@needs_sshd
@given(environ=ENVIRONMENTS)
@example(environ={"A": 'a "word" \\ and $more\\', "B": "'", "C": "#", "D": "", "E": " = ", "F": '\\"'})
def test_sshd_reads_the_variables(host_key: Path, environ: Mapping[str, str]) -> None:
    """The real sshd prints the variables that it has read."""
    place = host_key.with_name("sshd_config")
    place.write_bytes(f"HostKey {host_key}\n".encode() + os.fsencode(set_env(shared(environ)[0])))
    done = sshd("-T", "-f", str(place), "-C", "user=x,host=y,addr=z")
    assert done.returncode == 0, done.stderr

    lines = done.stdout.split(b"\n")
    read = (os.fsdecode(line).partition(" ")[2] for line in lines if line.startswith(b"setenv "))
    assert dict(word.split("=", 1) for word in read) == passed_on(environ)


@given(ENVIRONMENTS)
@example({"ONE": "a\nb", "TWO": "a\rb", "THREE": "ab"})
def test_variables_with_a_line_break_are_named(environ: Mapping[str, str]) -> None:
    """sshd's configuration cannot contain them. All other variables are passed on."""
    variables, broken = shared(environ)

    assert {*variables, *broken} == set(environ) - {*OWN, *SECRET}
    assert list(broken) == sorted(name for name in broken if {"\n", "\r"} & set(environ[name]))


@pytest.mark.parametrize("value", ["lab_service", "a\nb"])
def test_identity_and_secrets_are_not_passed_on(value: str) -> None:
    """The message about left out variables does not name them."""
    assert shared(dict.fromkeys((*OWN, *SECRET), value)) == ({}, ())


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "BASH_FUNC_x%%", "É", "A\n"])
def test_invalid_variable_names_are_not_passed_on(name: str) -> None:
    assert shared({name: "value"}) == ({}, ())
