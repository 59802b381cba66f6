"""Finds the generated files in docs/ that are stale, and writes or lists them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from torchkiln.util.files import write_atomic


def stale_in(docs: Path, made: Mapping[str, str], pictures: str) -> dict[str, str | None]:
    """The files in *docs* that differ from *made*: the new content by name; None: to be deleted.

    :param pictures: the glob pattern of pictures, all of which are generated.
    """
    found: dict[str, str | None] = {path.name: None for path in docs.glob(pictures) if path.name not in made}
    for name, text in made.items():
        path = docs / name
        if not path.is_file() or path.read_text() != text:
            found[name] = text
    return found


def write_or_check(docs: Path, stale: Mapping[str, str | None], script: str) -> int:
    """Write the *stale* files into *docs*, or with --check list them; returns the exit code."""
    if "--check" in sys.argv[1:]:
        sys.stderr.write("".join(f"docs/{name}: stale\n" for name in stale))
        sys.stderr.write(f"hint: run: .venv/bin/python {script}\n" * bool(stale))
        return 5 if stale else 0
    for name, text in stale.items():
        if text is None:
            (docs / name).unlink()
        else:
            write_atomic(docs / name, text.encode())
    return 0
