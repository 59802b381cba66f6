"""`plan` and `render` as a user calls them, with a copy of a committed lock."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchkiln.cli.plan import plan
from torchkiln.cli.render import render
from torchkiln.errors import NothingSelected, Stale
from torchkiln.util.places import ROOT

TAG = "2.7.1-cuda12.1-cudnn9-runtime"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with one locked cell, not rendered yet."""
    (tmp_path / TAG).mkdir()
    shutil.copy(ROOT / "images" / TAG / "lock.json", tmp_path / TAG)
    return tmp_path


def options(images: Path, *more: str) -> list[str]:
    return ["--images", str(images), "--matrix", str(ROOT / "matrix.yaml"), *more]


def test_check_names_every_stale_file_at_once(images: Path) -> None:
    CliRunner().invoke(render, options(images), catch_exceptions=False)
    folder = images / TAG
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (folder / "image.json").unlink()
    (folder / "requirements").mkdir()
    (folder / "requirements" / "99-gone.txt").write_text("")
    (folder / "constraints.txt").write_text("")

    with pytest.raises(Stale) as caught:
        CliRunner().invoke(render, options(images, "--check"), catch_exceptions=False)

    assert caught.value.message.splitlines() == [
        f"{folder}/Dockerfile: not up to date",
        f"{folder}/image.json: missing",
        f"{folder}/constraints.txt: no longer generated",
        f"{folder}/requirements/99-gone.txt: no longer generated",
    ]
    assert caught.value.exit_code == 5


def test_rendering_removes_the_files_of_earlier_versions(images: Path) -> None:
    stray = images / TAG / "requirements" / "99-gone.txt"
    stray.parent.mkdir()
    stray.write_text("")

    CliRunner().invoke(render, options(images), catch_exceptions=False)

    assert not stray.parent.exists()
    CliRunner().invoke(render, options(images, "--check"), catch_exceptions=False)


def test_a_named_cell_without_a_lock_is_reported(images: Path) -> None:
    with pytest.raises(Stale, match="not locked yet"):
        CliRunner().invoke(
            render, options(images, "--torch", "2.6", "--cuda", "12.1"), catch_exceptions=False
        )


def test_without_locks_nothing_is_selected(tmp_path: Path) -> None:
    with pytest.raises(NothingSelected):
        CliRunner().invoke(render, options(tmp_path), catch_exceptions=False)


def test_plan_prints_a_table_or_json(images: Path) -> None:
    cell_options = options(images, "--torch", "2.7", "--cuda", "12.1")

    table = CliRunner().invoke(plan, cell_options, catch_exceptions=False).stdout
    result = json.loads(CliRunner().invoke(plan, [*cell_options, "--json"], catch_exceptions=False).stdout)

    assert [layer["title"] in table for layer in result["layers"]] == [True] * len(result["layers"])
    assert result["tag"] == TAG
