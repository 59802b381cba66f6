"""The gate checks the layers of a project together, and the file names that have a meaning for Python."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from torchkiln.model.project import PROJECT_JSON
from torchkiln.projects.gate.entries import Below, LayerEntry, Recorded
from torchkiln.projects.gate.layers import changes
from torchkiln.projects.gate.names import (
    distribution_of,
    loaded_groups,
    module_of,
    regular_module_of,
    starts,
)

SITE = "opt/venv/lib/python3.11/site-packages"
FILES = {f"{SITE}/torch/__init__.py": "torch", f"{SITE}/six.py": "six", f"{SITE}/old/a.py": "old"}
FOLDERS = (
    "opt",
    "opt/venv",
    "opt/venv/lib",
    "opt/venv/lib/python3.11",
    SITE,
    f"{SITE}/torch",
    f"{SITE}/old",
    "etc",
)


def below() -> Below:
    tree = {path: LayerEntry(path=path, kind="file", mode=0o644, sha256="0") for path in FILES}
    tree |= {path: LayerEntry(path=path, kind="folder") for path in FOLDERS}
    tree["etc/torchkiln"] = LayerEntry(path="etc/torchkiln", kind="folder")
    return Below(
        tree=tree,
        owners=FILES,
        fixed=frozenset({"torch"}),
        units={f"{SITE}/torch": "torch"},
        modules=frozenset({"torch"}),
        standard=frozenset({"json"}),
        libraries={},
        programs={},
        folders=(),
        site=SITE,
        scripts="opt/venv/bin",
    )


def file(path: str, **other: object) -> LayerEntry:
    return LayerEntry(**{"path": path, "kind": "file", "mode": 0o644, "sha256": "1", **other})  # type: ignore[arg-type]


def folder(path: str) -> LayerEntry:
    return LayerEntry(path=path, kind="folder")


def link(path: str, target: str) -> LayerEntry:
    return LayerEntry(path=path, kind="link", mode=0o777, target=target)


def faults(*layers: list[LayerEntry], files: Mapping[str, tuple[str, ...]] | None = None) -> tuple[str, ...]:
    return changes(layers, below(), Recorded(files=files or {}, texts={}, wheels={})).faults


def test_code_and_project_json_are_allowed() -> None:
    found = changes(
        [
            [
                folder("app"),
                file("app/src/mine/__init__.py"),
                file(PROJECT_JSON),
                link("app/latest", "src/mine"),
            ]
        ],
        below(),
        Recorded(files={}, texts={}, wheels={}),
    )

    assert (found.faults, found.replaced, found.has_source) == ((), (), True)


def test_a_link_in_src_is_no_source() -> None:
    """The builder decides the same: it does not put /app/src on PYTHONPATH."""
    layer = [folder("app"), folder("app/src"), link("app/src/a", "../b.py"), file("app/b.py")]

    found = changes([layer], below(), Recorded(files={}, texts={}, wheels={}))

    assert (found.faults, found.has_source) == ((), False)


def test_a_link_of_one_layer_is_no_folder_in_the_next() -> None:
    """A container engine would follow the link when it writes the file."""
    found = faults([link("app/x", "y"), file("app/y/a.py")], [file("app/x/z.py")])

    assert found == ("app/x/z.py: /app/x is a link, not a folder",)


def test_a_folder_does_not_become_a_link_in_the_next_layer() -> None:
    found = faults([folder("app/src"), file("app/src/a.py")], [link("app/src", "lib")])

    assert found == ("app/src: a link replaces a folder of the layers below",)


def test_project_json_is_in_the_top_layer() -> None:
    assert faults([file(PROJECT_JSON)], [file("app/a.py")]) == (f"{PROJECT_JSON}: must be in the top layer",)


def test_what_a_layer_removed_can_be_replaced() -> None:
    """A replaceable package may be removed in one layer, and its folder added again in a later layer."""
    new = f"{SITE}/old/a.py"
    found = changes(
        [[file(f"{SITE}/.wh.old", size=0)], [folder(f"{SITE}/old"), file(new)]],
        below(),
        Recorded(files={new: ("sha256=",)}, texts={}, wheels={}),
    )

    assert found.faults == (f"{new}: differs from its RECORD",)
    assert found.replaced == ("old",)


def test_what_is_not_there_is_not_removed() -> None:
    assert faults([file(f"{SITE}/.wh.gone", size=0)]) == (
        f"{SITE}/.wh.gone: removes /{SITE}/gone, and the parent image has no file there",
    )
    assert faults([file("app/.wh.x", size=3)]) == (
        "app/.wh.x: invalid whiteout: opaque, or not an empty file",
    )


def test_extended_attributes_are_refused() -> None:
    assert faults([file("app/x", xattrs=True)]) == ("app/x: has extended attributes",)


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
