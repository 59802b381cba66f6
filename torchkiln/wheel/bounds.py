"""The sizes that a wheel's directory tells → whether it may cost that much. Pure.

What an entry inflates to is bounded by what the directory says; here the directory itself is bounded. The
limits lie far above the largest wheels known, and below what would fill a machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchkiln.wheel.install import is_script

MOST_FOLDERS = 50_000  # jedi has 960; each is a header in the layer
MOST_UNPACKED = 20_000_000_000  # bytes of a wheel's files together; torch 2.7.1 has 1.6 GB
# Unpacked bytes for each byte of the wheel; 7.5 is the most among torch 2.7.1's 127 wheels.
MOST_RATIO = 100
_SMALL = 1_000_000_000  # unpacked bytes that are nothing to worry about, whatever their ratio
SCRIPT = 1 << 20  # bytes; scripts up to this size are held back and may be rewritten
_SCRIPTS = 64 << 20  # bytes of scripts held at a time
_SOURCE = 16 << 20  # bytes of one Python source: a compiler makes many more; torch's largest has 1.2 MB
# What is held whole, by its name in .dist-info; the largest real ones have 57 kB and 1.2 MB.
_METADATA = {"METADATA": 4 << 20, "WHEEL": 1 << 20, "entry_points.txt": 1 << 20, "RECORD": 16 << 20}


def fault(files: Iterable[tuple[str, int]], wheel: int) -> str:
    """What is too large about a wheel of *wheel* bytes with *files* (name, bytes); empty for nothing."""
    total = scripts = 0
    for name, size in files:
        most = _most(name)
        if most is not None and size > most:
            return f"entry {name!r} is {size} bytes; {most} at most for its kind"
        total += size
        if is_script(name) and size <= SCRIPT:
            scripts += size
    if scripts > _SCRIPTS:
        return f"{scripts} bytes of scripts; {_SCRIPTS} at most"
    if total > MOST_UNPACKED or total > max(_SMALL, wheel * MOST_RATIO):
        return (
            f"unpacks to {total} bytes, {total // max(1, wheel)} times its own size; "
            f"{MOST_UNPACKED} bytes and {MOST_RATIO} times at most"
        )
    return ""


def _most(name: str) -> int | None:
    """The bytes that the entry *name* may have; None where only the sum counts."""
    top, _, rest = name.partition("/")
    if top.endswith(".dist-info") and rest in _METADATA:
        return _METADATA[rest]
    return _SOURCE if name.endswith(".py") else None
