"""The lock session, called from Python as another program would call it, and the settings of indexes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.planned import FACTS
from tests.servers.workspace import MATRIX, Workspace, a_workspace
from torchkiln.errors import BuildFailed, ConfigError, Stale, Unresolvable
from torchkiln.index.settings import IndexSettings, index_settings, parse_pip_config, redact, redact_text
from torchkiln.locks.folder import LockFolder
from torchkiln.locks.lock import load_locked
from torchkiln.locks.session import lockable
from torchkiln.matrix.matrix import read
from torchkiln.model.cell import Cell, Flavor, Source

__all__ = ["a_workspace"]


def cell(torch: str = "2.7.1", flavor: Flavor = "runtime", *gpus: str) -> Cell:
    return Cell(torch=torch, cuda="12.1", flavor=flavor, os="debian12", python="3.11", gpus=gpus)


def test_a_cell_is_locked_on_its_base_and_checked(workspace: Workspace) -> None:
    found = workspace.session("2026-11-01").lock(cell())

    assert (found.previous, found.yanked) == (None, ())
    assert load_locked(workspace.folder.path, found.tag) == found.lock == workspace.folder.fresh(cell(), {})
    assert found.lock.base.os == "debian12"
    assert {wheel.name: wheel.version for wheel in found.lock.wheels}["numpy"] == "1.0"
    assert workspace.folder.check([cell()], sweeping=False).fresh == 1
    assert "not locked yet" in workspace.folder.check([cell("2.6.0")], sweeping=False).stale[0]


def test_devel_has_the_tools_of_the_base_and_the_archives(workspace: Workspace) -> None:
    found = workspace.session("2026-11-01").lock(cell("2.7.1", "devel")).lock

    assert found.tools is not None
    assert found.tools.base == found.base.digest
    assert found.resolution.toolkit is not None
    assert len(found.archives) == len(FACTS.redist.releases[found.resolution.toolkit.release])
    assert workspace.folder.check([cell("2.7.1", "devel")], sweeping=False).stale == ()


def test_a_thin_cell_uses_the_lock_for_all_gpus_and_its_date(workspace: Workspace) -> None:
    thin = cell("2.7.1", "runtime", "9.0")
    with pytest.raises(Stale, match="not locked yet"):
        workspace.session().lock(thin)
    full = workspace.session("2026-11-01").lock(cell()).lock
    found = workspace.session().lock(thin).lock

    assert (found.wheels, found.base, found.as_of) == (full.wheels, full.base, "2026-11-01")
    assert found.device_code is not None
    assert found.device_code.wheels == ("torch", "torchaudio", "torchvision")


def test_thin_locks_follow_their_full_lock_in_one_run(workspace: Workspace) -> None:
    """`lock --all --upgrade` locks the full cell first, then its thin cells from `gpus` in matrix.yaml."""
    workspace.session("2026-11-01").lock(cell())
    thin = [cell("2.7.1", "runtime", gpu) for gpu in ("9.0", "8.0")]
    for each in thin:
        workspace.session().lock(each)
    workspace.session("2026-11-22", ("numpy",)).run((cell(), *thin), sweeping=True)
    tags = ["2.7.1-cuda12.1-cudnn9-runtime" + suffix for suffix in ("", "-sm90", "-sm80")]
    assert [result.tag for result in workspace.observer.results] == tags
    for tag in tags:
        wheels = load_locked(workspace.folder.path, tag).wheels
        assert {wheel.name: wheel.version for wheel in wheels}["numpy"] == "2.0"


def test_a_second_run_keeps_packages_that_are_not_upgraded(workspace: Workspace) -> None:
    first = workspace.session("2026-11-01").lock(cell())
    workspace.server.yanked["numpy-2.0-py3-none-any.whl"] = ""
    second = workspace.session("2026-11-22").lock(cell())
    assert second.previous == second.lock == first.lock

    workspace.server.yanked = {"filelock-1.0-py3-none-any.whl": "data loss"}
    moved = workspace.session("2026-11-22", ("NumPy",)).lock(cell())
    assert {wheel.name: wheel.version for wheel in moved.lock.wheels}["numpy"] == "2.0"
    assert moved.yanked == (("filelock", "1.0", "data loss"),)
    with pytest.raises(ConfigError, match="nothing-of-the-kind: not in the lock"):
        workspace.session(None, ("nothing-of-the-kind",)).lock(cell())


def test_lock_all_continues_after_errors_and_reports_all(workspace: Workspace) -> None:
    cells = (cell("2.6.0"), cell())
    with pytest.raises(Unresolvable, match="1 of 2 cells could not be locked"):
        workspace.session("2026-11-01").run(cells, sweeping=True)
    assert [tag for tag, _ in workspace.observer.failures] == ["2.6.0-cuda12.1-cudnn9-runtime"]
    assert [result.tag for result in workspace.observer.results] == ["2.7.1-cuda12.1-cudnn9-runtime"]

    (workspace.folder.path / "2.7.1-cuda12.1-cudnn9-runtime" / "lock.json").write_text("{}")
    workspace.session("2026-11-01").run((cell(),), sweeping=False)
    assert "ignoring the versions of the present lock" in workspace.observer.lines[-1]


@pytest.mark.parametrize("unreachable", ["TORCHKILN_INDEX_PYTORCH", "UV_DEFAULT_INDEX"])
def test_the_indexes_of_a_cell_are_reachable_before_its_base_is_made(
    workspace: Workspace, tmp_path: Path, unreachable: str
) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("12.1", "11.8"))
    images = tmp_path / "empty"
    workspace.folder = LockFolder(images, read(tmp_path / "matrix.yaml", FACTS), FACTS)
    workspace.environ["TORCHKILN_INDEX_PYTORCH"] = workspace.server.url("pytorch")
    workspace.environ[unreachable] = "http://127.0.0.1:9/simple"

    with pytest.raises(BuildFailed, match="connection refused"):
        workspace.session().lock(replace(cell(), cuda="11.8"))

    assert not images.exists()


def test_another_matrix_makes_a_lock_stale_for_every_caller(workspace: Workspace, tmp_path: Path) -> None:
    workspace.session("2026-11-01").lock(cell())
    (tmp_path / "matrix.yaml").write_text(MATRIX.replace("[numpy, pip]", "[numpy, pip, filelock]"))
    workspace.folder = LockFolder(workspace.folder.path, read(tmp_path / "matrix.yaml", FACTS), FACTS)

    (reason,) = workspace.folder.check([cell()], sweeping=False).stale
    assert reason.endswith("locked with other requirements")
    with pytest.raises(Stale, match="was made from another matrix"):
        workspace.folder.fresh(cell(), {})
    with pytest.raises(Stale, match="which has the wheels of the thin image, was made from another matrix"):
        workspace.session().lock(cell("2.7.1", "runtime", "9.0"))


def test_only_lockable_cells_are_selected(workspace: Workspace) -> None:
    """torch 2.3.1 for CUDA 11.8 is only on PyTorch's own index, for which no URL is set here."""
    elsewhere = Cell(torch="2.3.1", cuda="11.8", flavor="runtime", os="debian12", python="3.11")
    assert lockable(
        workspace.folder,
        (cell(), elsewhere),
        workspace.observer.say,
        environ=workspace.environ,
        sweeping=True,
    ) == (cell(),)
    assert "is only on PyTorch's own index" in workspace.observer.lines[-1]


DEFAULT = "https://index.example/simple/"


def settings(pip: str = "", **environ: str) -> IndexSettings:
    return index_settings(environ, pip_config=pip, default_url=DEFAULT)


def test_pip_variables_precede_the_install_section_and_then_global() -> None:
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


def test_extra_indexes_and_find_links_are_ignored_and_named() -> None:
    """A package of the same name in another place must not get into an image."""
    pip = "global.extra-index-url='https://x.example'\n:env:.find-links='/wheels'"
    found = settings(pip, UV_INDEX="https://y.example")

    assert found.left_out == ("extra-index-url", "find-links", "UV_INDEX")


def test_credentials_are_removed_from_urls_and_not_shown() -> None:
    found = settings(
        "global.index-url='https://me:s%40cret@i.example/simple'",
        TORCHKILN_INDEX_PYTORCH="http://t:k@p.example/w",
    )

    assert found.default_url == "https://i.example/simple"
    assert found.logins == (("https://i.example", "me", "s@cret"), ("http://p.example", "t", "k"))
    assert "cret" not in repr(found)


def test_a_message_shows_scheme_host_and_file_only() -> None:
    assert redact("https://me:pw@h.example:8443/token/a.whl?sig=1#f") == "https://h.example:8443/…/a.whl"
    assert redact_text("at `https://u:p@h.example/x/y/`, see") == "at `https://h.example/…/y`, see"


def test_every_invalid_url_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        settings("global.index-url='file:///srv/simple'", TORCHKILN_INDEX_PYTORCH="nonsense")

    assert caught.value.message.splitlines() == [
        "index-url: not an http(s) URL",
        "TORCHKILN_INDEX_PYTORCH: not an http(s) URL",
    ]


@pytest.mark.parametrize(
    "url", ["https://[x]/simple", "https://i.example:port/simple", "https://:443/simple"]
)
def test_an_address_without_a_valid_host_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^index-url: not an http\(s\) URL$"):
        settings(f"global.index-url='{url}'")


def test_an_index_that_is_not_configured_is_named_by_its_setting() -> None:
    with pytest.raises(Unresolvable) as caught:
        settings().url(Source.PYTORCH)

    assert "TORCHKILN_INDEX_PYTORCH" in caught.value.hint
