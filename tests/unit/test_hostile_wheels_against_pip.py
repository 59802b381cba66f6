"""The odd wheels that are taken: the layer holds what real pip installs. And the page that tells of all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agreement import agree
from tests.hostile import KINDS, SPEC, TAKEN, table
from tests.realpip import RealPip, pip_folder
from tests.wheels import write_wheel


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPip]:
    running = RealPip(pip_folder(tmp_path_factory.mktemp("pip")))
    yield running
    running.close()


@pytest.mark.network
@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_taken_is_what_pip_installs(kind: str, pip: RealPip, tmp_path: Path) -> None:
    """Every path, type, mode and byte."""
    honest = write_wheel(SPEC, tmp_path / "honest")
    agree(TAKEN[kind].write(honest, tmp_path / "wheels"), pip, tmp_path / "root")


def test_the_page_tells_what_is_told() -> None:
    """`make golden` writes it anew; there pip is asked again too."""
    text = table.PAGE.read_text()
    pips = {name: theirs for name, (_, theirs) in table.rows(text).items()}
    ours = table.messages()

    assert [name for name in KINDS if table._cell(name) not in pips] == []
    assert text == table.page(ours, {name: pips[table._cell(name)] for name in KINDS})
