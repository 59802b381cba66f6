"""An address that is marked as untrusted -> the address; and whether a lock uses an untrusted source.

An untrusted source has the layout of a package index or an archive, and nobody vouches for what it serves: a
server of the tests, for example. The user writes `untrusted+` before its address. The lock keeps that as one
flag, and `gate`, `publish` and `build --locked` refuse such a lock.
"""

from __future__ import annotations

from torchkiln.errors import ConfigError
from torchkiln.model.lock import LockedCell

PREFIX = "untrusted+"
TOOLKIT = "rules.untrusted-toolkit"  # among a cell's limits where its archives are not NVIDIA's
USES = "uses an untrusted source"  # what messages say of a lock
_FORMER = "stand-in+"  # the prefix of earlier versions


def declared(address: str) -> tuple[str, bool]:
    """*address* without the prefix, and whether it had it.

    :raises ConfigError: it has the prefix of earlier versions.
    """
    text = address.strip()
    if text.startswith(_FORMER):
        raise ConfigError(
            f"an address begins with {_FORMER}, which is no longer supported", hint=f"write {PREFIX} instead"
        )
    return text.removeprefix(PREFIX), text.startswith(PREFIX)


def is_untrusted(locked: LockedCell) -> bool:
    """Whether an index, the base, the tools or the CUDA archives of *locked* are from an untrusted source."""
    return (
        locked.untrusted
        or locked.base.untrusted
        or (locked.tools is not None and locked.tools.untrusted)
        or any(limit.fact == TOOLKIT for limit in locked.resolution.limits)
    )
