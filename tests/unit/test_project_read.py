"""A project's requirements are read from requirements.txt, pyproject.toml, uv.lock or pylock.toml."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.req.req_file import preprocess

from torchkiln.errors import ConfigError
from torchkiln.projects.asked import ProjectNeeds, applies, environment_of
from torchkiln.projects.choice import NO_CHOICE, Choice
from torchkiln.projects.read import read_project
from torchkiln.projects.requirement import logical_lines, read_requirements
from torchkiln.store.store import Store

SHA = "a" * 64


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def read(folder: Path, files: dict[str, str], choice: Choice = NO_CHOICE) -> ProjectNeeds:
    project = write(folder / "my project", files)
    return read_project(project, environment_of("3.11.2"), Store(folder / "cache"), choice)


def refused(folder: Path, files: dict[str, str]) -> list[str]:
    """The lines of the error message for a project with *files*."""
    with pytest.raises(ConfigError) as caught:
        read(folder, files)
    return caught.value.message.splitlines()


def test_a_requirements_file_with_everything_that_pip_knows_and_a_lock_can_hold(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "requirements.txt": "\ufeff# comment\n"
            "Data_Sets[audio] >= 4 ,<6   # more\n"
            "tqdm ; python_version < '3.0'\n\n"
            f"rich==14.0 \\\n    --hash=sha256:{SHA} \\\n    --hash sha512:{'b' * 128}\n"
            "-r more/base.txt\n--prefer-binary\n-cbounds.txt\n",
            "more/base.txt": "peft\n-r ../last.txt\n",
            "last.txt": "a==1",
            "bounds.txt": "numpy<3\n",
        },
    )
    assert found.name == "my-project"
    assert found.source == "requirements.txt"
    assert [(one.text, one.where) for one in found.requirements] == [
        ("Data_Sets[audio]<6,>=4", "requirements.txt:2"),
        ('tqdm; python_version < "3.0"', "requirements.txt:3"),
        ("rich==14.0", "requirements.txt:5"),
        ("peft", "more/base.txt:1"),
        ("a==1", "last.txt:1"),
    ]
    assert found.requirements[2].hashes == (SHA,)
    assert [(one.text, one.where) for one in found.constraints] == [("numpy<3", "bounds.txt:1")]
    assert [applies(one.requirement, environment_of("3.11")) for one in found.requirements[:2]] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-e ..", "editable packages cannot be locked"),
        ("--editable=./x", "editable packages cannot be locked"),
        ("./local/thing", "a local file must be a wheel"),
        ("../x-1-py3-none-any.whl", "not a file in the project's folder"),
        ("git+https://user:secret@host.invalid/x.git@1", "name the package: NAME @ git+https://…"),
        ("git+https://user:secret@host.invalid/x.git@1#egg=x", "it contains credentials"),
        ("x @ git+ssh://git@host.invalid/x.git@1", "must begin with https://"),
        ("https://host.invalid/x-1.tar.gz", "source code at a direct URL cannot be locked"),
        ("x @ file:///tmp/x.whl", "not a valid wheel filename"),
        ("--index-url https://user:secret@host.invalid/simple", "a project cannot choose the index"),
        ("-i https://host.invalid/simple", "a project cannot choose the index"),
        ("-f wheels", "this option is not supported"),
        ("--pre", "this option is not supported"),
        ("--no-binary :all:", "only wheels can be locked"),
        ("--frobnicate", "this option is not supported"),
        ("a==1 --config-settings=x=y", "only --hash is supported"),
        (f"a==1 --hash=md5:{SHA}", "only sha256:<64 hex digits> is supported"),
        ("a==${VERSION}", "environment variables are not expanded"),
        ("a=1", "invalid requirement"),
        ("-r https://host.invalid/r.txt", "not a file in the project's folder"),
        ("-r ../outside.txt", "not a file in the project's folder"),
        ("-r requirements.txt", "the file recursively includes itself"),
        ("-r missing.txt", "No such file or directory"),
        ("-r link.txt", "not a file in the project's folder"),
    ],
)
def test_each_line_that_cannot_be_locked_is_named(tmp_path: Path, line: str, reason: str) -> None:
    """One message has all such lines, with line number and hint, and without passwords."""
    (tmp_path / "outside.txt").write_text("secret contents")
    (tmp_path / "my project").mkdir()
    (tmp_path / "my project" / "link.txt").symlink_to("../outside.txt")

    found = refused(tmp_path, {"requirements.txt": f"fine\n{line}\nb=2\n"})

    assert len(found) == 2
    assert found[0].startswith("requirements.txt:2: ")
    assert reason in found[0]
    assert found[1].startswith("requirements.txt:3: b=2: invalid requirement")
    assert "secret" not in "".join(found)


def test_files_are_bounded(tmp_path: Path) -> None:
    chain = {f"{number}.txt": f"-r {number + 1}.txt\n" for number in range(20)}
    assert "10 levels" in refused(tmp_path, {"requirements.txt": "-r 0.txt\n", **chain})[0]
    many = "".join(f"p{number}\n" for number in range(5001))
    assert refused(tmp_path, {"requirements.txt": many}) == ["more than 5000 requirements"]
    assert "longer than" in refused(tmp_path, {"requirements.txt": "#" * (9 << 20)})[0]
    assert "longer than 4000" in refused(tmp_path, {"requirements.txt": "a.whl[" * 100_000})[0]
    assert read(tmp_path, {"requirements.txt": "a" + " " * 1_000_000 + "\n"}).requirements[0].text == "a"
    (tmp_path / "my project" / "requirements.txt").unlink()
    os.mkfifo(tmp_path / "my project" / "requirements.txt")
    assert "is a pipe, not a file" in refused(tmp_path, {})[0]


@given(st.text(alphabet="ab=1 \t#\\\n\r\x0b;-$", max_size=40))
def test_lines_are_joined_as_pip_joins_them(text: str) -> None:
    assert list(logical_lines(text.splitlines())) == list(preprocess(text))


@given(
    st.lists(
        st.sampled_from(
            [
                "-r ",
                "-c",
                "--hash=",
                f"sha256:{SHA}",
                "a",
                "==",
                "1",
                "[x]",
                ";",
                "@",
                "git+",
                "https://",
                "\\",
                "\n",
            ]
        )
        | st.text(max_size=3),
        max_size=12,
    )
)
def test_any_requirements_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "requirements.txt").write_bytes("".join(parts).encode("utf-8", "surrogatepass"))
    try:
        found = read_requirements(folder)
    except ConfigError:
        return
    for one in (*found.requirements, *found.constraints):
        assert one.requirement.url is None
        assert one.text.isprintable()


PYPROJECT = """\
[project]
name = "My_Trainer"
requires-python = ">=3.10"
dependencies = [
    "idna",
    "rich>=14 ; sys_platform == 'linux'",
]
"""


def test_pyproject(tmp_path: Path) -> None:
    found = read(tmp_path, {"pyproject.toml": PYPROJECT, "requirements.txt": "other"})

    assert (found.name, found.source, found.requires_python) == ("my-trainer", "pyproject.toml", ">=3.10")
    assert [(one.text, one.where) for one in found.requirements] == [
        ("idna", "pyproject.toml:5"),
        ('rich>=14; sys_platform == "linux"', "pyproject.toml:6"),
    ]


def test_a_pyproject_without_dependencies_leaves_them_to_requirements_txt(tmp_path: Path) -> None:
    """It has only settings of tools, or its dependencies are dynamic."""
    text = '[project]\nname = "x"\nrequires-python = ">=3.11"\ndynamic = ["dependencies"]\n'
    found = read(tmp_path / "a", {"pyproject.toml": text, "requirements.txt": "idna"})
    assert (found.name, found.source, found.requires_python) == ("x", "requirements.txt", ">=3.11")
    found = read(tmp_path / "b", {"pyproject.toml": "[tool.x]\n", "requirements.txt": "idna"})
    assert (found.name, found.source) == ("my-project", "requirements.txt")
    assert "no pylock.toml" in refused(tmp_path / "c", {"pyproject.toml": text})[0]
    assert "no pylock.toml" in refused(tmp_path / "d", {"README": ""})[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[project\n", "pyproject.toml: not valid TOML"),
        ("project = 1\n", "[project] must be a table"),
        ('[project]\nname = "x"\ndependencies = "idna"\n', "dependencies: the value has the wrong type"),
        ('[project]\nname = "x"\ndependencies = [1]\n', "dependencies: the value has the wrong type"),
        ('[project]\nname = "..."\ndependencies = []\n', "cannot be the name of an image"),
        ('[project]\nname = "x"\ndependencies = ["y @ https://h.invalid/y.whl"]\n', "pyproject.toml:3: y @ "),
        ('[project]\nname = "x"\nrequires-python = "three"\ndependencies = []\n', "not a version specifier"),
        (f"x = {'[' * 10_000}", "nested too deep: more than 16 levels"),
    ],
)
def test_a_wrong_pyproject(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refused(tmp_path, {"pyproject.toml": text})[0]


@given(st.binary(max_size=60) | st.text(alphabet='[]{}="\n#ab1.', max_size=60).map(str.encode))
def test_any_toml_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    for name in ("pyproject.toml", "pylock.toml"):
        folder = tmp_path_factory.mktemp("toml")
        (folder / name).write_bytes(b'[project]\nname = "x"\ndependencies = []\n' * (name[2] == "p") + data)
        with suppress(ConfigError):
            read_project(folder, environment_of("3.11.2"), Store(folder / "cache"))
