"""Reads untrusted TOML."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from torchkiln.util.strict_json import text_of

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # the same code


def toml_of(data: bytes) -> dict[str, Any]:
    """*data* as a TOML document.

    :raises ValueError: it is not UTF-8, not TOML, or nested too deeply.
    """
    text = text_of(data).replace("\r\n", "\n")
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return found
