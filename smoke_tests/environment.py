"""The environment of this Python -> facts, where no lock says what it should be.

What was installed says it instead: a library's own version is held against its distribution's.
"""

from __future__ import annotations

import sys
from typing import Any

from smoke_tests.probe import probe


class NoTorchError(Exception):
    """This environment has no torch that imports, so there is nothing to check; one sentence."""


def environment_facts() -> dict[str, Any]:
    """Facts as `torchkiln.claims` writes them for an image, as far as an environment can know them.

    :raises NoTorchError: torch cannot be imported.
    """
    try:
        return {"claims": probe("environment"), "labels": {}, "wheels": []}
    except AssertionError as error:
        last = str(error).splitlines()[-1]
        raise NoTorchError(f"{sys.executable} has no torch that imports: {last}") from None
