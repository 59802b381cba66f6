"""The numbers and paths that decide an image's bytes, in one place; this module imports nothing of ours."""

from __future__ import annotations

RECIPE = 3  # raise it when the same lock would give other bytes; it stands in the plan and in image.json

PREFIX = "/opt/venv"  # the virtual environment, first on PATH
USER = "user"  # the account, uid 1000, for people who do not work as root
WHEEL_EPOCH = 315532800  # mtime of every file from a wheel, seconds: 1980-01-01, the oldest a zip can tell
BIG_WHEEL = 20_000_000  # bytes; from here on a wheel has a layer of its own
MAX_LAYER = 5_000_000_000  # bytes compressed: registries refuse layers of 8 to 10 GB


def site(python: str) -> str:
    """Where packages go: `/opt/venv/lib/python3.11/site-packages` for *python* "3.11" or "3.11.2"."""
    return f"{PREFIX}/lib/python{minor(python)}/site-packages"


def minor(python: str) -> str:
    """`"3.11"` of `"3.11.2"`."""
    return ".".join(python.split(".")[:2])
