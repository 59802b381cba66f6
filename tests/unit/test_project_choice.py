"""Extras and dependency groups of a project, read from pyproject.toml, uv.lock or pylock.toml."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_project_lock_files import PYLOCK, pylock_package, uv_package
from tests.unit.test_project_read import read
from torchkiln.errors import ConfigError, Stale
from torchkiln.projects import pyproject
from torchkiln.projects.choice import NO_CHOICE, Choice, choice_of
from torchkiln.projects.pyproject import Pyproject, requirements_of

PYPROJECT = """\
[project]
name = "My_Trainer"
dependencies = ["idna"]
[project.optional-dependencies]
GPU_x = ["gpu-thing>=1"]
docs = ["docs-thing ; python_version >= '3'"]
all = ["my.trainer[gpu-x]", "My-Trainer[docs] ; sys_platform == 'linux'"]
round = ["my-trainer[trip] ; python_version > '3'", "one"]
trip = ["my-trainer[round]", "two"]
[dependency-groups]
Dev = ["dev-thing", {include-group = "LINT"}]
lint = ["lint-thing"]
both = [{include-group = "dev"}, {include-group = "lint"}, "my-trainer[gpu-x]"]
"""


def refused(folder: Path, files: dict[str, str], choice: Choice) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, files, choice)
    return f"{caught.value.message}\n{caught.value.hint}"


# --- pyproject.toml -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extras", "groups", "expected"),
    [
        ([], [], []),
        (["gpu.X"], [], ["gpu-thing>=1"]),
        ([], ["dev"], ["dev-thing", "lint-thing"]),
        ([], ["both"], ["dev-thing", "lint-thing", "gpu-thing>=1"]),
        (["docs"], ["lint"], ['docs-thing; python_version >= "3"', "lint-thing"]),
        # An extra of the project is not looked up on the index.
        (["all"], [], ["gpu-thing>=1", 'docs-thing; sys_platform == "linux" and python_version >= "3"']),
        # Cycles of extras are allowed, as in pip.
        (["trip"], [], ["one", "two"]),
        (["round"], [], ['two; python_version > "3"', "one"]),
    ],
)
def test_extras_and_groups_of_pyproject(
    tmp_path: Path, extras: list[str], groups: list[str], expected: list[str]
) -> None:
    found = read(tmp_path, {"pyproject.toml": PYPROJECT}, choice_of(extras, groups))

    assert [one.text for one in found.requirements] == ["idna", *expected]
    assert found.choice == choice_of(extras, groups)


def test_the_line_of_each_requirement(tmp_path: Path) -> None:
    found = read(tmp_path, {"pyproject.toml": PYPROJECT}, choice_of(["all"], ["dev"]))

    assert [one.where for one in found.requirements] == [
        f"pyproject.toml:{line}" for line in (3, 5, 6, 11, 12)
    ]


def test_groups_without_a_project_table(tmp_path: Path) -> None:
    """By PEP 735, a folder of scripts may have dependency groups and no project table."""
    text = "[dependency-groups]\ntrain = ['datasets']\n"
    found = read(tmp_path, {"pyproject.toml": text}, choice_of([], ["train"]))

    assert (found.name, [one.text for one in found.requirements]) == ("my-project", ["datasets"])
    assert "no pylock.toml" in refused(tmp_path, {"pyproject.toml": text}, NO_CHOICE)


@pytest.mark.parametrize(
    ("extras", "groups", "reason"),
    [
        (
            ["nope", "gpux"],
            ["dve"],
            "--extra gpux: pyproject.toml has no such extra; it has: all, docs, gpu-x, round, trip\n"
            "--extra nope: pyproject.toml has no such extra; it has: all, docs, gpu-x, round, trip\n"
            "--group dve: pyproject.toml has no such group; it has: both, dev, lint\n"
            "choose an extra or a group that exists, or choose none: --extra ''",
        ),
        (["dev"], [], "--extra dev: "),
        ([], ["docs"], "--group docs: "),
    ],
)
def test_unknown_names_are_listed_with_those_that_exist(
    tmp_path: Path, extras: list[str], groups: list[str], reason: str
) -> None:
    assert reason in refused(tmp_path, {"pyproject.toml": PYPROJECT}, choice_of(extras, groups))


CHAIN = (
    "".join(f'{"a" * n} = [{{include-group = "{"a" * (n + 1)}"}}]\n' for n in range(1, 99))
    + f"{'a' * 99} = []"
)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (
            'a = [{include-group = "b"}]\nb = [{include-group = "A"}]',
            "a: a cycle of include-group: a > b > a",
        ),
        ('a = [{include-group = "b"}]\nb = [{include-group = "b"}]', "b: a cycle of include-group: b > b"),
        ('a = [{include-group = "nope"}]\nb = []', "'nope': pyproject.toml has no such group; it has: a, b"),
        (
            'a = [{include-group = "b", more = 1}]\nb = []',
            "not a valid requirement or {include-group = NAME}",
        ),
        ("a = [1]", "a: 1: not a valid requirement or {include-group = NAME}"),
        ('a = "x"', "the value has the wrong type: it must be a list"),
        ('a = []\nA = ["x"]', "[dependency-groups]: 'a' and 'A' are the same name"),
        ('a = []\n"b c" = []', "[dependency-groups]: 'b c' is not a valid name"),
        ('a = ["x[nope]"]', "x[nope]: pyproject.toml has no extra nope; it has: gpu"),
        ('a = ["y ="]', "pyproject.toml:8: y =: invalid requirement"),
        ('a = ["y @ hg+https://h.invalid/y"]', "only git+https:// is supported, not hg+"),
        (CHAIN, "more than 50 levels"),
        ("a = [" + "'y'," * 5001 + "]", "5000 requirements"),
    ],
)
def test_a_wrong_group(tmp_path: Path, table: str, reason: str) -> None:
    text = '[project]\nname = "x"\ndependencies = []\n'
    text += f"[project.optional-dependencies]\ngpu = []\n# groups\n[dependency-groups]\n{table}\n"

    assert reason in refused(tmp_path, {"pyproject.toml": text}, choice_of([], ["a"]))
    assert read(tmp_path, {"pyproject.toml": text}, NO_CHOICE).requirements == ()


def test_extras_that_a_build_backend_computes(tmp_path: Path) -> None:
    text = '[project]\nname = "x"\ndependencies = []\ndynamic = ["optional-dependencies"]\n'
    found = refused(tmp_path, {"pyproject.toml": text}, choice_of(["gpu"], []))

    assert "--extra gpu: pyproject.toml has no such extra; it has none" in found
    assert "dynamic extras, which a build backend computes, are not read" in found


def test_many_paths_to_one_extra_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level requires the next level twice, with different markers. That gives 2^40 paths."""
    extras = {
        f"e{level}": [f"x[e{level + 1}]; os_name == '{name}{level}'" for name in "ab"] for level in range(40)
    }
    file = Pyproject(document={"project": {"name": "x", "optional-dependencies": {**extras, "e40": ["y"]}}})
    monkeypatch.setattr(pyproject, "MOST", 200)
    with pytest.raises(ConfigError, match="200 requirements"):
        list(requirements_of(file, choice_of(["e0"], [])))


@given(
    st.dictionaries(
        st.sampled_from("ab"),
        st.lists(
            st.sampled_from(
                ["x[a]", "x[b]; os_name == 'p'", "y", "y=", 1, *({"include-group": n} for n in "abc")]
            ),
            max_size=4,
        )
        | st.integers(),
    ),
    st.sampled_from(["extra", "group"]),
)
def test_any_table_is_read_or_refused(table: dict[str, Any], kind: str) -> None:
    file = Pyproject(
        document={"project": {"name": "x", "optional-dependencies": table}, "dependency-groups": table}
    )
    with suppress(ConfigError):
        found = requirements_of(file, choice_of(["a"] * (kind == "extra"), ["a"] * (kind == "group")))
        assert all(text.startswith("y") for text, _ in found)


# --- the other files ------------------------------------------------------------------------------

UV_LOCK = (
    'version = 1\nrevision = 3\nrequires-python = ">=3.10"\n'
    + "".join(uv_package(name) for name in ("dev-thing", "docs-thing", "gpu-thing", "idna", "lint-thing"))
    + uv_package(
        "my-trainer",
        'source = { virtual = "." }',
        'dependencies = [{ name = "idna" }]',
        "[package.optional-dependencies]",
        'docs = [{ name = "docs-thing" }]',
        'gpu-x = [{ name = "gpu-thing" }]',
        "[package.dev-dependencies]",
        'dev = [{ name = "dev-thing" }, { name = "lint-thing" }]',
        'lint = [{ name = "lint-thing" }]',
        "[package.metadata]",
        "requires-dist = [",
        "    { name = \"docs-thing\", marker = \"python_full_version >= '3' and extra == 'docs'\" },",
        '    { name = "gpu-thing", marker = "extra == \'gpu-x\'", specifier = ">=1" },',
        '    { name = "idna" },',
        "]",
        'provides-extras = ["gpu-x", "docs"]',
        "[package.metadata.requires-dev]",
        'dev = [{ name = "dev-thing" }, { name = "lint-thing" }]',
        'lint = [{ name = "lint-thing" }]',
    )
)


@pytest.mark.parametrize(
    ("extras", "groups", "expected"),
    [
        ([], [], []),
        (["GPU_X"], [], ["gpu-thing==1.0"]),
        ([], ["Dev"], ["dev-thing==1.0", "lint-thing==1.0"]),
        (["docs"], ["lint"], ["docs-thing==1.0", "lint-thing==1.0"]),
    ],
)
def test_extras_and_groups_of_uv_lock(
    tmp_path: Path, extras: list[str], groups: list[str], expected: list[str]
) -> None:
    """The real uv reads it. Packages that pyproject.toml names are marked."""
    files = {"pyproject.toml": PYPROJECT, "uv.lock": UV_LOCK}
    found = read(tmp_path, files, choice_of(extras, groups))

    assert [one.text for one in found.requirements] == sorted([*expected, "idna==1.0"])
    assert all(one.by_name for one in found.requirements)
    assert found.choice == choice_of(extras, groups)


def test_a_uv_lock_of_other_groups_is_stale(tmp_path: Path) -> None:
    changed = PYPROJECT.replace('["lint-thing"]', '["lint-thing>=2"]').replace(
        '"gpu-thing>=1"', '"gpu-thing>=2"'
    )
    files = {"pyproject.toml": changed, "uv.lock": UV_LOCK}
    read(tmp_path, files, NO_CHOICE)
    for choice, name in ((choice_of([], ["dev"]), "lint-thing"), (choice_of(["gpu-x"], []), "gpu-thing")):
        with pytest.raises(Stale, match=rf"other dependencies than pyproject\.toml has: {name}"):
            read(tmp_path, files, choice)


def test_names_and_conflicts_that_only_uv_knows(tmp_path: Path) -> None:
    """For example, pyproject.toml has a new group that uv.lock does not have yet."""
    more = {"pyproject.toml": PYPROJECT + "new = []\n", "uv.lock": UV_LOCK}
    found = refused(tmp_path, more, choice_of([], ["new"]))
    assert "uv.lock: Group `new` is not defined" in found
    assert "choose other extras and groups; or, if pyproject.toml has changed, run: uv lock" in found
    sides = ('extra = "docs"', 'group = "lint"')
    pair = ", ".join(f'{{ package = "my-trainer", {side} }}' for side in sides)
    lock = UV_LOCK.replace("revision = 3\n", f"revision = 3\nconflicts = [[{pair}]]\n", 1)
    found = refused(tmp_path, {"pyproject.toml": PYPROJECT, "uv.lock": lock}, choice_of(["docs"], ["lint"]))
    assert "uv.lock: Extra `docs` and group `lint` are incompatible" in found


def test_extras_and_groups_of_pylock(tmp_path: Path) -> None:
    """`--group` adds to the default groups, as in uv."""
    wheel = pylock_package("x").splitlines()[3].replace("/x-", "/NAME-")
    marked = {
        "gpu-thing": "'GPU.x' in extras",
        "dev-thing": "'dev' in dependency_groups",
        "own": "'main' in dependency_groups",
        "neither": "'gpu-x' not in extras and 'dev' not in dependency_groups",
    }
    head = 'extras = ["gpu-x"]\ndependency-groups = ["dev"]\ndefault-groups = ["main"]\nrequires'
    lock = PYLOCK.replace("requires", head, 1) + "".join(
        pylock_package(
            name, 'version = "1.0"', f'marker = "{marker}"', wheel.replace("NAME", name.replace("-", "_"))
        )
        for name, marker in marked.items()
    )
    files = {"pyproject.toml": PYPROJECT, "pylock.toml": lock}

    def names(*choice: list[str]) -> list[str]:
        found = read(tmp_path, files, choice_of(*choice))
        assert found.choice == choice_of(*choice)
        return [one.name for one in found.requirements]

    assert names([], []) == ["own", "neither"]
    assert names(["gpu_X"], []) == ["gpu-thing", "own"]
    assert names([], ["DEV"]) == ["dev-thing", "own"]
    assert names(["gpu-x"], ["dev"]) == ["gpu-thing", "dev-thing", "own"]
    named = read(tmp_path, files, choice_of(["gpu-x"], [])).requirements
    assert [one.by_name for one in named] == [True, False]
    assert "--group lint: pylock.toml has no such group; it has: dev, main" in refused(
        tmp_path, files, choice_of([], ["lint"])
    )
    (tmp_path / "my project/pyproject.toml").unlink()
    files.pop("pyproject.toml")
    assert names(["gpu-x"], []) == ["gpu-thing", "own"]


def test_requirements_txt_has_neither(tmp_path: Path) -> None:
    found = refused(tmp_path, {"requirements.txt": "idna"}, choice_of(["a"], ["b"]))

    assert "--extra a --group b: requirements.txt has no extras or groups" in found
    assert "[project] dependencies" in found


def test_names_are_normalized_and_checked() -> None:
    assert choice_of(["B_b", "a", "b.-B"], ["X"]) == Choice(extras=("a", "b-b"), groups=("x",))
    assert choice_of([""], []) == NO_CHOICE
    with pytest.raises(ConfigError) as caught:
        choice_of(["a b", "ok", "-x"], ["./p:dev", "x" * 300])
    assert [line.partition("'")[0] for line in caught.value.message.splitlines()] == [
        *("--extra ", "--extra ", "--group ", "--group ")
    ]
