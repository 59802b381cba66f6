"""Files in the folders around the resolver's folder have no effect, and no code of them is executed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from tests.servers.index_server import IndexServer
from torchkiln.index import uv
from torchkiln.index.package_index import open_index
from torchkiln.model.index import IndexRequest, KnownWheel
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT

PROJECT = """\
[project]
name = "planted"
version = "1"
requires-python = ">=3.8"
dependencies = ["evil"]
[tool.uv]
constraint-dependencies = ["numpyx<2"]
override-dependencies = ["numpyx==1.0"]
[tool.uv.workspace]
members = ["**"]
[tool.uv.sources]
numpyx = { index = "planted" }
[[tool.uv.index]]
name = "planted"
url = "http://127.0.0.1:9/simple"
default = true
"""
SETTINGS = """\
constraint-dependencies = ["numpyx<2"]
override-dependencies = ["numpyx==1.0"]
resolution = "lowest"
no-index = true
"""
REQUEST = IndexRequest(
    requirements=("torchx", "numpyx"),
    constraints=(),
    python="3.11",
    glibc=(2, 36),
    as_of="2026-09-01",
    keep=(),
    bound=("torchx",),
    known=(
        KnownWheel(
            name="givenx",
            version="1.0",
            filename="givenx-1.0-py3-none-any.whl",
            sha256="0" * 64,
            requires=("numpyx",),
        ),
    ),
)
SOUND = ["numpyx 2.0 default-index", "torchx 1.0 pytorch", "givenx 1.0 pytorch"]


def text(name: str, content: str) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    return plant


def environment_with_a_python(name: str) -> Callable[[Path], None]:
    """A virtual environment whose Python creates the file RUN when it is executed."""

    def plant(folder: Path) -> None:
        program = folder / name / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\ntouch {folder / "RUN"}\nexec {sys.executable} "$@"\n')
        program.chmod(0o755)
        for other in ("python3", "python3.11"):
            (program.parent / other).symlink_to("python")
        (folder / name / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\nversion = 3.11.2\n")

    return plant


FILES = {
    "pyproject.toml": text("pyproject.toml", PROJECT),
    "uv.toml": text("uv.toml", SETTINGS),
    ".python-version": text(".python-version", "3.13\n"),
    ".python-versions": text(".python-versions", "3.13\n3.12\n"),
    ".venv": environment_with_a_python(".venv"),
    "uv.lock": text("uv.lock", "version = 1\nrevision = 3\n[options]\nresolution-mode = 'lowest'\n"),
    "requirements.txt": text("requirements.txt", "evil\nnumpyx==1.0\n"),
    "constraints.txt": text("constraints.txt", "numpyx<2\n"),
    "pins.txt": text("pins.txt", "numpyx==1.0\n"),
    "pylock.toml": text("pylock.toml", "lock-version = '1.0'\n"),
    "setup.py": text("setup.py", "open('RUN', 'w')\n"),
    "setup.cfg": text("setup.cfg", "[metadata]\nname = planted\n[options]\ninstall_requires = evil\n"),
    "pip.conf": text("pip.conf", "[global]\nconstraint = numpyx<2\n"),
    ".env": text(".env", "UV_RESOLUTION=lowest\n"),
    "sitecustomize.py": text("sitecustomize.py", "import os; os.mknod(os.path.dirname(__file__) + '/RUN')\n"),
    ".config/uv/uv.toml": text(".config/uv/uv.toml", SETTINGS),
    "uv/uv.toml": text("uv/uv.toml", SETTINGS),
    "python3.11 on PATH": environment_with_a_python("environment"),
    "pip.py": text("pip.py", "import os; os.mknod(os.path.dirname(__file__) + '/RUN')\n"),
}
PLACES = ("tmp", "tmp/home", "tmp/home/cache", "tmp/home/cache/tmp")


@pytest.fixture
def server() -> Iterator[IndexServer]:
    with IndexServer() as server:
        for index, name, version in (
            ("d", "numpyx", "1.0"),
            ("d", "numpyx", "2.0"),
            ("d", "evil", "1.0"),
            ("d", "torchx", "9.0"),
        ):
            server.add(index, name, version)
        server.add("p", "torchx", "1.0", requires=["numpyx"])
        yield server


def locked(server: IndexServer, cache: Path, **more: str) -> list[str]:
    """The output of `lock` in a new process with the environment variables *more*."""
    indexes = {"UV_DEFAULT_INDEX": server.url("d"), "TORCHKILN_INDEX_PYTORCH": server.url("p")}
    environ = {**os.environ, **indexes, **more}
    found = open_index(environ, Store(cache)).wheels(REQUEST)
    return [f"{wheel.name} {wheel.version} {wheel.index.value}" for wheel in found]


@pytest.mark.parametrize("left_out", ["uv.toml", "pyproject.toml"])
def test_a_planted_file_changes_nothing(
    left_out: str, server: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files exist at once: in each parent of the resolver's folder, the home and the current folder.

    One of uv.toml and pyproject.toml is omitted, because uv ignores a pyproject.toml beside a uv.toml.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "tmp" / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "tmp" / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "tmp"))
    for place in PLACES:
        for file in FILES.keys() - {left_out}:
            FILES[file](tmp_path / place)
    monkeypatch.chdir(tmp_path / "tmp" / "home")

    assert locked(server, tmp_path / "tmp" / "home" / "cache") == SOUND
    assert list(tmp_path.rglob("RUN")) == []


ENVIRONMENT = {
    "UV_CONSTRAINT": "{0}/constraints.txt",
    "UV_OVERRIDE": "{0}/constraints.txt",
    "UV_EXCLUDE": "{0}/constraints.txt",
    "UV_BUILD_CONSTRAINT": "{0}/constraints.txt",
    "UV_RESOLUTION": "lowest",
    "UV_PRERELEASE": "allow",
    "UV_EXCLUDE_NEWER": "2001-01-01",
    "UV_INDEX": "http://127.0.0.1:9/simple",
    "UV_EXTRA_INDEX_URL": "http://127.0.0.1:9/simple",
    "UV_INDEX_STRATEGY": "unsafe-best-match",
    "UV_FIND_LINKS": "{0}",
    "UV_NO_INDEX": "1",
    "UV_OFFLINE": "1",
    "UV_CONFIG_FILE": "{0}/uv.toml",
    "UV_NO_CONFIG": "1",
    "UV_NO_SOURCES": "1",
    "UV_TORCH_BACKEND": "cpu",
    "UV_PROJECT": "{0}",
    "UV_WORKING_DIR": "{0}",
    "UV_ENV_FILE": "{0}/.env",
    "UV_PYTHON": "3.13",
    "UV_SYSTEM_PYTHON": "1",
    "UV_MANAGED_PYTHON": "1",
    "UV_CACHE_DIR": "{0}",
    "UV_PYTHON_INSTALL_DIR": "{0}",
    "UV_FORK_STRATEGY": "fewest",
    "UV_INDEX_PYTORCH_USERNAME": "x",
    "UV_INSECURE_HOST": "*",
    "PIP_CONSTRAINT": "{0}/constraints.txt",
    "PIP_REQUIREMENT": "{0}/requirements.txt",
    "PIP_PRE": "1",
    "VIRTUAL_ENV": "{0}/.venv",
    "CONDA_PREFIX": "{0}/.venv",
    "PYTHONPATH": "{0}",
    "PYTHONSTARTUP": "{0}/setup.py",
    "PYTHONHOME": "/nowhere",
    "PATH": "{0}/.venv/bin:/usr/bin:/bin",
    "LD_PRELOAD": "{0}/nothing.so",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
}


# Variables that would make other variables ineffective. They are tested separately.
QUIET = ("UV_NO_CONFIG", "UV_NO_SOURCES", "UV_SYSTEM_PYTHON", "UV_MANAGED_PYTHON", "UV_PYTHON", "VIRTUAL_ENV")


@pytest.mark.parametrize("variables", [ENVIRONMENT.keys() - set(QUIET), QUIET], ids=["most", "quiet"])
def test_a_variable_of_the_environment_changes_nothing(
    variables: Collection[str], server: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable of uv or pip has an effect; only torchkiln's own session would use a proxy."""
    for file in ("uv.toml", "constraints.txt", "requirements.txt", ".env", ".venv", "sitecustomize.py"):
        FILES[file](tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    values = {name: ENVIRONMENT[name].format(tmp_path) for name in variables}
    for name, value in values.items():
        monkeypatch.setenv(name, value)

    assert locked(server, tmp_path / "cache", **values) == SOUND
    assert not (tmp_path / "RUN").exists()


def test_the_folder_is_private_and_is_deleted(
    server: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver's folder is in the cache, has mode 0700 with any umask, and is deleted at the end."""
    folders: list[tuple[Path, int]] = []
    watch = uv.watch

    def looked(*arguments: object) -> object:
        [folder] = (tmp_path / "cache" / "tmp").glob("*-resolver")
        folders.append((folder, stat.S_IMODE(folder.stat().st_mode)))
        return watch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(uv, "watch", looked)
    before = os.umask(0)
    try:
        assert locked(server, tmp_path / "cache") == SOUND
    finally:
        os.umask(before)

    assert [mode for _, mode in folders] == [0o700]
    assert not any(folder.exists() for folder, _ in folders)


def test_leftovers_of_a_killed_lock_are_deleted(server: IndexServer, tmp_path: Path) -> None:
    """The next `lock` with the same cache deletes them."""
    code = (
        "import os, signal; from pathlib import Path; from torchkiln.index import uv;"
        "from torchkiln.store.store import Store; from tests.integration import test_resolver_alone as t;"
        f"store = Store(Path({str(tmp_path / 'cache')!r}))\n"
        "with uv.private_folder(store): os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    left = list((tmp_path / "cache" / "tmp").glob("*-resolver"))
    assert (ran.returncode, len(left)) == (-9, 1)

    assert locked(server, tmp_path / "cache") == SOUND
    assert not left[0].exists()


def test_a_resolver_over_its_limits_is_stopped(
    server: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory and time are checked while the resolver runs. Its folder is deleted as usual."""
    from torchkiln.errors import BuildFailed

    monkeypatch.setattr(uv, "MEMORY", 1)
    with pytest.raises(BuildFailed, match="the resolver was stopped: it used more than 0 MiB of memory"):
        locked(server, tmp_path / "cache")
    assert list((tmp_path / "cache" / "tmp").glob("*-resolver")) == []
    monkeypatch.setattr(uv, "MEMORY", 1 << 40)
    monkeypatch.setattr(uv, "_POLL", 0.0)
    monkeypatch.setattr(uv, "SECONDS", -time.monotonic())
    with pytest.raises(BuildFailed, match="it used more than"):
        locked(server, tmp_path / "cache")
