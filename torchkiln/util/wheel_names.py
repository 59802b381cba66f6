"""Parses file names of wheels. Their three sets of tags stand for a product, which is limited here."""

from __future__ import annotations

from math import prod

from packaging import tags, utils
from packaging.utils import BuildTag, InvalidWheelFilename, NormalizedName
from packaging.version import Version

_TAGS, _LONGEST = 256, 4_000  # tags and characters; names on PyPI have up to 50 tags


def parse_wheel_filename(name: str) -> tuple[NormalizedName, Version, BuildTag, frozenset[tags.Tag]]:
    """As in `packaging`, for a `limited` name."""
    return utils.parse_wheel_filename(limited(name))


def limited(text: str) -> str:
    """*text*, tags or a path that ends in tags; :raises InvalidWheelFilename: these are too many."""
    count = prod(part.count(".") + 1 for part in text.removesuffix(".whl").split("-")[-3:])
    if count > _TAGS or len(text) > _LONGEST:
        raise InvalidWheelFilename(f"more than {_TAGS} tags, or {_LONGEST} characters: {text[-100:]!r}")
    return text
