"""Reads untrusted TOML. Its structure is limited before it is parsed, which could exhaust memory or time."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from typing import Any

from torchkiln.util.strict_json import limit, text_of

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # the same code

DEPTH = 16  # levels of brackets, and parts of a key; the deepest known pyproject.toml has eight
VALUES = 1 << 18  # values, parts of keys and lines, of up to a kilobyte; a uv.lock of 200 packages has 35,000
_WORD, _DIGITS = 200, 1_000  # characters of a number or bare key; digits in strings: versions are integers
# Strings and comments, as in the grammar, if escapes are removed. The end of the text ends each of them.
_QUOTED = re.compile(
    r'"""(?s:.*?)(?:"{3,5}|\Z)' r"|'''(?s:.*?)(?:'{3,5}|\Z)" r'|"[^"\n]*(?:"|$)' r"|'[^'\n]*(?:'|$)|#.*",
    re.MULTILINE,
)
_OTHER = re.compile(r"[^.,=\[\]{}\n]+")
_NUMBER = re.compile(rf"(?<!\d)\d{{{_DIGITS + 1}}}")
_LONG = re.compile(rf"(?<![^\s.,=\[\]{{}}])[^\s.,=\[\]{{}}]{{{_WORD + 1}}}")


def toml_of(data: bytes) -> dict[str, Any]:
    """*data* as a TOML document.

    :raises ValueError: it is not UTF-8, not TOML, or exceeds a limit.
    """
    text = text_of(data).replace("\r\n", "\n")
    bare = _QUOTED.sub("", text.replace("\\\\", "").replace('\\"', ""))
    if _LONG.search(bare) or _NUMBER.search(text):
        raise ValueError(f"a number of more than {_DIGITS} digits, or a word of more than {_WORD} characters")
    structure = _OTHER.sub("", bare)
    if "." * DEPTH in structure:
        raise ValueError(f"a key of more than {DEPTH} parts")
    limit(re.sub(r"[.=\n]", ",", structure), DEPTH, VALUES)
    try:
        return dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
