"""References by the distribution project's grammar; what is none is refused with the reason."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import ConfigError
from torchkiln.registry.reference import (
    ImageReference,
    Repository,
    api_host,
    is_local,
    parse_reference,
    parse_repository,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4
LABEL = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?", fullmatch=True)
HOSTS = st.one_of(
    st.just("localhost"),
    st.lists(LABEL, min_size=2, max_size=4).map(".".join),
    st.tuples(LABEL, st.integers(1, 65535)).map(lambda pair: f"{pair[0]}:{pair[1]}"),
    st.ip_addresses(v=6).map(lambda found: f"[{found}]:5000"),
)
PART = st.from_regex(r"[a-z0-9]{1,6}((\.|_|__|-{1,3})[a-z0-9]{1,4}){0,2}", fullmatch=True)
NAMES = st.lists(PART, min_size=1, max_size=4).map("/".join)
TAGS = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)


@given(host=HOSTS, name=NAMES, tag=TAGS, digest=st.sampled_from([None, DIGEST]))
def test_what_is_written_is_read_again(host: str, name: str, tag: str | None, digest: str | None) -> None:
    text = f"{host}/{name}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")

    found = parse_reference(text)

    assert found == ImageReference(repository=Repository(host=host, name=name), tag=tag, digest=digest)
    assert str(found) == text


@given(st.text(max_size=40) | st.from_regex(r"[a-z.:/@ A-Z_-]{0,30}", fullmatch=True))
def test_whatever_else_is_refused_with_a_sentence(text: str) -> None:
    """Never by another error; and what is taken is taken literally."""
    try:
        found = parse_reference(text)
    except ConfigError:
        return
    assert str(found) in (text, text.replace("docker.io/", "docker.io/library/", 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no registry in the reference"),
        ("pytorch", "no registry in the reference"),
        ("team/pytorch", "no registry in the reference"),
        ("registry.example", "no registry in the reference"),
        ("https://registry.example/team/app", "it has a scheme"),
        ("registry.example:0/app", "invalid host 'registry.example:0'"),
        ("registry.example:65536/app", "invalid host"),
        ("registry.example:https/app", "invalid host"),
        ("-registry.example/app", "invalid host"),
        ("registry..example/app", "invalid host"),
        ("user:secret@registry.example/app", "invalid digest: not"),
        ("[::g]:5000/app", "invalid host"),
        ("[1:2]:5000/app", "invalid host"),
        ("registry.example/", "invalid repository name ''"),
        ("registry.example//app", "invalid repository name"),
        ("registry.example/Team/app", "invalid repository name 'Team/app'"),
        ("registry.example/team/app/", "invalid repository name"),
        ("registry.example/a___b", "invalid repository name"),
        ("registry.example/a..b", "invalid repository name"),
        ("registry.example/../b", "invalid repository name"),
        ("registry.example/app\n", "invalid repository name"),
        ("registry.example/app:", "invalid tag ''"),
        ("registry.example/app:.a", "invalid tag '.a'"),
        ("registry.example/app:a:b", "invalid tag 'a:b'"),
        ("registry.example/app:" + "a" * 129, "invalid tag"),
        ("registry.example/app@sha256:12", "invalid digest: not sha256"),
        ("registry.example/app@sha512:" + "0" * 128, "invalid digest: not sha256"),
        ("registry.example/app@" + DIGEST.upper(), "invalid digest: not sha256"),
        ("registry.example/" + "a" * 250, "longer than 255"),
    ],
)
def test_which_part_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as error:
        parse_reference(text)
    assert error.value.hint


def test_docker_hubs_short_form_is_read_as_docker_reads_it() -> None:
    assert str(parse_reference("docker.io/ubuntu:24.04")) == "docker.io/library/ubuntu:24.04"
    assert str(parse_reference("docker.io/team/app")) == "docker.io/team/app"
    assert api_host("docker.io") == "registry-1.docker.io"
    assert api_host("registry.example:5000") == "registry.example:5000"


@pytest.mark.parametrize("end", [":v1", f"@{DIGEST}"])
def test_a_repository_has_neither_tag_nor_digest(end: str) -> None:
    assert parse_repository("localhost/app") == Repository(host="localhost", name="app")
    with pytest.raises(ConfigError, match="neither tag nor digest"):
        parse_repository("localhost/app" + end)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("127.8.9.1", True),
        ("[::1]:5000", True),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("128.0.0.1", False),
        ("registry.example:80", False),
        ("[::2]", False),
    ],
)
def test_only_this_machine_is_asked_in_the_clear(host: str, local: bool) -> None:
    assert is_local(host) is local
