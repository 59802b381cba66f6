"""Defines the roles of signing keys.

A laboratory runs the checks and signs smoke reports. A publisher signs everything else that belongs to an
image.
"""

from __future__ import annotations

from typing import Literal

Role = Literal["publisher", "laboratory"]
ROLES: tuple[Role, ...] = ("publisher", "laboratory")
