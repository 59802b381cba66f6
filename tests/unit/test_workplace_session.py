"""What SSH sessions get of the container's environment: told to sshd, and read again as sshd reads it."""

from __future__ import annotations

import os
import string
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.inside import needs_sshd, sshd
from workplace.session import set_env, shared

OWN = ("HOME", "USER", "LOGNAME", "SHELL", "TERM", "PWD", "OLDPWD", "SHLVL", "MAIL", "_", "HOSTNAME")
SECRET = ("JUPYTER_TOKEN", "JUPYTER_TOKEN_FILE", "SSH_PUBLIC_KEY")
_FIRST = string.ascii_letters + "_"
NAMES = st.builds(str.__add__, st.sampled_from(_FIRST), st.text(_FIRST + string.digits, max_size=8))
# What a Linux process can be given: bytes but NUL, those that are no UTF-8 too.
ODD = st.text("\"'\\ \t#=%$`\x0b\x0c\x85\u2028é", max_size=20)
ANY = st.binary(max_size=40).map(lambda value: os.fsdecode(value.replace(b"\0", b"")))
ENVIRONMENTS = st.dictionaries(NAMES | st.sampled_from([*OWN, *SECRET]), ODD | ANY, max_size=12)


def words(line: str) -> list[str]:
    """*line* taken apart as argv_split() of OpenSSH's misc.c does it."""
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


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What is to come out at the other end."""
    gone = {*OWN, *SECRET}
    return {
        name: value
        for name, value in environ.items()
        if name not in gone and "\n" not in value and "\r" not in value
    }


@pytest.fixture(scope="module")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without one, sshd reads no further."""
    place = tmp_path_factory.mktemp("sshd") / "key"
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place)]
    subprocess.run(argv, check=True)
    return place


@given(ENVIRONMENTS)
@example({})
@example({"A": 'a "word" \\ and $more\\', "B": "'", "C": "#", "D": "", "E": " = ", "F": '\\"'})
def test_what_is_handed_on_can_be_read_again(environ: Mapping[str, str]) -> None:
    variables, _ = shared(environ)
    line = set_env(variables)

    expected = ["SetEnv", *(f"{name}={value}" for name, value in sorted(handed_on(environ).items()))]
    assert words(line.removesuffix("\n")) == (expected if len(expected) > 1 else [])
    assert line.count("\n") == bool(line)


@needs_sshd
@given(environ=ENVIRONMENTS)
@example(environ={"A": 'a "word" \\ and $more\\', "B": "'", "C": "#", "D": "", "E": " = ", "F": '\\"'})
def test_sshd_reads_it_so(host_key: Path, environ: Mapping[str, str]) -> None:
    """The real one, by what it says that it has read."""
    place = host_key.with_name("sshd_config")
    place.write_bytes(f"HostKey {host_key}\n".encode() + os.fsencode(set_env(shared(environ)[0])))
    done = sshd("-T", "-f", str(place), "-C", "user=x,host=y,addr=z")
    assert done.returncode == 0, done.stderr

    lines = done.stdout.split(b"\n")
    read = (os.fsdecode(line).partition(" ")[2] for line in lines if line.startswith(b"setenv "))
    assert dict(word.split("=", 1) for word in read) == handed_on(environ)


@given(ENVIRONMENTS)
@example({"ONE": "a\nb", "TWO": "a\rb", "THREE": "ab"})
def test_what_holds_a_line_break_is_named(environ: Mapping[str, str]) -> None:
    """All others are handed on, so nothing is lost in silence."""
    variables, broken = shared(environ)

    assert {*variables, *broken} == set(environ) - {*OWN, *SECRET}
    assert list(broken) == sorted(name for name in broken if {"\n", "\r"} & set(environ[name]))


@pytest.mark.parametrize("value", ["told", "a\nb"])
def test_who_a_session_is_and_who_may_get_in_is_not_handed_on(value: str) -> None:
    """Nor named."""
    assert shared(dict.fromkeys((*OWN, *SECRET), value)) == ({}, ())


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "BASH_FUNC_x%%", "É", "A\n"])
def test_what_no_shell_could_name_is_not_handed_on(name: str) -> None:
    assert shared({name: "told"}) == ({}, ())
