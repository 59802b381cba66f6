"""Parse the tag of an image."""

from __future__ import annotations

import re

DEFAULT_OS = "debian12"
_TAG = re.compile(
    r"(?P<torch>[\d.]+)-cuda(?P<cuda>[\d.]+)-cudnn(?P<cudnn>\d+)-(?P<flavor>runtime|devel)"
    r"(?:-(?!(?:debian|ubuntu)\d)[a-z][a-z0-9]*)*"  # what it has beside, a word each
    r"(?:-(?P<os>(?:debian|ubuntu)[\d.]+))?"
)


def parse_tag(tag: str) -> dict[str, str | None]:
    """The parts of `2.7.1-cuda12.1-cudnn9-runtime`; all None if *tag* is not such a tag."""
    found = _TAG.fullmatch(tag)
    if not found:
        return dict.fromkeys(("torch", "cuda", "cudnn", "flavor", "os"))
    return found.groupdict() | {"os": found["os"] or DEFAULT_OS}
