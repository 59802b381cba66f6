"""The image of a project, built on a small cell: layers, replaced packages, refusals, run, push."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.needs import needs_gcc
from tests.projects import NAME, SITE, TAG, Bench, bench
from tests.shared_libraries import Lib
from tests.symbol_scene import compiled
from tests.unpublished import locked_wheel
from tests.wheels import make_wheel
from torchkiln.cache.usage import DAY, cache_usage
from torchkiln.errors import BuildFailed, ConfigError, Stale, Unresolvable
from torchkiln.model.digest import Digest
from torchkiln.model.plan import RemovalLayer
from torchkiln.oci.layout import open_layout
from torchkiln.oci.unpack import LayerBlob, unpack
from torchkiln.oci.validate.validate import validate
from torchkiln.plan.plan import to_json

PYC = f"cpython-{sys.version_info[0]}{sys.version_info[1]}.pyc"


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    return bench(tmp_path)


def root_of(small: Bench) -> Path:
    """The unpacked image of the project."""
    image = open_layout(small.layout).image(NAME)
    layers = [LayerBlob(path=layer.path, diff_id=layer.diff_id) for layer in image.layers]
    unpack(layers, small.folder / "unpacked" / image.manifest[7:17])
    return small.folder / "unpacked" / image.manifest[7:17]


def layers_of(small: Bench, ref: str) -> list[Digest]:
    return [layer.digest for layer in open_layout(small.layout).image(ref).layers]


def test_the_parents_layers_are_the_lowest(small: Bench) -> None:
    """They are unchanged and in order. The configuration adds the project's folder and labels."""
    built = small.build(small.lock(small.wheel("einops", "1", "einops/__init__.py")))

    parent, image = open_layout(small.layout).image(TAG), open_layout(small.layout).image(NAME)
    count = len(parent.layers)
    assert image.layers[:count] == parent.layers
    titles = [layer.title for layer in built.built.image.layers[count:]]
    assert titles == ["einops 1", f"code of {NAME} (1 file)"]
    before, after = parent.config["config"], image.config["config"]
    assert after["WorkingDir"] == "/app"
    assert after["Env"] == [*before["Env"], "PYTHONPATH=/app"]
    assert after["Labels"]["torchkiln.parent"] == f"{TAG}@{parent.manifest}"
    assert after["Labels"]["torchkiln.project"] == NAME
    same = {"Env", "WorkingDir", "Labels"}
    assert {key: value for key, value in after.items() if key not in same} == {
        key: value for key, value in before.items() if key not in same
    }
    assert validate(small.layout) == ()


def test_a_changed_line_changes_one_layer(small: Bench) -> None:
    lock = small.lock(small.wheel("einops", "1", "einops/__init__.py"))
    small.build(lock)
    first = layers_of(small, NAME)
    fetched = list(small.index.fetched)
    (small.project / "train.py").write_text("print('two')\n")
    built = small.build(lock)
    again = small.build(lock)

    second = layers_of(small, NAME)
    assert second[:-1] == first[:-1]
    assert second[-1] != first[-1]
    assert small.index.fetched == fetched
    assert again.built.image == built.built.image
    assert built.built.reused == tuple(layer.title for layer in built.built.image.layers)
    assert (root_of(small) / "app/train.py").read_text() == "print('two')\n"


def test_nothing_of_a_replaced_package_is_left(small: Bench) -> None:
    """The package's files, byte-code, metadata and folders are removed. Other packages keep their files."""
    new = small.wheel("fsspec", "3", "fsspec/__init__.py", "fsspec/new.py")
    built = small.build(small.lock(new))

    site = root_of(small) / SITE
    code = {"__init__.py", "new.py"}
    assert {path.name for path in (site / "fsspec").iterdir()} == code | {"__pycache__"}
    compiled = {f"{name.removesuffix('.py')}.{PYC}" for name in code}
    assert {path.name for path in (site / "fsspec/__pycache__").iterdir()} == compiled
    assert "fsspec 3" in (site / "fsspec/__init__.py").read_text()
    assert [path.name for path in site.glob("fsspec*.dist-info")] == ["fsspec-3.dist-info"]
    assert not (site / "fsspec_single.py").exists()
    assert not (site / f"__pycache__/fsspec_single.{PYC}").exists()
    assert (site / f"__pycache__/six.{PYC}").exists()
    assert {path.name for path in (site / "shared").iterdir()} == {"two.py", "__pycache__"}
    assert {path.name for path in (site / "shared/__pycache__").iterdir()} == {f"two.{PYC}"}
    (removal,) = built.plan.of(RemovalLayer)
    assert removal.title == "without fsspec 2"
    assert f"{SITE}/fsspec" in removal.paths
    found = next(layer for layer in to_json(built.plan)["layers"] if layer["kind"] == "removal")
    assert found["removed"] == list(removal.paths)
    assert validate(small.layout) == ()


def test_the_removal_is_the_same_without_the_wheels(small: Bench) -> None:
    """If the cache no longer has the wheels, the paths are read from the layers."""
    lock = small.lock(small.wheel("fsspec", "3", "fsspec/__init__.py"))
    before = small.build(lock).built.image.manifest
    for path in (*small.store.root.glob("wheels/*/*"), *small.store.root.glob("records/effects/*")):
        path.unlink()

    assert small.build(lock).built.image.manifest == before


def test_the_description_in_the_image(small: Bench) -> None:
    put = small.wheel("hook", "1", "hook/__init__.py", "hook.pth")
    built = small.build(small.lock(put, requirements=["hook>=1"]))

    found = json.loads((root_of(small) / "etc/torchkiln/project.json").read_text())
    assert found["parent"]["manifest"] == open_layout(small.layout).image(TAG).manifest
    assert found["requirements"] == ["hook>=1"]
    assert [wheel["name"] for wheel in found["wheels"]] == ["hook"]
    assert found["at_start"] == ["hook.pth of hook"]
    assert built.at_start == ("hook.pth of hook",)


def test_a_package_that_changes_what_was_proved_is_refused(small: Bench) -> None:
    lock = small.lock(small.wheel("evil", "1", "torch/__init__.py"))

    for _ in range(2):  # also with the layers in the cache
        with pytest.raises(BuildFailed, match=f"evil: {SITE}/torch/__init__.py is a file of torch"):
            small.build(lock)
        assert NAME not in open_layout(small.layout).refs()


def test_packages_that_do_not_fit_together_are_refused(small: Bench) -> None:
    """The check is like `pip check`, for the packages of image and project together."""
    missing = small.lock(small.wheel("needy", "1", "needy.py", requires=("absent>=2",)))
    other = small.lock(small.wheel("picky", "1", "picky.py", requires=("six>=2",)))
    extra = small.wheel("extra", "1", "extra.py", requires=('absent; extra == "more"',))

    with pytest.raises(BuildFailed, match=r"requires absent>=2, which is not locked"):
        small.build(missing)
    with pytest.raises(BuildFailed, match=r"requires six>=2, but six 1 is locked"):
        small.build(other)
    small.build(small.lock(extra, requirements=["extra"]))
    with pytest.raises(BuildFailed, match="requires absent"):
        small.build(small.lock(extra, requirements=["extra[more]"]))


def test_code_that_hides_torch_is_refused(small: Bench) -> None:
    (small.project / "torch.py").write_text("")

    with pytest.raises(ConfigError, match=r"the code has torch\.py, which hides a package"):
        small.build(small.lock())


def test_a_lock_for_another_lock_of_the_cell_is_refused(small: Bench) -> None:
    lock = replace(small.lock(), parent_lock=Digest("sha256:" + "9" * 64))

    with pytest.raises(Stale, match="made for another lock"):
        small.build(lock)


def test_a_name_of_another_image_is_refused(small: Bench) -> None:
    with pytest.raises(ConfigError, match="not a name for the project's image"):
        small.build(replace(small.lock(), name="latest"))


def test_a_source_folder_is_on_the_path(small: Bench) -> None:
    (small.project / "src/mine").mkdir(parents=True)
    (small.project / "src/mine/__init__.py").write_text("")
    small.build(small.lock())

    environment = open_layout(small.layout).image(NAME).config["config"]["Env"]
    assert "PYTHONPATH=/app:/app/src" in environment


def test_the_cache_knows_what_the_image_needs(small: Bench) -> None:
    """The cache lists the project's wheels as needed by the image, and has records of its layers."""
    wheel = small.wheel("einops", "1", "einops/__init__.py")
    small.build(small.lock(wheel))

    found = cache_usage(small.store, [small.layout], small.folder / "images")
    assert [entry.lifetime for entry in found.entries if entry.path.endswith(wheel.name)] == [math.inf]
    assert [entry.lifetime for entry in found.entries if "records/effects/" in entry.path] == [30 * DAY]


@needs_gcc
def test_a_package_for_another_torch_is_refused_before_anything_is_built(small: Bench) -> None:
    """The build downloads only the wheel of this package."""
    lib = Lib(name="_C.so", defines=("PyInit__C",), uses=("_ZN2at7unknownEv",))
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    wheel = make_wheel(
        small.folder / "wheels",
        "ext",
        "1",
        {"ext/_C.so": compiled(lib)},
        tag=f"{python}-{python}-manylinux_2_28_x86_64",
        purelib=False,
    )
    small.index.files[wheel.name] = wheel.read_bytes()

    with pytest.raises(Unresolvable, match="ext 1 is not built for") as refused:
        small.build(small.lock(wheel))
    assert "needs at::unknown (_ZN2at7unknownEv), which torch 2.7.1 does not have" in refused.value.message
    assert small.index.fetched == [wheel.name]
    assert not small.layout.exists()

    allowed = replace(small.lock(wheel), may_lack=("ext",))
    assert small.build(allowed).built.image.tag == NAME


@needs_gcc
def test_a_check_that_the_cache_does_not_allow_is_told(small: Bench) -> None:
    """The cache has torch's layer, but not its wheel or a record of its symbols. The build says so."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tag = f"{python}-{python}-manylinux_2_28_x86_64"
    torch = small.wheel("torch", "2.7.1", "torch/__init__.py", tag=tag)
    others = (wheel for wheel in small.cell.wheels if wheel.name != "torch")
    small.cell = replace(small.cell, wheels=(locked_wheel(torch), *others))
    small.build(small.lock())
    small.store.wheel(locked_wheel(torch)).unlink()
    lib = Lib(name="_C.so", defines=("PyInit__C",), uses=("_ZN2at7unknownEv",))
    ext = make_wheel(small.folder / "wheels", "ext", "1", {"ext/_C.so": compiled(lib)}, tag=tag)
    small.index.files[ext.name] = ext.read_bytes()
    small.said.clear()

    small.build(small.lock(ext))
    [warning] = [line for line in small.said if "libraries" in line]
    assert warning.endswith("because their wheels are not in the cache: torch 2.7.1")
