"""docs/troubles.md: the errors that need no torch, in containers of a small image."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.place import shared
from tests.needs import without_gpus
from tests.troubles import Example, demand_output, for_image
from tests.workplace import Workplace

__all__ = ["shared"]

pytestmark = [pytest.mark.network, without_gpus]  # wheels, and if it is not cached, the base


@pytest.mark.parametrize("example", for_image("small"))
def test_errors_of_the_page(example: Example, workplace: Workplace, shared: Path) -> None:
    """Each command of the page prints the lines of the page. ./workspace belongs to root."""
    shared.chmod(0o755)
    (shared / "workspace").mkdir()
    demand_output(example, workplace.image, workplace.environ, shared)
