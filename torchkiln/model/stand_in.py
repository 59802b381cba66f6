"""An address that calls itself a stand-in -> the address; and a lock that rests on such -> words.

A stand-in is a server in the layout of a source that cannot be reached: what is resolved against it shows
that the code works, and nothing of the real source. Who sets it up puts `stand-in+` before its address, and
the lock keeps it: `gate`, `publish` and `build --locked` then refuse.
"""

from __future__ import annotations

from torchkiln.model.cell import Source
from torchkiln.model.lock import LockedCell

PREFIX = "stand-in+"
TOOLKIT = "rules.toolkit-stand-in"  # stands among a cell's limits where its archives are not NVIDIA's
_NAMES = {Source.PYTORCH: "PyTorch's own index", Source.DEFAULT: "the default index"}


def declared(address: str) -> tuple[str, bool]:
    """*address* without the word that makes it a stand-in, and whether it had it."""
    text = address.strip()
    return text.removeprefix(PREFIX), text.startswith(PREFIX)


def stand_ins(locked: LockedCell) -> tuple[str, ...]:
    """What *locked* was resolved against stand-ins of, as people read it; empty: nothing."""
    of_archive = locked.base.stand_in or bool(locked.tools and locked.tools.stand_in)
    base = (f"the archive of {locked.base.os}",) if of_archive else ()
    toolkit = any(note.fact == TOOLKIT for note in locked.resolution.limits)
    indexes = (_NAMES[source] for source in locked.stand_ins)
    return (*indexes, *base, *(["NVIDIA's archives"] if toolkit else []))


def resolved_against(names: tuple[str, ...]) -> str:
    """The sentence for `stand_ins`, which are not empty."""
    return f"resolved against a stand-in of {' and of '.join(names)}"
