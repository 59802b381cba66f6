"""Every command takes the same names of an image or cell: tag, alias, DIR:REF, digest or selection."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.oci_samples import OWN, build, tar_of
from tests.planned import FACTS, MATRIX
from torchkiln.cli import COMMANDS, torchkiln
from torchkiln.cli.shared.image_names import NamedImage, locate, named_image, named_images, one_layout
from torchkiln.cli.shared.selection import CellOptions
from torchkiln.errors import ConfigError
from torchkiln.matrix.resolve import resolve
from torchkiln.matrix.select import all_cells
from torchkiln.matrix.tags import aliases_of, cell_named, find_cell, preferred_name, tag_of
from torchkiln.oci.layout import Layout
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"
ALIASES = ("2.7-cuda12.1-runtime", "v2.7")


def options(*names: str, **more: tuple[str, ...]) -> CellOptions:
    return CellOptions(matrix_file=ROOT / "matrix.yaml", names=names, **more)


def layout_of(folder: Path, *names: str, tag: str = TAG) -> Layout:
    folder.mkdir(exist_ok=True)
    layout = build(folder, tar_of(OWN), tag=tag)
    image = layout.image(tag)
    layout.name_image((tag, *names), image.manifest, image.manifest_path.stat().st_size)
    return layout


def test_a_cell_is_found_by_its_tag_and_by_each_alias() -> None:
    for cell in all_cells(MATRIX):
        resolution = resolve(cell, MATRIX, FACTS)
        if resolution.build:
            for name in (tag_of(resolution), *aliases_of(resolution, MATRIX, FACTS)):
                assert cell_named(name, MATRIX, FACTS) == cell


@pytest.mark.parametrize(
    "name", ["v2.77", "2.7.1-cuda12.1-cudnn8-runtime", f"{TAG}-transformers", "latest-devel", "", TAG.upper()]
)
def test_no_cell_has_another_name(name: str) -> None:
    assert find_cell(name, MATRIX, FACTS) is None
    with pytest.raises(ConfigError, match="no cell of the matrix has this tag or alias"):
        cell_named(name, MATRIX, FACTS)


def test_the_tag_of_an_image_is_preferred_to_aliases() -> None:
    assert preferred_name(["v2.7", TAG, "a"]) == TAG
    assert preferred_name(["trial", "x"]) == "x"
    assert preferred_name([]) is None


@pytest.mark.parametrize("name", [TAG, *ALIASES])
def test_an_image_is_found_by_its_names_in_the_layout(tmp_path: Path, name: str) -> None:
    layout = layout_of(tmp_path, *ALIASES)
    assert locate(name, layout.path, options()) == NamedImage(layout=layout.path, ref=TAG)
    assert locate(layout.image(name).manifest, layout.path, options()).ref == TAG
    assert locate(f"{layout.path}:{name}", Path("dist"), options()) == NamedImage(layout=layout.path, ref=TAG)
    assert locate(str(layout.path), Path("dist"), options()).ref == TAG
    assert locate(None, layout.path, options()).ref == TAG


def test_an_alias_that_the_layout_lacks_is_found_in_the_matrix(tmp_path: Path) -> None:
    """Layouts that earlier releases wrote contain tags, but no aliases."""
    layout = layout_of(tmp_path)
    assert locate("v2.7", layout.path, options()).ref == TAG
    assert locate("v2.7", tmp_path / "none", options()).ref == TAG


def test_a_name_of_the_layout_precedes_the_matrix(tmp_path: Path) -> None:
    older = "2.6.0-cuda12.1-cudnn9-runtime"
    layout = layout_of(tmp_path, "v2.7", tag=older)
    assert locate("v2.7", layout.path, options()).ref == older
    assert locate(TAG, layout.path, options()).ref == TAG  # it is not in the layout


def test_an_unknown_name_is_not_changed(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "trial")
    assert locate("trail", layout.path, options()).ref == "trail"
    (layout.path / "index.json").write_text("{")
    assert locate("trial", layout.path, options()).ref == "trial"


def test_one_image_is_named_once() -> None:
    dist = Path("dist")
    assert named_image(None, dist, options(torch=("2.7",), cuda=("12.1",)), command="gate").ref == TAG
    for name, chosen in ((None, options()), ("a", options(torch=("2.7",)))):
        with pytest.raises(ConfigError, match="gate takes one image: a TAG, or --torch and --cuda"):
            named_image(name, dist, chosen, command="gate")
    with pytest.raises(ConfigError, match="gate takes one image, but the options select 3"):
        named_image(None, dist, options(torch=("2.7",)), command="gate")


def test_several_images_are_named_once_each_in_one_layout(tmp_path: Path) -> None:
    layout = layout_of(tmp_path / "x", *ALIASES)
    chosen = options(torch=("2.7",), cuda=("12.1",))
    found = named_images([TAG, "v2.7", f"{layout.path}:v2.7"], layout.path, chosen)
    assert one_layout(found, "publish") == (layout.path, (TAG,))
    other = layout_of(tmp_path / "y")
    with pytest.raises(ConfigError, match="publish: the images are in several layouts"):
        one_layout((*found, locate(str(other.path), other.path, options())), "publish")


def test_cells_are_named_beside_a_selection() -> None:
    cells, _, _ = options("v2.8", TAG, torch=("2.7",), cuda=("12.1,11.8",)).cells()
    assert [(cell.torch, cell.cuda) for cell in cells] == [
        ("2.8.0", "12.1"),
        ("2.7.1", "12.1"),
        ("2.7.1", "11.8"),
    ]
    with pytest.raises(ConfigError, match="--platform and --gpus cannot be used with a TAG"):
        options(TAG, flavor=("devel",)).cells()


def test_a_cell_is_named_by_an_image_of_a_layout(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, *ALIASES)
    cells, _, _ = options(f"{layout.path}:{TAG}").cells()
    assert [(cell.torch, cell.cuda) for cell in cells] == [("2.7.1", "12.1")]


# Commands that take neither an image nor a cell of the matrix.
OTHERS = {"init", "completion", "base", "ls", "withdraw", "matrix", "cache", "doctor", "show", "read"}
OTHERS |= {"refresh", "vault check", "vault drop", "project smoke", "export gc"}


def commands(group: click.Group, path: str = "") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command
        inner = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            found |= {} if inner in OTHERS else commands(command, inner)
        else:
            found[inner] = command
    return found


@pytest.mark.parametrize("name", sorted(set(commands(torchkiln)) - OTHERS - {"smoke show", "smoke read"}))
def test_every_command_takes_a_name_and_a_selection(name: str) -> None:
    parameters = {parameter.name for parameter in commands(torchkiln)[name].params}
    assert parameters >= {"torch", "cuda", "flavor", "os_names", "python", "matrix_file"}
    assert parameters & {"name", "names", "target", "folder"}  # a project's folder has its lock
    assert set(COMMANDS) >= {name.split()[0]}


def test_verify_reads_a_layout_that_others_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` checks every byte and runs nothing. `run` refuses a layout that other users can write to."""
    layout = layout_of(tmp_path)
    layout.path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    for words in ([f"{layout.path}:{TAG}"], [str(layout.path)], [TAG, "--output", str(layout.path)]):
        assert CliRunner().invoke(torchkiln, ["verify", *words], catch_exceptions=False).exit_code == 0
    refused = CliRunner().invoke(torchkiln, ["run", f"{layout.path}:{TAG}", "--", "true"])
    assert isinstance(refused.exception, ConfigError)


@pytest.mark.parametrize("words", [["explain", "--json"], ["list", "--json"], ["plan", "--json"]])
@pytest.mark.parametrize("name", [TAG, *ALIASES])
def test_commands_of_cells_by_name(words: list[str], name: str) -> None:
    done = CliRunner().invoke(torchkiln, [*words, name], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found[0] if isinstance(found, list) else found)["tag"] == TAG


@pytest.mark.parametrize("name", [TAG, *ALIASES, "DIR", "DIR:v2.7"])
def test_verify_by_name(tmp_path: Path, name: str) -> None:
    layout = layout_of(tmp_path, *ALIASES)
    words = [name.replace("DIR", str(layout.path)), "--output", str(layout.path)]
    done = CliRunner().invoke(torchkiln, ["verify", *words], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"{layout.image(TAG).manifest} {TAG}\n" in done.stdout


def test_diff_of_an_alias_and_another_layout(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, *ALIASES)
    words = ["v2.7", f"{layout.path}:{TAG}", "--output", str(layout.path), "--exit-code"]
    assert CliRunner().invoke(torchkiln, ["diff", *words]).exit_code == 0
