"""A project's packages are read from uv.lock, which the real uv exports, or from pylock.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_project_read import PYPROJECT, SHA, read, refused
from torchkiln.errors import Stale


def uv_package(name: str, *lines: str, version: str = "1.0") -> str:
    source = 'source = { registry = "https://index.invalid/simple" }'
    url = f"https://index.invalid/{name.replace('-', '_')}-{version}-py3-none-any.whl"
    wheel = f'wheels = [{{ url = "{url}", hash = "sha256:{SHA}" }}]'
    return "\n".join(
        ("[[package]]", f'name = "{name}"', f'version = "{version}"', *(lines or (source, wheel)), "")
    )


UV_LOCK = (
    'version = 1\nrevision = 3\nrequires-python = ">=3.10"\n'
    + uv_package("idna")
    + uv_package(
        "my-trainer",
        'source = { virtual = "." }',
        "dependencies = [",
        '    { name = "idna" },',
        '    { name = "rich", marker = "sys_platform == \'linux\'" },',
        "]",
        "[package.metadata]",
        "requires-dist = [",
        '    { name = "idna" },',
        '    { name = "rich", marker = "sys_platform == \'linux\'", specifier = ">=14" },',
        "]",
    )
    + uv_package("pygments")
    + uv_package(
        "rich",
        'source = { registry = "https://index.invalid/simple" }',
        'dependencies = [{ name = "pygments" }]',
        f'wheels = [{{ url = "https://index.invalid/rich-14.0-py3-none-any.whl", hash = "sha256:{SHA}" }}]',
        version="14.0",
    )
)


def test_uv_lock(tmp_path: Path) -> None:
    """The real uv reads it: pins with hashes. Packages that pyproject.toml names are marked."""
    found = read(tmp_path, {"pyproject.toml": PYPROJECT, "uv.lock": UV_LOCK, "requirements.txt": "other"})

    assert (found.source, found.is_lock, found.requires_python) == ("uv.lock", True, ">=3.10")
    assert [(one.text, one.where, one.hashes, one.by_name) for one in found.requirements] == [
        ("idna==1.0", "uv.lock:5", (SHA,), True),
        ('pygments==1.0; sys_platform == "linux"', "uv.lock:23", (SHA,), False),
        ('rich==14.0; sys_platform == "linux"', "uv.lock:28", (SHA,), True),
    ]


GIT = "https://h.invalid/x.git"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_a_uv_lock_gives_what_uvs_requirements_txt_gave(tmp_path: Path) -> None:
    """So the inputs of locks that were made when uv.lock was exported as requirements.txt stay the same."""
    registry = 'source = { registry = "https://index.invalid/simple" }'
    own, by_url = "wheels/z-1.0-py3-none-any.whl", "https://h.invalid/byurl-1.0-py3-none-any.whl"
    files = f'wheels = [{{ url = "https://index.invalid/both-1.0-py3-none-any.whl", hash = "sha256:{SHA}" }}]'
    sdist = f'sdist = {{ url = "https://index.invalid/NAME-1.0.tar.gz", hash = "sha256:{"b" * 64}" }}'
    names = ("both", "byurl", "gitp", "sdonly", "z")
    lock = (
        'version = 1\nrevision = 3\nrequires-python = ">=3.10"\n'
        + uv_package("both", registry, sdist.replace("NAME", "both"), files)
        + uv_package(
            "byurl",
            f'source = {{ url = "{by_url}" }}',
            f'wheels = [{{ url = "{by_url}", hash = "sha256:{SHA}" }}]',
        )
        + uv_package("gitp", f'source = {{ git = "{GIT}?subdirectory=a%2Fb&rev=v1#{COMMIT}" }}')
        + uv_package(
            "my-trainer",
            'source = { virtual = "." }',
            "dependencies = [",
            *(f'    {{ name = "{name}", marker = "sys_platform != \'win32\'" }},' for name in names),
            "]",
        )
        + uv_package("sdonly", registry, sdist.replace("NAME", "sdonly"))
        + uv_package(
            "z",
            f'source = {{ path = "{own}" }}',
            f'wheels = [{{ filename = "{own[7:]}", hash = "sha256:{SHA}" }}]',
        )
    )
    found = read(tmp_path, {"pyproject.toml": '[project]\nname = "my-trainer"\n', "uv.lock": lock})

    marker = '; sys_platform != "win32"'
    assert [(one.text, sorted(one.hashes), one.path, one.url) for one in found.requirements] == [
        (f"z==1.0{marker}", [SHA], own, ""),
        (f"both==1.0{marker}", [SHA, "b" * 64], "", ""),
        (f"byurl==1.0{marker}", [SHA], "", by_url),
        (f"gitp{marker}", [], "", ""),
        (f"sdonly==1.0{marker}", ["b" * 64], "", ""),
    ]
    repository = found.requirements[3].repository
    assert repository is not None
    assert repository.text == f"git+{GIT}@{COMMIT}#subdirectory=a/b"


def test_settings_of_uv_in_pyproject_are_not_used(tmp_path: Path) -> None:
    """They could name another index, or files outside of the project. uv would refuse these settings."""
    more = "[tool.uv.workspace]\nmembers = 5\n"
    found = read(tmp_path, {"pyproject.toml": PYPROJECT + more, "uv.lock": UV_LOCK})
    assert len(found.requirements) == 3


def test_a_uv_lock_of_other_dependencies_is_stale(tmp_path: Path) -> None:
    text = PYPROJECT.replace('"idna"', '"idna>=3"').replace("rich>=14", "rich >= 14")
    with pytest.raises(Stale, match=r"other dependencies than pyproject\.toml has: idna"):
        read(tmp_path, {"pyproject.toml": text, "uv.lock": UV_LOCK})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("version = 1\n", "version = 99\n"), "uv.lock: "),
        (("[[package]]", "[[package"), "uv.lock: not valid TOML"),
        (
            ("revision = 3\n", 'revision = 3\n[manifest]\nmembers = ["my-trainer", "b"]\n'),
            "a workspace with 2 members",
        ),
        (
            (
                'source = { registry = "https://index.invalid/simple" }\nwheels',
                'source = { directory = "./idna" }\nx',
            ),
            "uv.lock:5: idna: local folders cannot be locked",
        ),
    ],
)
def test_a_wrong_uv_lock(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    assert change[0] in UV_LOCK
    lock = UV_LOCK.replace(*change, 1)
    assert reason in refused(tmp_path, {"pyproject.toml": PYPROJECT, "uv.lock": lock})[0]


def test_a_uv_lock_alone(tmp_path: Path) -> None:
    assert "there is no pyproject.toml" in refused(tmp_path, {"uv.lock": UV_LOCK})[0]


def pylock_package(name: str, *lines: str) -> str:
    url = f"https://index.invalid/{name}-1.0-py3-none-any.whl"
    wheel = f'wheels = [{{ url = "{url}", hashes = {{ sha256 = "{SHA}" }} }}]'
    return "\n".join(("[[packages]]", f'name = "{name}"', *(lines or ('version = "1.0"', wheel)), ""))


PYLOCK = 'lock-version = "1.0"\ncreated-by = "test"\nrequires-python = ">=3.10"\n'


def test_pylock(tmp_path: Path) -> None:
    """pylock.toml is preferred to other files. Its markers are evaluated for the image."""
    wheel = pylock_package("x").splitlines()[3].replace("/x-", "/NAME-")
    marked = (
        ("windows", "sys_platform == 'win32'"),
        ("extra", "'gpu' in extras"),
        ("group", "'dev' in dependency_groups"),
        ("linux", "sys_platform == 'linux' and python_full_version >= '3.11.2'"),
    )
    lock = PYLOCK.replace("requires", 'extras = ["gpu"]\ndependency-groups = ["dev"]\nrequires', 1)
    lock += pylock_package("idna") + "".join(
        pylock_package(name, 'version = "1.0"', f'marker = "{marker}"', wheel.replace("NAME", name))
        for name, marker in marked
    )
    found = read(tmp_path, {"pyproject.toml": PYPROJECT, "uv.lock": UV_LOCK, "pylock.toml": lock})

    assert (found.name, found.source, found.is_lock) == ("my-trainer", "pylock.toml", True)
    assert [(one.text, one.where, one.hashes, one.by_name) for one in found.requirements] == [
        ("idna==1.0", "pylock.toml:7", (SHA,), True),
        ("linux==1.0", "pylock.toml:26", (SHA,), False),
    ]


def test_wheels_by_path_and_url_in_pylock(tmp_path: Path) -> None:
    own, url = "wheels/own-1.0-py3-none-any.whl", "https://h.invalid/x-1.0+cu12-py3-none-any.whl"
    archive = f'archive = {{ PLACE, hashes = {{ sha256 = "{SHA.upper()}" }} }}'
    lock = PYLOCK + pylock_package("own", archive.replace("PLACE", f'path = "./{own}"'))
    lock += pylock_package("x", archive.replace("PLACE", f'url = "{url}"'))
    found = read(tmp_path, {"pylock.toml": lock})

    assert [(one.text, one.hashes, one.path, one.url) for one in found.requirements] == [
        ("own==1.0", (SHA,), own, ""),
        ("x==1.0", (SHA,), "", url),
    ]
    outside = lock.replace(f"./{own}", f"../{own}")
    assert "not a file in the project's folder" in refused(tmp_path, {"pylock.toml": outside})[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lock-version = 1\n", "pylock.toml: "),
        ('lock-version = "2.0"\ncreated-by = "x"\npackages = []\n', "2.0 is not supported"),
        ("x = [", "not valid TOML"),
        (
            PYLOCK
            + pylock_package("x", 'vcs = { type = "git", url = "https://h.invalid/x", commit-id = "1" }'),
            "pylock.toml:5: x: commit-id '1' does not have 40 hex digits",
        ),
        (
            PYLOCK + pylock_package("x", 'directory = { path = "." }'),
            "pylock.toml:5: x: local folders cannot be locked",
        ),
        (
            PYLOCK
            + pylock_package(
                "x", f'archive = {{ url = "https://h.invalid/x.zip", hashes = {{ sha256 = "{SHA}" }} }}'
            ),
            "pylock.toml:5: x @ https://h.invalid/…/x.zip: source code at a direct URL cannot be locked",
        ),
        (
            PYLOCK
            + pylock_package(
                "x",
                'version = "1.0"',
                f'sdist = {{ url = "https://h.invalid/x-1.0.tar.gz", hashes = {{ sha256 = "{SHA}" }} }}',
            ),
            "pylock.toml:5: x: it has no wheel, only source code",
        ),
        (
            PYLOCK + pylock_package("x").replace("sha256", "sha512"),
            "pylock.toml:5: x: its wheels have no sha256",
        ),
    ],
)
def test_a_wrong_pylock(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refused(tmp_path, {"pylock.toml": text})[0]
