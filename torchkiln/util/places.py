"""Defines where torchkiln's own files are: in its checkout, or inside the installed package."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# The files for images are outside the package so that people can read and change them without the Python
# code. A wheel has copies of them in this folder (pyproject.toml); a checkout does not have it.
SHIPPED = PACKAGE / "shipped"
INSTALLED = SHIPPED.is_dir()
ROOT = SHIPPED if INSTALLED else PACKAGE.parent
ROOTFS = ROOT / "rootfs"
TEMPLATES = ROOT / "templates"
SMOKE_TESTS = ROOT / "smoke_tests"
IMAGES = ROOT / "images"  # in a wheel only the bases
MATRIX = ROOT / "matrix.yaml"
HOW_TO_INSTALL = "install torchkiln again" if INSTALLED else "run: make setup"  # a hint for missing libraries


def how_to_restore(path: str) -> str:
    """A hint for a damaged or missing file of torchkiln; *path* is relative to the checkout."""
    return "install torchkiln again" if INSTALLED else f"restore it: git checkout -- {path}"
