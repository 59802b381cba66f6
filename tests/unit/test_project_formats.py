"""Files that are not read: their names, and the command that exports them; encodings of requirements."""

from __future__ import annotations

import codecs
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.utils.encoding import auto_decode

from torchkiln.errors import ConfigError
from torchkiln.projects.asked import environment_of
from torchkiln.projects.exports import unused_locks
from torchkiln.projects.files import text_for_pip
from torchkiln.projects.read import read_project
from torchkiln.projects.requirement import read_requirements
from torchkiln.store.store import Store

POETRY = '[tool.poetry]\nname = "x"\n[tool.poetry.dependencies]\npython = "^3.11"\ntimm = "^1.0"\n'
NAMED = '[project]\nname = "x"\n'
DYNAMIC = f'{NAMED}dynamic = [\n  "version",\n  "dependencies",\n]\n'
SETUP_CFG = "[options]\ninstall_requires =\n  timm\n"


def refused(folder: Path, files: dict[str, str]) -> ConfigError:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_project(folder, environment_of("3.11.2"), Store(folder / "cache"))
    return caught.value


@pytest.mark.parametrize(
    ("files", "found", "command"),
    [
        (["poetry.lock"], "poetry.lock, pyproject.toml", "poetry export -f requirements.txt --output req"),
        ([], "pyproject.toml", "poetry export -f requirements.txt --output requirements.txt"),
        (["Pipfile", "Pipfile.lock"], "Pipfile.lock, Pipfile", "run: pipenv requirements --exclude-index > "),
        (["Pipfile"], "Pipfile", "run: pipenv lock && pipenv requirements --exclude-index > requirements"),
        (["pdm.lock"], "pdm.lock", "run: pdm export --output requirements.txt"),
        (["environment.yml"], "environment.yml", "python -m pip list --format=freeze > requirements.txt"),
        (["environment-gpu.yaml", "setup.py"], "environment-gpu.yaml, setup.py", "python -m pip list --form"),
        (["conda-lock.yml"], "conda-lock.yml", "in the environment made from it: python -m pip list"),
        (["setup.py"], "setup.py", "run: uv pip compile setup.py --no-deps --no-emit-package torch"),
        (["requirements/base.txt"], "requirements/base.txt", "run: echo -r requirements/base.txt > require"),
        (["requirements gpu.txt"], "requirements gpu.txt", "run: echo -r 'requirements gpu.txt' > "),
    ],
)
def test_a_file_that_is_not_read_is_named_with_its_command(
    tmp_path: Path, files: list[str], found: str, command: str
) -> None:
    error = refused(
        tmp_path, dict.fromkeys(files, "") | ({"pyproject.toml": POETRY} if "pyp" in found else {})
    )
    assert error.message.endswith(f"or requirements.txt; it has {found}, which torchkiln does not read")
    assert command in error.hint
    assert "\n" not in error.hint


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (DYNAMIC, "run: uv pip compile pyproject.toml"),
        (NAMED + POETRY.replace("python =", "cuda ="), "poetry export"),
        (f'{NAMED}dynamic = ["dependencies"]\n{POETRY}', "poetry export"),
        ("[tool.black]\nline-length = 99\n", "write the packages that the project needs"),
    ],
)
def test_a_pyproject_that_leaves_its_dependencies_to_a_tool(tmp_path: Path, text: str, command: str) -> None:
    assert command in refused(tmp_path, {"pyproject.toml": text}).hint


def test_the_settings_of_a_linter_are_no_requirements(tmp_path: Path) -> None:
    error = refused(tmp_path, {"setup.cfg": "[flake8]\nmax-line-length = 99\n"})
    assert error.message.endswith("or requirements.txt")
    assert "uv pip compile setup.cfg" in refused(tmp_path, {"setup.cfg": SETUP_CFG}).hint


@pytest.mark.parametrize(
    "more", ["", '[tool.poetry]\npackages = []\n[tool.poetry.dependencies]\npython = "^3.11"\n', "tool = 1\n"]
)
def test_a_project_without_dependencies_needs_nothing(tmp_path: Path, more: str) -> None:
    (tmp_path / "pyproject.toml").write_text(more + NAMED if more.startswith("tool =") else NAMED + more)
    assert read_project(tmp_path, environment_of("3.11.2"), Store(tmp_path / "cache")).requirements == ()


def test_a_lock_whose_versions_are_not_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "poetry.lock").touch()
    (sentence,) = unused_locks(tmp_path, "pyproject.toml")
    assert sentence.startswith(
        "the versions in poetry.lock are not used, those of pyproject.toml are; to use"
    )
    assert sentence.endswith("run: poetry export -f pylock.toml --output pylock.toml")
    assert [*unused_locks(tmp_path, "pylock.toml")] == []


LINES = "# für das Modell\ntimm==1.0.9 # große\r\neinops>=0.8\n"


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + LINES.encode(),
        codecs.BOM_UTF16_LE + LINES.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + LINES.encode("utf-16-be"),
        codecs.BOM_UTF32_LE + LINES.encode("utf-32-le"),
        codecs.BOM_UTF32_BE + LINES.encode("utf-32-be"),
        f"# -*- coding: latin-1 -*-\n{LINES}".encode("latin-1"),
        f"#\n# vim: set fileencoding=cp1252 :\n{LINES}".encode("cp1252"),
    ],
)
def test_requirements_in_any_encoding_that_pip_finds(tmp_path: Path, data: bytes) -> None:
    """Also in an included file, which has its own encoding."""
    (tmp_path / "more.txt").write_bytes(data)
    (tmp_path / "requirements.txt").write_bytes("-r more.txt\n".encode("utf-16"))
    found = read_requirements(tmp_path).requirements
    assert [one.text for one in found] == ["timm==1.0.9", "einops>=0.8"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (LINES.encode("latin-1"), "line 1: not UTF-8 text"),
        (codecs.BOM_UTF16_LE + b"a", "not utf-16-le text: save the file as UTF-8"),
        (codecs.BOM_UTF16_BE + "<<<<<<< HEAD\na\n".encode("utf-16-be"), "line 1: unresolved merge conflict"),
        (b"# coding: punycode\na", "the encoding punycode is not supported: save the file as UTF-8"),
        (b"# coding: hex\n61", "the encoding hex is not supported"),
        (b"# coding: klingon\na", "the encoding klingon is not supported"),
        (b"# coding: ascii\n\xff", "not ascii text"),
    ],
)
def test_a_file_that_is_not_text_in_its_encoding(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "requirements.txt").write_bytes(data)
    with pytest.raises(ConfigError, match=f"requirements.txt: {why}"):
        read_requirements(tmp_path)


@given(st.sampled_from(["", "# coding: latin-1\n", "\n#coding=cp1251 x\n"]), st.binary(max_size=40))
def test_texts_are_those_of_pip(head: str, data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert text_for_pip(head.encode() + data) == auto_decode(head.encode() + data)


@pytest.mark.parametrize(
    ("line", "machine"),
    [
        ("git+https://${GH_TOKEN}@git.example.org/me/own.git@v2#egg=own", "git.example.org"),
        ("own @ git+https://${USER}:${TOKEN}@git.example.org:8443/me/own", "git.example.org"),
        ("https://x:${PASSWORD}@files.example.org/own-1-py3-none-any.whl", "files.example.org"),
        ("own @ git+https://${FORGE}/me/own.git", "HOST"),
    ],
)
def test_a_login_in_a_url_belongs_into_netrc(tmp_path: Path, line: str, machine: str) -> None:
    error = refused(tmp_path, {"requirements.txt": f"{line}\n"})
    assert "environment variables are not expanded" in error.message
    assert f"write it into ~/.netrc: machine {machine} login USER password TOKEN" in error.hint
    assert line[line.index("${") : line.index("}") + 1] in error.hint
