"""Defines the numbers and paths that decide an image's bytes. It imports no other module of torchkiln."""

from __future__ import annotations

RECIPE = 3  # increase it when the same lock results in other bytes; plan and image.json contain it

DEVICE_CODE_RULE = 1  # increase it when the same wheel, cut for the same GPUs, results in other bytes

PREFIX = "/opt/venv"  # the virtual environment, first on PATH
USER = "user"  # the account, uid 1000, for people who do not work as root
WHEEL_EPOCH = 315532800  # mtime of every file from a wheel: 1980-01-01, the oldest date of the zip format
BIG_WHEEL = 20_000_000  # bytes; from this size on a wheel has its own layer
MAX_LAYER = 5_000_000_000  # bytes compressed: registries refuse layers of 8 to 10 GB


def site(python: str) -> str:
    """site-packages of *python* "3.11" or "3.11.2": `/opt/venv/lib/python3.11/site-packages`."""
    return f"{PREFIX}/lib/python{minor(python)}/site-packages"


def minor(python: str) -> str:
    """`"3.11"` of `"3.11.2"`."""
    return ".".join(python.split(".")[:2])
