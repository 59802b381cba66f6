"""The text that `help` prints."""

from __future__ import annotations

import textwrap

from workplace.image import Image
from workplace.messages import message
from workplace.settings import switches

WIDTH = 100  # columns
_NAMES = 29  # columns for the names of settings


def text(image: Image) -> str:
    """Usage, the table of settings, and notes."""
    head = message("help.head", tag=image.tag, torch=image.torch, min_driver=image.min_driver)
    settings = f"{message('help.settings')}\n{_switches()}"
    return "\n\n".join((head, message("help.use"), settings, message("help.more")))


def _switches() -> str:
    rows = []
    for name, default, meaning in switches():
        text = f"{meaning} [{default}]" if default else meaning
        first, *rest = textwrap.wrap(text, WIDTH - _NAMES - 3)
        rows.append(f"  {name:<{_NAMES}} {first}")
        rows += [f"  {'':<{_NAMES}} {line}" for line in rest]
    return "\n".join(rows)
