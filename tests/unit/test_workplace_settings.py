"""The settings of a container: the values that they accept. All invalid values are reported together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workplace import settings
from workplace.settings import SWITCHES, BadSettings, Jupyter, Settings, Ssh, TensorBoard, read, unread

TOKEN = "0123456789-of-our-own"
PRINTED = "".join(map(chr, range(ord("!"), ord("~") + 1)))
BAD = {
    "JUPYTER": "perhaps",
    "JUPYTER_USER": "anna",
    "JUPYTER_TOKEN": "short",
    "JUPYTER_ALLOW_WEAK_TOKEN": "ja",
    "JUPYTER_PORT": "http",
    "JUPYTER_BASE_URL": "lab",
    "SSH": "2",
    "SSH_PORT": "0",
    "TENSORBOARD_PORT": "65536",
    "TORCHKILN_SUDO": "please",
    "TORCHKILN_RESTART": "never",
}
# Variables that libc, pip and uv read; this package does not read them.
OTHERS = {"TZ", "PIP_CONSTRAINT", "UV_CONSTRAINT"}


class RecordingEnviron(Mapping[str, str]):
    """An environment that records the names of the variables that are read."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ, self.requested = environ, set[str]()

    def __getitem__(self, name: str) -> str:
        self.requested.add(name)
        return self.environ[name]

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("it reads by name")

    def __len__(self) -> int:
        raise AssertionError("it reads by name")


def faults(root: bool = True, **environ: str) -> list[str]:
    try:
        read(environ, root=root)
    except BadSettings as error:
        return error.faults
    return []


def named(value: list[str]) -> list[str]:
    """The settings that the messages name; each message begins with one."""
    return sorted(sentence.replace("=", " ").replace(":", " ").split()[0] for sentence in value)


def switches() -> list[tuple[str, str]]:
    """Name and default of each variable in SWITCHES."""
    return [(name, default) for names, default in SWITCHES for name in names.split(", ")]


def jupyter(**environ: str) -> Jupyter:
    found = read(environ, root=True).jupyter
    assert found
    return found


def ports(**environ: str) -> tuple[int, ...]:
    """The ports on which sshd listens if it does not run as root."""
    found = read(environ, root=False).ssh
    assert found
    return found.ports


def test_an_empty_environment_starts_jupyter_and_ssh() -> None:
    assert read({}, root=True) == Settings(
        jupyter=Jupyter(token=None, port=8888, base_url="/", origin=""),
        ssh=Ssh(keys="", ports=(22,), host_keys=Path("/etc/ssh/host_keys")),
        tensorboard=None,
        sudo=False,
        restart=True,
        any_gpu=False,
    )


def test_every_variable_is_used() -> None:
    value = {
        "JUPYTER_TOKEN": TOKEN,
        "JUPYTER_USER": "root",
        "JUPYTER_PORT": "9999",
        "JUPYTER_BASE_URL": "/lab/anna",
        "JUPYTER_ALLOW_ORIGIN": "https://lab.example",
        "SSH_PUBLIC_KEY": "\nssh-ed25519 AAAA\n",
        "PUBLIC_KEY": "ssh-ed25519 BBBB\n",
        "SSH_PORT": "2022",
        "SSH_HOST_KEYS": "/keys",
        "TENSORBOARD_LOGDIR": "/workspace/runs",
        "TENSORBOARD_PORT": "7007",
        "TORCHKILN_SUDO": "yes",
        "TORCHKILN_RESTART": "no",
        "TORCHKILN_ANY_GPU": "yes",
    }
    assert read(value, root=True) == Settings(
        jupyter=Jupyter(
            token=TOKEN, port=9999, base_url="/lab/anna/", origin="https://lab.example", as_root=True
        ),
        ssh=Ssh(
            keys="ssh-ed25519 AAAA", ports=(2022,), host_keys=Path("/keys"), other_keys="ssh-ed25519 BBBB"
        ),
        tensorboard=TensorBoard(logdir="/workspace/runs", port=7007),
        sudo=True,
        restart=False,
        any_gpu=True,
    )


def test_services_can_be_disabled() -> None:
    found = read({"JUPYTER": "off", "SSH": "off"}, root=True)
    assert (found.jupyter, found.ssh) == (None, None)


def test_help_lists_exactly_the_used_variables(tmp_path: Path) -> None:
    """Each listed variable has an effect, and each used variable is listed."""
    (tmp_path / "token").write_text(TOKEN)
    environ = RecordingEnviron({"JUPYTER_TOKEN_FILE": str(tmp_path / "token"), "TENSORBOARD_LOGDIR": "/runs"})
    read(environ, root=True)

    names = [name for name, _ in switches()]
    assert environ.requested == set(names) - OTHERS
    assert len(names) == len(set(names))


def test_the_defaults_in_help_are_right() -> None:
    made = {"JUPYTER_TOKEN", *OTHERS}  # their defaults in help are words, not values
    value = {name: default for name, default in switches() if default and name not in made}
    board = {"TENSORBOARD_LOGDIR": "/runs"}

    assert len(value) >= 8
    assert read(board | value, root=True) == read(board, root=True)


@pytest.mark.parametrize("switch", ["JUPYTER", "SSH", "TORCHKILN_RESTART"])
@pytest.mark.parametrize(
    ("word", "on"),
    [
        *((word, True) for word in ("yes", "TRUE", "On", "1", "")),
        *((word, False) for word in ("no", "False", "OFF", "0")),
    ],
)
def test_words_for_yes_and_no(switch: str, word: str, on: bool) -> None:
    found = read({switch: word}, root=True)
    assert bool({"JUPYTER": found.jupyter, "SSH": found.ssh}.get(switch, found.restart)) is on


def test_all_errors_are_reported_at_once() -> None:
    value = faults(root=False, TENSORBOARD_LOGDIR="/runs", **BAD)
    assert named(value) == sorted(BAD)


@pytest.mark.parametrize("name", BAD)
def test_each_wrong_value_is_reported_once(name: str) -> None:
    """The value is in the message, unless it is a secret."""
    value = faults(TENSORBOARD_LOGDIR="/runs", **{name: BAD[name]})
    assert named(value) == [name]
    assert (repr(BAD[name]) in value[0]) is (name != "JUPYTER_TOKEN")


@pytest.mark.parametrize("name", ["JUPYTER_PORT", "SSH_PORT", "TENSORBOARD_PORT"])
@pytest.mark.parametrize("port", ["-1", "22.0", " 22", "1e3", "٢٢", "²", "0x16", "tcp:22", "9" * 5000])
def test_invalid_ports(name: str, port: str) -> None:
    value = faults(TENSORBOARD_LOGDIR="/runs", **{name: port})
    assert named(value) == [name]
    assert len(value[0]) < 200


@pytest.mark.parametrize("port", [1, 65535])
def test_the_first_and_the_last_port(port: int) -> None:
    assert jupyter(JUPYTER_PORT=str(port)).port == port


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_service_variables_of_kubernetes_are_ignored(protocol: str) -> None:
    """In a pod, a Kubernetes service named jupyter, ssh or tensorboard sets such variables."""
    value = f"{protocol}://10.0.0.1:8888"
    environ = {"TENSORBOARD_LOGDIR": "/runs"}
    more = dict.fromkeys(("JUPYTER_PORT", "SSH_PORT", "TENSORBOARD_PORT"), value)

    assert read(environ | more, root=True) == read(environ, root=True)


@pytest.mark.parametrize(
    ("value", "base"),
    [("", "/"), ("/", "/"), ("/a", "/a/"), ("/a/", "/a/"), ("/a/b-c.d~e@f", "/a/b-c.d~e@f/")],
)
def test_a_base_url_starts_and_ends_with_a_slash(value: str, base: str) -> None:
    assert jupyter(JUPYTER_BASE_URL=value).base_url == base


@pytest.mark.parametrize("value", ["a/", "//", "/a//b", "/a b", "/a?b", "/a#b", "/a\n", "http://a/", "/a%20"])
def test_invalid_base_urls(value: str) -> None:
    assert named(faults(JUPYTER_BASE_URL=value)) == ["JUPYTER_BASE_URL"]


@pytest.mark.parametrize("token", ["", "short", "a" * 40, "012345678901234", "abcdefg" * 5])
def test_a_weak_token(token: str) -> None:
    """A weak token is refused, unless a setting allows it."""
    assert named(faults(JUPYTER_TOKEN=token)) == ["JUPYTER_TOKEN"]
    assert jupyter(JUPYTER_TOKEN=token, JUPYTER_ALLOW_WEAK_TOKEN="yes").token == token


@pytest.mark.parametrize("token", ["abcdefgh" * 2, "0123456789abcdef", PRINTED])
def test_a_strong_token(token: str) -> None:
    assert jupyter(JUPYTER_TOKEN=token).token == token


@pytest.mark.parametrize(
    "token", ["two words 0123456789", "tab\t0123456789abcdef", "ü0123456789abcdef", "\x7f"]
)
@pytest.mark.parametrize("weak", ["yes", "no"])
def test_a_token_that_is_not_valid_in_a_url(token: str, weak: str) -> None:
    assert named(faults(JUPYTER_TOKEN=token, JUPYTER_ALLOW_WEAK_TOKEN=weak)) == ["JUPYTER_TOKEN"]


@given(st.text(PRINTED, max_size=40), st.permutations(PRINTED))
@example("a" * 20, PRINTED[::-1])
def test_a_refused_token_is_not_shown(token: str, shuffled: list[str]) -> None:
    """The message depends only on the token's length and on its number of different characters."""
    similar_token = token.translate(str.maketrans(PRINTED, "".join(shuffled)))
    assert faults(JUPYTER_TOKEN=token) == faults(JUPYTER_TOKEN=similar_token)


@given(st.text(), st.characters(exclude_characters=PRINTED), st.text())
def test_a_refused_token_with_an_invalid_letter_is_not_shown(before: str, letter: str, after: str) -> None:
    assert faults(JUPYTER_TOKEN=before + letter + after) == faults(JUPYTER_TOKEN="two words")


def test_the_password_of_providers_is_a_token() -> None:
    """It has the same rules, and comes after JUPYTER_TOKEN."""
    assert jupyter(JUPYTER_PASSWORD=TOKEN).token == TOKEN
    assert jupyter(JUPYTER_PASSWORD=TOKEN[::-1], JUPYTER_TOKEN=TOKEN).token == TOKEN
    assert named(faults(JUPYTER_PASSWORD="short")) == ["JUPYTER_PASSWORD"]
    assert "short" not in faults(JUPYTER_PASSWORD="short")[0]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SSH_PUBLIC_KEYS", "SSH_PUBLIC_KEY"),
        ("SSH_KEY", "SSH_PUBLIC_KEY"),
        ("ssh_public_key", "SSH_PUBLIC_KEY"),
        ("JUPYTER_TOKN", "JUPYTER_TOKEN"),
        ("JUPYTER_PASSWD", "JUPYTER_PASSWORD"),
        ("TENSORBOARD_LOG_DIR", "TENSORBOARD_LOGDIR"),
        ("PIP_CONSTRAINTS", "PIP_CONSTRAINT"),
    ],
)
def test_a_variable_that_looks_meant_is_named(name: str, meant: str) -> None:
    (text,) = unread({name: "secret", meant: "secret"})

    assert text.startswith(f"{name} is not a setting")
    assert f"{meant}?" in text
    assert "secret" not in text


def test_other_variables_are_not_named() -> None:
    """Those of the image, of Jupyter, of SSH sessions, of Kubernetes, of pip, and all that are read."""
    others = "PATH LANG TZ VIRTUAL_ENV JUPYTER_PATH JUPYTER_CONFIG_DIR JUPYTER_PREFER_ENV_PATH SSH_AUTH_SOCK"
    pod = "JUPYTER_PORT_8888_TCP JUPYTER_SERVICE_PORT SSH_CLIENT SSH_TTY HOSTNAME PIP_ROOT_USER_ACTION"
    names = [*others.split(), *pod.split(), *(name for name, _ in switches())]

    assert unread(dict.fromkeys(names, "value")) == ()


def test_a_token_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    mounted = str(tmp_path / "token")

    assert jupyter(JUPYTER_TOKEN_FILE=mounted).token == TOKEN
    assert jupyter(JUPYTER_TOKEN_FILE=mounted, JUPYTER_TOKEN=TOKEN[::-1]).token == TOKEN[::-1]
    assert jupyter(JUPYTER_TOKEN_FILE="").token is None


@pytest.mark.parametrize(
    "secret", [b"", b"guessable\n", b"two words 0123456789", b"\xff\xfe0123456789abcdef"]
)
def test_a_file_with_an_invalid_token(secret: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(secret)
    value = faults(JUPYTER_TOKEN_FILE=str(tmp_path / "token"))

    assert named(value) == ["JUPYTER_TOKEN_FILE"]
    assert "guessable" not in value[0]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        value = faults(JUPYTER_TOKEN_FILE=str(place))
        assert named(value) == ["JUPYTER_TOKEN_FILE"]
        assert str(place) in value[0]


@given(token=st.text(PRINTED, min_size=1), port=st.integers(1, 65535))
def test_the_url_has_port_and_token(token: str, port: int) -> None:
    """Python's URL parser finds port, path and token in the URL."""
    lab = Jupyter(token=None, port=port, base_url="/lab/anna/", origin="")
    found = urlsplit(lab.url(token))

    assert (found.port, found.path) == (port, "/lab/anna/lab")
    assert parse_qs(found.query, strict_parsing=True) == {"token": [token]}
    assert "token" not in lab.url("")


def test_sudo_needs_root() -> None:
    assert read({"TORCHKILN_SUDO": "yes"}, root=True).sudo
    assert named(faults(root=False, TORCHKILN_SUDO="yes")) == ["TORCHKILN_SUDO"]
    assert faults(root=False, TORCHKILN_SUDO="no") == []


@pytest.mark.parametrize(
    ("lowest", "expected"),
    [("0\n", (2222, 22)), ("22\n", (2222, 22)), ("23\n", (2222,)), ("1024\n", (2222,)), ("?", (2222,))],
)
def test_ssh_without_root_listens_on_2222_and_if_allowed_on_22(
    lowest: str, expected: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = tmp_path / "ip_unprivileged_port_start"
    monkeypatch.setattr(settings._lowest_port, "__defaults__", (value,))
    assert ports() == (2222,)  # the kernel does not have this setting

    value.write_text(lowest)
    assert ports() == expected
    assert ports(SSH_PORT="2022") == (2022,)


def test_each_user_has_a_runtime_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's is where only root can write. The path of another user's contains the uid."""
    found = []
    for uid in (0, 1000, 1001):
        monkeypatch.setattr("os.getuid", lambda uid=uid: uid)
        found.append(settings.runtime_folder())

    assert found[0].parts[1] == "run"
    assert len(set(found)) == 3
