"""The environment of this Python -> facts, where no lock says what it should be.

What was installed says it instead: a library's own version is held against its distribution's.
"""

from __future__ import annotations

from typing import Any

from smoke_tests.probe import probe


def environment_facts() -> dict[str, Any]:
    """Facts as `torchkiln.claims` writes them for an image, as far as an environment can know them.

    :raises AssertionError: torch cannot be imported; what it said.
    """
    return {"claims": probe("environment"), "labels": {}, "wheels": []}
