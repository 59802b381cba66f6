"""Facts of an environment that has no lock.

The expected versions are those of the installed distributions.
"""

from __future__ import annotations

import sys
from typing import Any

from smoke_tests.probe import probe


class NoTorchError(Exception):
    """torch cannot be imported in this environment, so there is nothing to check."""


def environment_facts() -> dict[str, Any]:
    """The facts of an environment that are known, in the form that torchkiln writes for an image.

    :raises NoTorchError: torch cannot be imported.
    """
    try:
        return {**probe("environment"), "labels": {}}
    except AssertionError as error:
        last = str(error).splitlines()[-1]
        raise NoTorchError(f"{sys.executable} has no torch that imports: {last}") from None
