"""What the gate refuses in the code of a project, and in packages that a build accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from torchkiln.model.project import PROJECT_JSON
from torchkiln.oci.layer_index import IndexedEntry, TreeItem
from torchkiln.oci.tar_reader import TarEntry
from torchkiln.projects.effect import module_of, starts
from torchkiln.projects.gate.read import _required
from torchkiln.projects.gate.rules import (
    Below,
    code_faults,
    distribution_of,
    loaded_groups,
    package_faults,
    regular_module_of,
)
from torchkiln.wheel.install import Scheme

SITE = "opt/venv/lib/python3.11/site-packages"
BELOW = Below(
    fixed=frozenset({"torch", "nvidia-cuda-runtime-cu12"}),
    modules=frozenset({"torch", "nvidia"}),
    others={"json": "the standard library", "sympy": "sympy"},
    libraries={"libcudart.so.12": "nvidia-cuda-runtime-cu12"},
    path=("opt/venv/bin", "usr/local/bin", "usr/bin"),
    programs={"env": "usr/bin/env", "tool": "opt/venv/bin/tool"},
    unowned=frozenset({"opt/venv/bin/python", "opt/venv/pyvenv.cfg"}),
    site=SITE,
    scripts="opt/venv/bin",
)


def file(path: str, **other: Any) -> TarEntry:
    plain = TarEntry(
        path=path, kind="file", mode=0o644, uid=0, gid=0, mtime=0, size=1, target="", device=(0, 0), xattrs=()
    )
    return replace(plain, **other)


def in_code(entry: TarEntry) -> list[str]:
    return list(code_faults(entry, "", BELOW))


@pytest.mark.parametrize(
    "entry",
    [
        file("app", kind="folder", mode=0o755),
        file("app/src/mine/__init__.py"),
        file("app/train", mode=0o755),
        file("app/latest", kind="link", mode=0o777, target="src/mine"),
        file("app/lib/x", kind="link", target="../src/..x"),
        file("app/json", kind="folder", mode=0o755),
        file("app/lib/torch.py"),
        file("app/test/__init__.py"),
        file("etc/torchkiln", kind="folder", mode=0o755),
        file(PROJECT_JSON),
    ],
)
def test_code_that_is_accepted(entry: TarEntry) -> None:
    assert in_code(entry) == []


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (file("app/sympy/__init__.py"), "would be imported in place of sympy of sympy"),
        (file("app/src/json.py"), "would be imported in place of json of the standard library"),
        (file("app/x", xattrs=(("security.capability", "x"),)), "has extended attributes"),
        (file("app/x", gid=4), "belongs to 0:4, not to root"),
        (file("app/x\x1b"), "has control characters in its name"),
        (file("app/x", mode=0o664), "has the mode 0664"),
        (file("app", kind="link", target="etc"), "is a link with the mode 0644"),
        (file("app/.wh.x", size=0), "a whiteout: code cannot remove files of the image"),
        (file("app/.wh.x/y"), "a whiteout: code cannot remove files of the image"),
        (file(PROJECT_JSON, kind="link", target="x"), "is a link with the mode 0644"),
        (file("app/a/x", kind="link", target="../../etc/x"), "a symbolic link that leads out of /app"),
        # app/a may be a link to /app
        (file("app/x", kind="link", target="a/../etc/x"), "a symbolic link that leads out of /app"),
        (file("application/x"), "outside of /app"),
        (file(""), "outside of /app"),
    ],
)
def test_code_that_is_refused(entry: TarEntry, fault: str) -> None:
    assert in_code(entry) == [f"{entry.path}: {fault}"]


@pytest.mark.parametrize(
    ("entry", "entry_points"),
    [
        (file(f"{SITE}/einops/__init__.py"), ""),
        (file(f"{SITE}/nvidia/dali/lib/libdali.so"), ""),
        (file(f"{SITE}/x-1.dist-info/entry_points.txt"), "[console_scripts]\nx = x:main\n"),
        (file("opt/venv/bin/tool", mode=0o755), ""),
        (file("usr/bin/tool", mode=0o755), ""),
        (file("usr/mail", kind="folder", mode=0o2775), ""),
    ],
)
def test_packages_that_are_accepted(entry: TarEntry, entry_points: str) -> None:
    assert list(package_faults(entry, entry_points, BELOW)) == []


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        (file(f"{SITE}/torch.py"), "would be imported in place of torch, or as a part of it"),
        (file(f"{SITE}/torch/lib/more.so"), "would be imported in place of torch, or as a part of it"),
        (file(f"{SITE}/nvidia/__init__.py"), "would be imported in place of nvidia, or as a part of it"),
        (file(f"{SITE}/nvidia.py"), "would be imported in place of nvidia, or as a part of it"),
        (
            file(f"{SITE}/nvidia/other/lib/libcudart.so.12"),
            "could be loaded in place of libcudart.so.12 of nvidia-cuda-runtime-cu12",
        ),
        (file(f"{SITE}/torch-9.dist-info/METADATA"), "metadata of torch, which is fixed"),
        (
            file(f"{SITE}/x-1.dist-info/entry_points.txt"),
            "entry points that torch or triton load at import: torch.backends",
        ),
        (file("opt/venv/bin/env"), "would be started in place of /usr/bin/env"),
        (file("usr/local/bin/env", kind="link"), "would be started in place of /usr/bin/env"),
        (file("opt/venv/bin/nvidia-smi"), "would be started in place of /usr/bin/nvidia-smi"),
        (file("opt/venv/bin/python"), "replaces a file of the parent image that belongs to no package"),
        (file("opt/venv/pyvenv.cfg"), "replaces a file of the parent image that belongs to no package"),
        (file("usr/bin/su2", mode=0o4755), "a privileged program: it has the mode 4755, or capabilities"),
    ],
)
def test_packages_that_are_refused(entry: TarEntry, fault: str) -> None:
    """A build accepts them, because no file of torch changes."""
    points = "[torch.backends]\nx = x:load\n" if "entry_points" in entry.path else ""

    assert list(package_faults(entry, points, BELOW)) == [f"{entry.path}: {fault}"]


def test_what_torch_requires() -> None:
    """Directly or through others; not what an extra requires."""
    texts = {
        "torch-2.7": "Requires-Dist: sympy>=1 ; python_version >= '3.9'\nRequires-Dist: einsum; extra == 'x'",
        "sympy-1": "Requires-Dist: mp.math (<2)\n\nRequires-Dist: prose",
        "mp_math-1": "Requires-Dist: torch\nRequires-Dist: gone",
        "six-1": "Requires-Dist: pytest",
    }
    paths = {f"{SITE}/{name}.dist-info/METADATA": text for name, text in texts.items()}
    paths[f"{SITE}/pip/_vendor/torch-1.dist-info/METADATA"] = "Requires-Dist: vendored"
    tree = {path: TreeItem(IndexedEntry(path, "file", text=text), 0) for path, text in paths.items()}
    scheme = Scheme(prefix="/opt/venv", python="3.11")

    assert _required({"torch"}, tree, scheme) == {"torch", "sympy", "mp-math", "gone"}


@pytest.mark.parametrize(
    ("path", "module", "regular"),
    [
        ("torch.py", "torch", "torch"),
        ("torch.pyc", "torch", "torch"),
        ("torch.so", "torch", "torch"),
        ("torch.cpython-311-x86_64-linux-gnu.so", "torch", "torch"),
        ("torch/__init__.py", "torch", "torch"),
        ("torch/__init__.abi3.so", "torch", "torch"),
        ("torch/data.txt", "torch", ""),
        ("torch.txt", "", ""),
        ("torch-1.dist-info/METADATA", "", ""),
        ("README", "", ""),
    ],
)
def test_modules(path: str, module: str, regular: str) -> None:
    assert (module_of(path), regular_module_of(path)) == (module, regular)


def test_a_link_and_a_folder_can_be_packages() -> None:
    assert (module_of("torch", "link"), module_of("torch", "folder"), module_of("torch")) == (
        "torch",
        "torch",
        "",
    )


@pytest.mark.parametrize(
    "path", ["sitecustomize.py", "usercustomize.pyc", "sitecustomize/x", "sitecustomize.so"]
)
def test_start_up_modules(path: str) -> None:
    assert starts(path)
    assert not starts(f"a/{path}")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Torch-2.7.dist-info/METADATA", "torch"),
        ("nvidia_cublas_cu12-1.dist-info", "nvidia-cublas-cu12"),
        ("torch.egg-info/PKG-INFO", "torch"),
        ("torch-1.egg", "torch"),
        ("pip/_vendor/idna-3.dist-info/METADATA", ""),
        ("torch/x.py", ""),
    ],
)
def test_metadata_of_packages(path: str, name: str) -> None:
    assert distribution_of(path) == name


def test_groups_that_torch_loads() -> None:
    text = "[console_scripts]\nx = a:b\n[ torch.backends ]\ny = a:c\n"

    assert loaded_groups(text) == ("torch.backends",)
    assert loaded_groups("x = torch.backends\n") == ()
    for line in ("[[torch.backends]]", "a = b:c\x0b[torch.backends]", " [torch.backends ] "):
        assert loaded_groups(line) == ("torch.backends",), line  # like importlib.metadata
