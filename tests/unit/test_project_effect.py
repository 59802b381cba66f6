"""How a project's packages change the image: removed files, start-up code, and refused conflicts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchkiln.errors import BuildFailed
from torchkiln.model.plan import OverlayFile, OverlayLink
from torchkiln.oci.tar import parents
from torchkiln.oci.tar_names import is_in
from torchkiln.projects.effect import Files, effect_of, removed_paths, shadowing
from torchkiln.wheel.install import Scheme

SCHEME = Scheme(prefix="/opt/venv", python="3.11")
SITE = SCHEME.site


def package(*paths: str, content: str = "1") -> Files:
    """The files of a package, below site-packages, each with its hash."""
    return {f"{SITE}/{path}" if not path.startswith("opt/") else path: f"sha256={content}" for path in paths}


PARENT: Mapping[str, Files] = {
    "torch": package(
        "torch/__init__.py", "torch/lib/libtorch.so", "functorch/__init__.py", "opt/venv/bin/torchrun"
    )
    | package("torch-2.7.1.dist-info/RECORD"),
    "nvidia-cublas-cu12": package("nvidia/__init__.py", "nvidia/cublas/lib/libcublas.so.12"),
    "six": package("six.py", "six-1.dist-info/RECORD"),
    "tools": package("tools/__init__.py", "share.py", "opt/venv/share/man/tool.1"),
}
FIXED = frozenset({"torch", "nvidia-cublas-cu12"})


def effect(**added: Files) -> tuple[str, ...]:
    """The faults that are reported if the packages *added* are added to the image."""
    try:
        effect_of(PARENT, {}, {name.replace("_", "-"): files for name, files in added.items()}, FIXED, SCHEME)
    except BuildFailed as error:
        return tuple(error.message.splitlines()[1:])
    return ()


# --- what is removed -------------------------------------------------------------------------------


def test_a_package_is_removed_by_its_folders() -> None:
    old = package("fsspec/__init__.py", "fsspec/__pycache__/__init__.cpython-311.pyc", "fsspec/impl/x.py")
    old |= package("fsspec-1.dist-info/RECORD", "opt/venv/bin/fs")

    found = removed_paths({"fsspec": old}, PARENT, SCHEME)

    assert found == ("opt/venv/bin/fs", f"{SITE}/fsspec", f"{SITE}/fsspec-1.dist-info")


def test_what_another_package_has_stays() -> None:
    """Shared files, shared folders, __pycache__ of other modules, and folders of the environment stay."""
    old = package("google/one/x.py", "google/two/y.py", "google/__init__.py", "solo.py")
    old |= package("__pycache__/solo.cpython-311.pyc", "opt/venv/etc/conf/solo")
    kept = {**PARENT, "other": package("google/__init__.py", "google/one/z.py")}

    found = removed_paths({"old": old}, kept, SCHEME)

    assert found == (
        "opt/venv/etc",
        f"{SITE}/__pycache__/solo.cpython-311.pyc",
        f"{SITE}/google/one/x.py",
        f"{SITE}/google/two",
        f"{SITE}/solo.py",
    )


def test_no_empty_namespace_package_is_left() -> None:
    found = removed_paths({"old": package("ns/deep/x.py")}, PARENT, SCHEME)

    assert found == (f"{SITE}/ns",)


NAMES = st.lists(st.sampled_from(["a", "b", "c", "__pycache__", "x.py", "y.py"]), min_size=1, max_size=4)
PATHS = st.sets(NAMES.map(lambda parts: f"{SITE}/{'/'.join(parts)}"), max_size=12)


@given(gone=PATHS, kept=PATHS)
def test_exactly_the_files_of_replaced_packages_go(gone: set[str], kept: set[str]) -> None:
    """Files in *gone* only are removed, files in *kept* stay, and no folder is left empty."""
    files = gone | kept
    if any(folder in files for path in files for folder in parents(path)):
        return  # impossible: a path cannot be a file and a folder
    found = set(removed_paths({"old": dict.fromkeys(gone, "")}, {"other": dict.fromkeys(kept, "")}, SCHEME))

    left = {path for path in files if not is_in(path, found)}
    assert left == kept
    compiled = {f"{path.rpartition('/')[0]}/__pycache__" for path in kept if path.endswith(".py")}
    site = set(parents(f"{SITE}/x"))
    for path in gone - kept:
        for folder in set(parents(path)) - site:
            empty = not any(one.startswith(f"{folder}/") for one in kept) and folder not in compiled
            assert not empty or is_in(folder, found) or any(one.startswith(f"{folder}/") for one in compiled)


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (package("torch/__init__.py", content="2"), f"evil: {SITE}/torch/__init__.py is a file of torch"),
        (package("torch/more.py"), f"evil: {SITE}/torch/more.py is in a folder of torch"),
        (
            package("torch/lib/libcudart.so.12"),
            f"evil: {SITE}/torch/lib/libcudart.so.12 is in a folder of torch",
        ),
        (
            package("nvidia/cublas/lib/libcublas.so.12", content="2"),
            f"evil: {SITE}/nvidia/cublas/lib/libcublas.so.12 is a file of nvidia-cublas-cu12",
        ),
        (
            package("nvidia/cublas/lib/libmore.so"),
            f"evil: {SITE}/nvidia/cublas/lib/libmore.so is in a folder of nvidia-cublas-cu12",
        ),
        (package("opt/venv/bin/torchrun", content="2"), "evil: opt/venv/bin/torchrun is a file of torch"),
        (package("torch-2.7.1.dist-info/x"), f"evil: {SITE}/torch-2.7.1.dist-info/x is in a folder of torch"),
        (package("torch"), f"evil: the file {SITE}/torch replaces a folder of torch"),
        (package("six.py/x.py"), f"evil: the folder {SITE}/six.py replaces a file of six"),
        (package("sitecustomize.py"), f"evil: {SITE}/sitecustomize.py runs at each start of Python"),
        (package("usercustomize/__init__.py"), f"evil: {SITE}/usercustomize/__init__.py runs at each start"),
        (package("sitecustomize.cpython-311.so"), f"evil: {SITE}/sitecustomize.cpython-311.so runs at each"),
    ],
)
def test_a_package_that_changes_what_was_proved_is_refused(files: Files, fault: str) -> None:
    assert any(line.startswith(fault) for line in effect(evil=files)), effect(evil=files)


@pytest.mark.parametrize(
    "files",
    [
        package("nvidia/__init__.py"),  # the image has this file with the same content
        package("nvidia/dali/lib/libdali.so"),
        package("torchmetrics/__init__.py"),
        package("six2.py"),
        package("sitecustomizer.py"),
    ],
)
def test_a_package_without_conflicts_is_accepted(files: Files) -> None:
    assert effect(good=files) == ()


def test_two_missing_hashes_are_not_equal() -> None:
    parent = {**PARENT, "torch": {f"{SITE}/torch/x.py": ""}}
    with pytest.raises(BuildFailed, match="is a file of torch"):
        effect_of(parent, {}, {"evil": {f"{SITE}/torch/x.py": ""}}, FIXED, SCHEME)


def test_what_runs_at_each_start_and_what_is_overwritten_is_reported() -> None:
    added = {
        "hooks": package("hooks.pth", "hooks/inner.pth"),
        "other": package("share.py", "tools/__init__.py", content="2"),
    }

    found = effect_of(PARENT, {}, added, FIXED, SCHEME)

    assert found.at_start == ("hooks.pth of hooks",)
    assert found.overwritten == ("other overwrites files of tools: share.py and 1 more",)
    assert found.modules == ("functorch", "nvidia", "torch")


def test_code_that_hides_a_package_is_found() -> None:
    """By the rules of `module_of`, in the folders on PYTHONPATH."""
    hiding = ("torch.py", "torch/x.py", "src/torch/x.py")
    paths = (*hiding, "torchvision.py", "tests/torch/x.py", "torch.txt", "torch")
    files = [OverlayFile(path=path, mode=0o644, data=b"") for path in paths]

    assert shadowing(files, ("", "src/"), ["torch"]) == hiding
    assert shadowing([OverlayLink(path="torch", target="x")], ("",), ["torch"]) == ("torch",)
