"""A mirror's preset equals the single settings and yields to the user's settings; no lock contains it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.planned import FACTS
from tests.servers.workspace import Workspace, a_workspace
from torchkiln.base.recipe import recipe, sources_of, values
from torchkiln.cli.lock import lock
from torchkiln.cli.shared.options import mirror_option
from torchkiln.docker.build_locked import SOURCES, apt_secrets
from torchkiln.errors import ConfigError
from torchkiln.index.settings import index_settings
from torchkiln.matrix import mirrors
from torchkiln.matrix.matrix import read
from torchkiln.model.operating_system import SYSTEMS

__all__ = ["a_workspace"]

INDEX = "UV_DEFAULT_INDEX"
ARCHIVES = {name for system in SYSTEMS.values() for name in system.variables[:2]}
PACKAGED = mirrors.load()
FILE = """\
schema: 1
mirrors:
  here:
    UV_DEFAULT_INDEX: {index}
    TORCHKILN_DEBIAN_MIRROR: http://127.0.0.1:8/debian
"""


def settings(environ: Mapping[str, str], pip: str = "") -> str:
    return index_settings(environ, pip_config=pip, default_url="https://index.example/simple").default_url


# --- the file --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_preset_sets_the_index_and_the_archives_by_https(name: str) -> None:
    assert set(PACKAGED[name]) == {INDEX, *ARCHIVES}
    assert [address for address in PACKAGED[name].values() if not address.startswith("https://")] == []
    assert [address for address in PACKAGED[name].values() if address.endswith("/")] == []


def test_the_packaged_names() -> None:
    assert list(PACKAGED)[:3] == ["tuna", "ustc", "aliyun"]
    assert PACKAGED["tuna"][INDEX] == "https://pypi.tuna.tsinghua.edu.cn/simple"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema: 2\nmirrors: {a: {UV_DEFAULT_INDEX: 'https://a.example'}}", "f.yaml:1: schema: must be 1"),
        ("schema: 1", "the key 'mirrors' is missing"),
        ("schema: 1\nmirrors: {}", "f.yaml:2: mirrors: must not be empty"),
        ("schema: 1\nmirrors: {a: {}}", "f.yaml:2: mirrors.a: must not be empty"),
        ("schema: 1\nmirrors: {a: {PATH: 'https://a.example'}}", "mirrors.a.PATH: unknown key"),
        (
            "schema: 1\nmirrors:\n  a:\n    UV_DEFAULT_INDEX: ftp://a.example",
            "f.yaml:4: mirrors.a.UV_DEFAULT_INDEX: 'ftp://a.example' is not an http(s) URL",
        ),
        ("schema: 1\nmirrors: {a: {UV_DEFAULT_INDEX: 'https://u:p@a.example'}}", "is not an http(s) URL"),
        ('schema: 1\nmirrors: {a: {UV_DEFAULT_INDEX: "https://a.example/\\nb"}}', "is not an http(s) URL"),
        ("schema: 1\nmirrors: {A/b: {UV_DEFAULT_INDEX: 'https://a.example'}}", "is not a name of a mirror"),
        ("schema: 1\nmirrors: {a: {UV_DEFAULT_INDEX: 1}}", "must be text, not 1"),
    ],
)
def test_an_invalid_file_is_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mirrors.parse(text.encode(), name="f.yaml")
    assert message in caught.value.message


def test_the_file_of_the_user_replaces_the_packaged_one(tmp_path: Path) -> None:
    file = tmp_path / "mirrors.yaml"
    file.write_text(FILE.format(index="http://127.0.0.1:8/simple"))
    environ = {mirrors.FILE: str(file)}

    assert settings({**environ, mirrors.NAME: "here"}) == "http://127.0.0.1:8/simple"
    with pytest.raises(ConfigError, match="'tuna' not found"):
        settings({**environ, mirrors.NAME: "tuna"})
    assert settings(environ) == "https://index.example/simple"
    with pytest.raises(ConfigError, match="No such file"):
        settings({mirrors.FILE: str(tmp_path / "none"), mirrors.NAME: "here"})


# --- what it sets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("os_name", SYSTEMS)
def test_a_preset_equals_the_single_settings(os_name: str) -> None:
    wanted, alone = recipe(os_name), {mirrors.NAME: "ustc"}
    singly = dict(PACKAGED["ustc"])

    assert settings(alone) == settings(singly) == "https://mirrors.ustc.edu.cn/pypi/simple"
    assert sources_of(wanted, alone) == sources_of(wanted, singly)
    assert values(wanted, alone) == values(wanted, singly)
    assert apt_secrets(wanted, alone, None) == apt_secrets(wanted, singly, None)
    assert b"mirrors.ustc.edu.cn" in apt_secrets(wanted, alone, None)[SOURCES]


@pytest.mark.parametrize(
    ("pip", "environ", "expected"),
    [
        ("", {}, "https://pypi.tuna.tsinghua.edu.cn/simple"),
        ("", {INDEX: "https://mine.example/s"}, "https://mine.example/s"),
        ("", {"UV_INDEX_URL": "https://mine.example/s"}, "https://mine.example/s"),
        ("global.index-url='https://pip.example/s'", {}, "https://pip.example/s"),
    ],
)
def test_an_index_of_the_user_has_precedence_and_the_lock_says_so(
    pip: str, environ: dict[str, str], expected: str
) -> None:
    found = index_settings({mirrors.NAME: "tuna", **environ}, pip_config=pip)

    assert found.default_url == expected
    assert [line for line in found.left_out if "TORCHKILN_MIRROR" in line] == (
        ["the package index of TORCHKILN_MIRROR, because another one is configured"]
        if "example" in expected
        else []
    )


def test_an_archive_of_the_user_has_precedence_and_the_other_stays() -> None:
    own = {mirrors.NAME: "tuna", "TORCHKILN_DEBIAN_MIRROR": "untrusted+http://127.0.0.1:8/debian"}
    found = sources_of(recipe("debian12"), own)

    assert (found.mirror, found.untrusted) == ("http://127.0.0.1:8/debian", True)
    assert found.security_mirror == PACKAGED["tuna"]["TORCHKILN_DEBIAN_SECURITY_MIRROR"]
    assert not sources_of(recipe("debian12"), {mirrors.NAME: "tuna"}).untrusted


# --- the option ------------------------------------------------------------------------------------


def locked_by(workspace: Workspace, *options: str, **environ: str) -> bytes:
    """The bytes of the lock that `lock` writes. Its files are then deleted."""
    root = workspace.folder.path.parent
    words = ["--torch", "2.7.1", "--cuda", "12.1", "--as-of", "2026-11-01", *options]
    words += ["--matrix", str(root / "matrix.yaml"), "--images", str(workspace.folder.path)]
    assert read(root / "matrix.yaml", FACTS).releases
    shared = {key: value for key, value in workspace.environ.items() if key != INDEX}
    runner = CliRunner(env={**shared, "TORCHKILN_CACHE": str(workspace.store.root), **environ})
    result = runner.invoke(lock, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    folder = workspace.folder.path / result.stdout.strip()
    data = (folder / "lock.json").read_bytes()
    for file in folder.iterdir():
        file.unlink()
    return data


def test_a_lock_by_a_mirror_is_the_lock_by_its_settings(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INDEX, raising=False)
    monkeypatch.delenv(mirrors.NAME, raising=False)
    file = workspace.folder.path.parent / "mirrors.yaml"
    file.write_text(FILE.format(index=workspace.server.url("default")))
    singly = locked_by(workspace, **{INDEX: workspace.server.url("default")})
    by_option = locked_by(workspace, "--mirror", "here", **{mirrors.FILE: str(file)})
    by_variable = locked_by(workspace, **{mirrors.FILE: str(file), mirrors.NAME: "here"})

    assert by_option == by_variable == singly
    assert b"127.0.0.1" not in singly
    assert b"here" not in singly


@pytest.mark.parametrize("name", ["tunaa", "", "x" * 500])
def test_an_unknown_mirror_is_refused_with_the_names_before_any_work(workspace: Workspace, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        locked_by(workspace, "--mirror", name)
    assert caught.value.message == f"mirror {name[:80]!r} not found"
    assert caught.value.hint == "use one of tuna, ustc, aliyun, tencent, bfsu"
    assert caught.value.exit_code == 2
    assert workspace.server.requests == []


def test_the_option_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import click

    seen = []

    @click.command()
    @mirror_option
    def command() -> None:
        seen.append(os.environ.get(mirrors.NAME))

    for before in (None, "ustc"):
        monkeypatch.delenv(mirrors.NAME, raising=False)
        if before:
            monkeypatch.setenv(mirrors.NAME, before)
        CliRunner().invoke(command, ["--mirror", "tuna"], catch_exceptions=False)
        assert os.environ.get(mirrors.NAME) == before
    assert seen == ["tuna", "tuna"]
