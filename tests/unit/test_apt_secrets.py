"""What apt is told in secret, from the user's variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchkiln.base.recipe import recipe
from torchkiln.base.sources import variables
from torchkiln.docker.secrets import apt_secrets
from torchkiln.errors import ConfigError

DEBIAN, UBUNTU = recipe("debian12"), recipe("ubuntu22.04")
MIRROR, SECURITY_MIRROR, _ = variables(DEBIAN)


def test_nothing_is_told_where_nothing_is_set() -> None:
    assert apt_secrets(DEBIAN, {"HOME": "/root", "http_proxy": ""}, None) == {}


def test_mirrors_proxy_and_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"PEM")
    environ = {
        MIRROR: "https://u:p@mirror:8443/debian",
        SECURITY_MIRROR: "http://mirror/security",
        "https_proxy": "http://u:p@proxy:3128",
        "HTTP_PROXY": "http://proxy:3128",
    }

    assert apt_secrets(DEBIAN, environ, bundle) == {
        "apt-sources": (
            b"deb https://u:p@mirror:8443/debian bookworm main\n"
            b"deb https://u:p@mirror:8443/debian bookworm-updates main\n"
            b"deb http://mirror/security bookworm-security main\n"
        ),
        "apt-ca": b"PEM",
        "apt-config": (
            b'Dir::Etc::SourceList "/run/secrets/apt-sources";\n'
            b'Dir::Etc::SourceParts "-";\n'
            b'Acquire::https::CAInfo "/run/secrets/apt-ca";\n'
            b'Acquire::http::Proxy "http://proxy:3128";\n'
            b'Acquire::https::Proxy "http://u:p@proxy:3128";\n'
        ),
    }


def test_the_suite_and_components_are_the_systems() -> None:
    told = apt_secrets(UBUNTU, {"TORCHKILN_UBUNTU_MIRROR": "untrusted+http://mirror/ubuntu"}, None)

    assert apt_secrets(UBUNTU, {MIRROR: "http://mirror/debian"}, None) == {}
    assert told["apt-sources"].splitlines()[1] == b"deb http://mirror/ubuntu jammy-updates main universe"


@pytest.mark.parametrize(
    "environ",
    [
        {MIRROR: "file:///srv/secret"},
        {MIRROR: "http://mirror/secret\ndeb http://other x y"},
        {MIRROR: 'http://secret";APT::Update::Pre-Invoke {"sh"};'},
        {"http_proxy": "secret proxy"},
        {SECURITY_MIRROR: "http://secret"},
    ],
)
def test_what_apt_could_not_take_is_refused_without_being_repeated(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        apt_secrets(DEBIAN, environ, None)

    assert next(iter(environ)) in refused.value.message
    assert "secret" not in refused.value.message


def test_a_bundle_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the CA bundle"):
        apt_secrets(DEBIAN, {}, tmp_path / "none.pem")
