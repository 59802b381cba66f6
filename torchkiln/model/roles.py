"""The roles in which a key's signature counts.

A laboratory runs the checks and signs smoke reports. A publisher signs everything else that goes with an
image.
"""

from __future__ import annotations

from typing import Literal

Role = Literal["publisher", "laboratory"]
ROLES: tuple[Role, ...] = ("publisher", "laboratory")
