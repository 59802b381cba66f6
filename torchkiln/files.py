"""Writing files so that a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write *data* to *path* by way of a temporary neighbour; the parent folder is made.

    :raises OSError: the folder cannot be written or the disk is full; *path* is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def pretty_json(value: Any) -> bytes:
    """The one JSON form of committed files: indented, ASCII, a newline at the end; key order kept."""
    return (json.dumps(value, indent=2) + "\n").encode()
