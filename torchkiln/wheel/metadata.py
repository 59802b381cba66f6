"""Reads METADATA of a wheel on disk, which is not trusted."""

from __future__ import annotations

from pathlib import Path

from torchkiln.errors import BadWheel
from torchkiln.model.index import METADATA_LIMIT
from torchkiln.wheel.content import SecondRead, whole
from torchkiln.wheel.entries import entries
from torchkiln.wheel.source import WheelFile


def metadata_in(path: Path, filename: str) -> bytes:
    """METADATA of the wheel *filename* at *path*.

    A longer text is cut to METADATA_LIMIT + 1 bytes, so that `read_metadata` refuses it.

    :raises BadWheel: METADATA cannot be read, or the wheel is refused.
    """
    try:
        with WheelFile(path, path.stat().st_size) as file:  # `entries` limits the size of METADATA
            named = [
                entry
                for entry in entries(file, filename)
                if entry.name.endswith(".dist-info/METADATA") and entry.name.count("/") == 1
            ]
            if len(named) != 1:
                raise ValueError("no METADATA" if not named else "more than one METADATA")
            return whole(SecondRead(file, named[0]), named[0], filename)[: METADATA_LIMIT + 1]
    except (OSError, ValueError, EOFError) as error:
        raise BadWheel(filename, f"METADATA cannot be read: {error}") from error
