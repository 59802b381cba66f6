"""Reads the mark of untrusted sources in addresses, and finds it in locks.

An untrusted source is a package index or an archive whose files must not be published, such as a test
server. The user writes `untrusted+` before its address. The lock records that as one flag, and `gate`,
`publish` and `build --locked` refuse such a lock.
"""

from __future__ import annotations

from torchkiln.errors import ConfigError
from torchkiln.model.lock import LockedCell

PREFIX = "untrusted+"
TOOLKIT = "rules.untrusted-toolkit"  # the limit of a cell whose archives are not NVIDIA's
USES = "uses an untrusted source"  # for messages about a lock
_FORMER = "stand-in+"  # the prefix of earlier versions


def declared(address: str) -> tuple[str, bool]:
    """*address* without `PREFIX`, and whether *address* had it.

    :raises ConfigError: *address* has the prefix of earlier versions.
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
