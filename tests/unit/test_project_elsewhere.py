"""Lines of requirements that have no effect in an image are listed; others of `pip freeze` are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_project_lock import Workspace, locked_cell
from tests.unit.test_project_lock_files import PYLOCK, uv_package
from tests.unit.test_project_read import SHA, read, refused
from torchkiln.matrix.mirrors import load
from torchkiln.projects.elsewhere import is_pytorchs
from torchkiln.projects.file import FILE

TLS = "https://"
CU = "https://download.pytorch.org/whl/cu126"
SHOWN = "https://download.pytorch.org/…/cu126"
WHEEL = f"{CU}/torch-2.7.1%2Bcu126-cp311-cp311-manylinux_2_28_x86_64.whl"


def listed(folder: Path, text: str, **more: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The requirements in *text*, and what is ignored, by line."""
    found = read(folder, {"requirements.txt": text, **more})
    return [one.text for one in found.requirements], [(one.version, one.where) for one in found.ignored]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"--extra-index-url {CU}", f"--extra-index-url {SHOWN}"),
        (f"--extra-index-url={CU}/", f"--extra-index-url={SHOWN}"),
        (f"--index-url '{CU}'", f"--index-url '{SHOWN}'"),
        (f'-i "{CU}"', f'-i "{SHOWN}"'),
        (f"-i{CU}", f"-i{SHOWN}"),
        ("-f https://download.pytorch.org/whl/torch_stable.html",
         "-f https://download.pytorch.org/…/torch_stable.html"),
        ("--find-links=https://download.pytorch.org/whl/nightly/cu128?x=1",
         "--find-links=https://download.pytorch.org/…/cu128"),
        (f"--extra-index-url {TLS}me:secret@download-r2.pytorch.org/whl/cpu",
         f"--extra-index-url {TLS}download-r2.pytorch.org/…/cpu"),
        ("-f https://mirrors.example.org/pytorch-wheels/cu121", "-f https://mirrors.example.org/…/cu121"),
        ("--trusted-host download.pytorch.org",) * 2,
    ],
)  # fmt: skip
def test_an_index_for_torch_is_ignored_and_listed(tmp_path: Path, line: str, shown: str) -> None:
    """Without credentials and queries."""
    assert listed(tmp_path, f"idna\n{line}\n") == (["idna"], [(shown, "requirements.txt:2")])


def test_several_options_of_a_line(tmp_path: Path) -> None:
    """pip also ignores such options behind a requirement."""
    text = f"torch==2.7.1+cu126 --index-url {CU} --trusted-host download.pytorch.org\n"
    places = [f"--index-url {SHOWN}", "--trusted-host download.pytorch.org"]
    assert listed(tmp_path, text) == (
        ["torch==2.7.1+cu126"],
        [(place, "requirements.txt:1") for place in places],
    )
    fault = refused(tmp_path, {"requirements.txt": f"-i {CU} --extra-index-url https://x.invalid/simple\n"})[
        0
    ]
    assert fault.startswith(
        "requirements.txt:1: --extra-index-url https://x.invalid/…/simple: a project cannot"
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://pypi.invalid/simple",
        "https://download.pytorch.org.invalid/whl/cu126",
        "https://download.pytorch.org@x.invalid/whl",
        "https://pypi.nvidia.invalid",
        f"{TLS}pytorch.org/get-started",
        "./pytorch-wheels",
        "wheels",
        "https://[x",
    ],
)
def test_other_places_are_not_ignored(tmp_path: Path, url: str) -> None:
    assert not is_pytorchs(url)
    assert refused(tmp_path, {"requirements.txt": f"--find-links {url}\n"})


@pytest.mark.parametrize(
    "line",
    [
        f"-i {TLS}pypi.org/simple",
        f"--index-url {TLS}pypi.org/simple/",
        f"--extra-index-url={TLS}pypi.python.org/simple",
        "--trusted-host pypi.org",
        *(f"-i {preset['UV_DEFAULT_INDEX']}" for preset in load().values()),
    ],
)
def test_pypi_and_its_mirrors_are_ignored_and_listed(tmp_path: Path, line: str) -> None:
    """The configured index serves the same files; beside PyTorch's index, too."""
    found = read(tmp_path, {"requirements.txt": f"--extra-index-url {CU}\n{line}\nidna\n"})
    assert [(one.name, one.where) for one in found.ignored] == [
        ("torch", "requirements.txt:1"),
        ("index", "requirements.txt:2"),
    ]


@pytest.mark.parametrize(
    "url",
    [
        "https://pypi.org.invalid/simple",
        f"{TLS}pypi.org@x.invalid/simple",
        f"{TLS}me:secret@pypi.org/simple",
        "https://x.invalid/pypi.org/simple",
        f"{TLS}pypi.org/other",
    ],
)
def test_a_url_like_pypis_is_refused(tmp_path: Path, url: str) -> None:
    fault = refused(tmp_path, {"requirements.txt": f"--index-url {url}\n"})[0]
    assert "a project cannot choose the index" in fault
    assert "secret" not in fault


def test_a_long_login_is_not_shown_in_part(tmp_path: Path) -> None:
    """The line was cut before the login was removed from it."""
    url = f"{TLS}me:{'secret' * 60}@own.invalid/simple"
    assert "secret" not in refused(tmp_path, {"requirements.txt": f"--index-url {url}\n"})[0]
    package = f"idna @ {TLS}me:{'secret' * 60}@own.invalid/idna.zip\n"
    assert "secret" not in refused(tmp_path / "third", {"requirements.txt": package})[0]
    table = f'{PROJECT}[[tool.uv.index]]\nurl = "{url}"\n'
    assert "secret" not in refused(tmp_path / "other", {"pyproject.toml": table})[0]


PROJECT = '[project]\nname = "x"\nversion = "1"\ndependencies = ["idna", "torch"]\n'
OWN = '[[tool.uv.index]]\nname = "own"\nurl = "https://own.invalid/simple"\n'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (OWN, "pyproject.toml:7: [[tool.uv.index]] https://own.invalid/…/simple: a project cannot"),
        (f'{OWN}explicit = true\n[tool.uv.sources]\nidna = {{ index = "own" }}\n',
         "pyproject.toml: [tool.uv.sources] idna: it has an effect in uv.lock only"),
        ('[tool.uv.sources]\nIDNA = { git = "https://host.invalid/idna" }\n', "[tool.uv.sources] IDNA"),
        ('[tool.uv.sources]\nidna = [{ path = "../idna" }]\n', "[tool.uv.sources] idna"),
        ('[tool.uv.sources]\nidna = { index = "missing" }\n', "[tool.uv.sources] idna"),
        ('[tool.uv]\noverride-dependencies = ["numpy<2"]\n', "[tool.uv] override-dependencies: it has"),
        ('[tool.uv]\nextra-index-url = ["https://own.invalid/s"]\n', "[tool.uv] extra-index-url"),
        ('[[tool.poetry.source]]\nname = "own"\nurl = "https://own.invalid/s"\n', "[[tool.poetry.source]]"),
        ("[[tool.pdm.source]]\nname = [1]\n", "pyproject.toml: [[tool.pdm.source]]: a project cannot"),
        ("[tool.uv.sources]\nidna = { index = [1] }\n", "[tool.uv.sources] idna"),
        ('[[tool.pdm.source]]\nname = "own"\nurl = "https://own.invalid/s"\n', "[[tool.pdm.source]]"),
    ],
)  # fmt: skip
def test_settings_that_choose_other_packages_are_refused_without_a_lock(
    tmp_path: Path, text: str, fault: str
) -> None:
    """They were dropped, and the package came from the configured index."""
    assert fault in refused(tmp_path, {"pyproject.toml": PROJECT + text})[0]


@pytest.mark.parametrize(
    "text",
    [
        f'[[tool.uv.index]]\nname = "cu"\nurl = "{CU}"\nexplicit = true\n'
        '[tool.uv.sources]\ntorch = [{ index = "cu", extra = "gpu" }]\n',
        f'{OWN}explicit = true\n[tool.uv.sources]\ntorch = {{ index = "own" }}\nabsent = {{ path = "." }}\n',
        f'[[tool.uv.index]]\nurl = "{TLS}pypi.org/simple"\ndefault = true\n',
        '[[tool.poetry.source]]\nname = "PyPI"\n[[tool.poetry.source]]\nname = "own"\n'
        'url = "https://own.invalid/s"\npriority = "explicit"\n',
        "[tool]\nuv = 3\n",
        '[tool.uv]\nindex = "x"\nsources = [1]\n',
    ],
)
def test_settings_that_change_no_package_of_the_project(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, {"pyproject.toml": PROJECT + text})
    assert [one.text for one in found.requirements] == ["idna", "torch"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f"torch @ {WHEEL}", "torch==2.7.1+cu126"),
        (f"{WHEEL}#sha256={SHA}", "torch==2.7.1+cu126"),
        (f"torch[opt] @ {WHEEL} ; sys_platform == 'linux'",
         'torch[opt]==2.7.1+cu126; sys_platform == "linux"'),
        (f"torchvision @ {CU}/torchvision-0.22.1%2Bcu126-cp311-cp311-linux_x86_64.whl",
         "torchvision==0.22.1+cu126"),
        ("https://example.org/triton-3.3.1-cp311-cp311-linux_x86_64.whl", "triton==3.3.1"),
        (f"{CU}/nvidia_nccl_cu12-2.26.2-py3-none-manylinux2014_x86_64.whl", "nvidia-nccl-cu12==2.26.2"),
    ],
)  # fmt: skip
def test_a_url_of_torch_is_a_pin(tmp_path: Path, line: str, text: str) -> None:
    """Nothing is downloaded, so it needs no sha256."""
    found = read(tmp_path, {"requirements.txt": f"{line}\n"}).requirements
    assert [(one.text, one.by_file, one.hashes) for one in found] == [(text, False, ())]


def test_the_project_itself(tmp_path: Path) -> None:
    """As it is written by hand, and as pip freeze writes it on this machine or another one."""
    (tmp_path / "my project").mkdir()
    lines = (
        "-e .",
        "-e ./",
        "--editable=.",
        ".",
        f"-e file://{tmp_path}/my%20project",
        "-e /home/user/src/my-project",
        "-e git+https://me:secret@host.invalid/me/tool.git@0123#egg=My_Project&subdirectory=python",
        "-e git+https://host.invalid/me/my-project.git@0123",
        "# Editable install with no version control (my.project==0.1)\n-e /home/user/checkout",
        "# Editable Git install with no remote (my-project==0.1.dev0+g12)\n-e /home/user/other",
    )
    requirements, ignored = listed(tmp_path, "\n".join(("idna", *lines)))
    assert requirements == ["idna"]
    assert [text.partition(",")[0] for text, _ in ignored[:4]] == ["-e .", "-e ./", "--editable=.", "."]
    assert len(ignored) == len(lines)
    assert "secret" not in str(ignored)


@pytest.mark.parametrize(
    ("line", "fault", "hint"),
    [
        ("foo @ file:///home/conda/feedstock_root/build_artifacts/foo_16/work",
         "for a path that pip freeze wrote: foo==VERSION", "pip list --format=freeze"),
        ("bar @ file:///tmp/bar-1.2-py3-none-any.whl", "or bar==1.2", ""),
        ("-e /home/user/library", "editable packages cannot be locked", "build a wheel"),
        ("# Editable install with no version control (library==1.5)\n-e /home/user/library",
         "editable packages cannot be locked", "write library==1.5"),
        ("-e git+https://host.invalid/me/tool.git@0123#egg=tool", "editable", "write NAME @ git+https://"),
        ("-e .[train]", "editable", "use --extra train"),
        (".[train,web]", "a local file must be a wheel", "use --extra train,web"),
        ("pkg-resources==0.0.0", "an old pip of Debian lists it", "remove pkg-resources==0.0.0"),
        ("pkg_resources==0.0.0", "an old pip of Debian lists it", "remove"),
    ],
)  # fmt: skip
def test_lines_of_pip_freeze_are_named_with_what_to_write(
    workspace: Workspace, line: str, fault: str, hint: str
) -> None:
    code, messages = workspace.refused(f"{line}\n")
    assert code == 2
    assert fault in messages
    assert hint in messages


@pytest.fixture(scope="module", name="once")
def a_workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with locked_cell(Workspace, tmp_path_factory.mktemp("elsewhere")) as found:
        yield found


@pytest.fixture(name="workspace")
def without_a_lock(once: Workspace) -> Workspace:
    for name in (FILE, "pylock.toml", "uv.lock", "pyproject.toml"):
        (once.folder / name).unlink(missing_ok=True)
    return once


def rows(workspace: Workspace) -> list[str]:
    return [" ".join(line.split()) for line in workspace.messages.splitlines() if line.endswith("ignored")]


FREEZE = f"""\
--extra-index-url {CU}
fsspec==2026.9
nvidia-cublas-cu12==12.8.4.1
nvidia-cudnn-cu11==8.6
nvidia-nvjitlink==13.0
torch==2.7.1+cu126
torchaudio==2.7.1+cu126
triton==3.1.0
"""


def test_a_frozen_environment_with_torch(workspace: Workspace) -> None:
    """Its pins of torch's libraries are ignored, also of those that the image does not have."""
    assert workspace.locked(FREEZE).wheels == ()
    assert rows(workspace) == [
        "nvidia-cublas-cu12 12.6 12.6 (fixed) requirements.txt:3 has 12.8.4.1, ignored",
        "nvidia-cudnn-cu11 - - (fixed) requirements.txt:4 has 8.6, ignored",
        "nvidia-nvjitlink - - (fixed) requirements.txt:5 has 13.0, ignored",
        f"torch 2.7.1 2.7.1 (fixed) requirements.txt:1 has --extra-index-url {SHOWN}, ignored",
        "torch 2.7.1 2.7.1 (fixed) requirements.txt:6 has 2.7.1+cu126, ignored",
        "torchaudio 2.7.1 2.7.1 (fixed) requirements.txt:7 has 2.7.1+cu126, ignored",
        "triton 3.3.1 3.3.1 (fixed) requirements.txt:8 has 3.1.0, ignored",
    ]


def test_another_torch_by_url_is_refused_like_a_pin(workspace: Workspace) -> None:
    code, messages = workspace.refused(f"torch @ {WHEEL.replace('2.7.1', '2.6.0')}\n")
    assert (code, "use --torch 2.6.0" in messages) == (2, True)


def test_a_library_of_nvidia_that_no_torch_brings_is_installed(workspace: Workspace) -> None:
    workspace.server.add("default", "nvidia-npp-cu12", "12.4")
    found = workspace.locked("torch==2.7.1\nnvidia-npp-cu12==12.4\n", "--as-of", "2030-01-01")
    assert [wheel.name for wheel in found.wheels] == ["nvidia-npp-cu12"]


def test_a_local_version_is_named(workspace: Workspace) -> None:
    workspace.server.add("default", "ops", "1.0")
    code, messages = workspace.refused("ops==1.0+pt27cu126\n")
    assert (code, "write ops==1.0; or" in messages) == (4, True)


def test_settings_of_uv_and_poetry_for_torch_are_listed(workspace: Workspace) -> None:
    text = f"""\
[project]
name = "trial"
dependencies = ["torch==2.7.1", "fsspec"]
[tool.uv.sources]
torch = {{ index = "pytorch-cu126" }}
[[tool.uv.index]]
name = "pytorch-cu126"
url = "{CU}"
explicit = true
"""
    (workspace.folder / "pyproject.toml").write_text(text)
    assert workspace.locked("").wheels == ()
    assert rows(workspace) == [f"torch 2.7.1 2.7.1 (fixed) pyproject.toml:8 has {SHOWN}, ignored"]


def hash_of(workspace: Workspace, name: str, file: str) -> str:
    return hashlib.sha256(workspace.server.files["default", name, file]).hexdigest()


MISMATCH = "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE"
FILES = {
    "torch": ("2.7.1", "torch-2.7.1-py3-none-any.whl"),
    "triton": ("3.3.1", "triton-3.3.1-py3-none-any.whl"),
    "nvidia-cublas-cu12": ("12.6", "nvidia_cublas_cu12-12.6-py3-none-any.whl"),
    "attrs": ("1.0", "attrs-1.0-py3-none-any.whl"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("form", ["requirements.txt", "constraints", "pylock.toml", "uv.lock"])
def test_hashes_of_all_packages_are_compared(workspace: Workspace, name: str, form: str) -> None:
    version, file = FILES[name]
    good = hash_of(workspace, name, file)
    for sha256, expected in ((good, 0), ("1" * 64, 6)):
        (workspace.folder / FILE).unlink(missing_ok=True)
        line = f"{name}=={version} --hash=sha256:{sha256}\n"
        url = f"https://x.invalid/{file}"
        package = f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
        package += f'wheels = [{{ url = "{url}", hashes = {{ sha256 = "{sha256}" }} }}]\n'
        own = uv_package("trial", 'source = { virtual = "." }', f'dependencies = [{{ name = "{name}" }}]')
        registry = 'source = { registry = "https://x.invalid/simple" }'
        wheel = f'wheels = [{{ url = "{url}", hash = "sha256:{sha256}" }}]'
        head = 'version = 1\nrevision = 3\nrequires-python = ">=3.10"\n'
        files = {
            "requirements.txt": {"requirements.txt": line},
            "constraints": {"requirements.txt": f"{name}\n-c bounds.txt\n", "bounds.txt": line},
            "pylock.toml": {"pylock.toml": PYLOCK + package},
            "uv.lock": {
                "pyproject.toml": '[project]\nname = "trial"\n',
                "uv.lock": head + uv_package(name, registry, wheel, version=version) + own,
            },
        }[form]
        for path, text in files.items():
            (workspace.folder / path).write_text(text)
        code, _, messages = workspace.lock()
        assert code == expected, messages
        assert (MISMATCH in messages) is (expected == 6)
        assert expected == 0 or f"expected sha256 {'1' * 64}, got {good}" in messages


def test_files_of_pytorchs_index_have_other_hashes(workspace: Workspace) -> None:
    """Its builds of the same release are not the image's files, so only the version is compared."""
    text = f'[[packages]]\nname = "triton"\nversion = "3.3.1"\nindex = "{CU}"\n'
    wheel = f'wheels = [{{ url = "{CU}/triton-3.3.1-py3-none-any.whl", hashes = {{ sha256 = "{SHA}" }} }}]\n'
    (workspace.folder / "pylock.toml").write_text(PYLOCK + text + wheel)
    assert workspace.lock()[0] == 0
    (workspace.folder / "pylock.toml").unlink()
    assert workspace.locked(f"torch==2.7.1+cu126 --hash=sha256:{SHA}\n").wheels == ()
