"""Where packages come from: the user's pip and uv settings, and what never gets into a message."""

from __future__ import annotations

import pytest

from torchkiln.errors import ConfigError, Unresolvable
from torchkiln.index.settings import (
    IndexSettings,
    index_settings,
    parse_pip_config,
    redact,
    redact_text,
)
from torchkiln.model.cell import Source

DEFAULT = "https://index.example/simple/"


def settings(pip: str = "", **environ: str) -> IndexSettings:
    return index_settings(environ, pip_config=pip, default_url=DEFAULT)


def test_pip_variables_go_before_the_install_section_and_that_before_global() -> None:
    text = (
        "global.cert='a'\n:env:.cert='c'\ninstall.cert='b'\nglobal.proxy='p'\ninstall.proxy='q'\nnonsense\n"
    )

    assert parse_pip_config(text) == {"cert": "c", "proxy": "q"}


def test_values_are_read_as_pip_prints_them() -> None:
    assert parse_pip_config('global.index-url="https://a.example/it\'s"\nglobal.x=[1\n') == {
        "index-url": "https://a.example/it's"
    }


@pytest.mark.parametrize(
    ("pip", "environ", "expected"),
    [
        ("", {}, "https://index.example/simple"),
        ("global.index-url='https://pip.example/simple/'", {}, "https://pip.example/simple"),
        (
            "global.index-url='https://pip.example/simple'",
            {"UV_INDEX_URL": "https://uv.example/s"},
            "https://uv.example/s",
        ),
        (
            "",
            {"UV_INDEX_URL": "https://a.example/s", "UV_DEFAULT_INDEX": "https://b.example/s"},
            "https://b.example/s",
        ),
    ],
)
def test_uv_wins_over_pip_and_pip_over_the_library(pip: str, environ: dict[str, str], expected: str) -> None:
    assert settings(pip, **environ).default_url == expected


def test_certificates_and_proxy_come_from_pip_unless_the_environment_has_them() -> None:
    pip = "global.cert='/pip.pem'\nglobal.client-cert='/me.pem'\nglobal.proxy='http://proxy.example:3128'"

    assert settings(pip).ca_bundle == "/pip.pem"
    assert settings(pip).client_cert == "/me.pem"
    assert settings(pip).proxy == "http://proxy.example:3128"
    assert settings(pip, SSL_CERT_FILE="/env.pem").ca_bundle == "/env.pem"


def test_extra_indexes_and_find_links_are_left_out_and_named() -> None:
    """Somebody else's upload of the same name must not get into an image."""
    pip = "global.extra-index-url='https://x.example'\n:env:.find-links='/wheels'"
    found = settings(pip, UV_INDEX="https://y.example")

    assert found.left_out == ("extra-index-url", "find-links", "UV_INDEX")


def test_credentials_are_taken_out_of_addresses_and_shown_nowhere() -> None:
    found = settings(
        "global.index-url='https://me:s%40cret@i.example/simple'",
        TORCHKILN_INDEX_PYTORCH="http://t:k@p.example/w",
    )

    assert found.default_url == "https://i.example/simple"
    assert found.logins == (("i.example", "me", "s@cret"), ("p.example", "t", "k"))
    assert "cret" not in repr(found)


def test_a_message_shows_scheme_host_and_file_only() -> None:
    assert redact("https://me:pw@h.example:8443/token/a.whl?sig=1#f") == "https://h.example:8443/…/a.whl"
    assert redact_text("at `https://u:p@h.example/x/y/`, see") == "at `https://h.example/…/y`, see"


def test_every_bad_address_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        settings("global.index-url='file:///srv/simple'", TORCHKILN_INDEX_PYTORCH="nonsense")

    assert caught.value.message.splitlines() == [
        "index-url: not an http(s) URL",
        "TORCHKILN_INDEX_PYTORCH: not an http(s) URL",
    ]


def test_an_index_that_is_not_configured_is_named_by_its_setting() -> None:
    with pytest.raises(Unresolvable) as caught:
        settings().url(Source.PYTORCH)

    assert "TORCHKILN_INDEX_PYTORCH" in caught.value.hint
