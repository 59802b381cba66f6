"""docs/deploy.md: the commands of each section, for the tests that run them."""

from __future__ import annotations

import re

from torchkiln.util.places import ROOT

PAGE = ROOT / "docs/deploy.md"


def blocks(section: str) -> list[str]:
    """The fenced blocks below the heading *section*."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert found
    return found
