"""Defines the paths of the repository's own files: torchkiln runs from its checkout."""

from __future__ import annotations

from pathlib import Path

# The package is installed editable, so the folder above it is the checkout. The files for images are outside
# the package so that people can read and change them without the Python code.
ROOT = Path(__file__).resolve().parents[2]
ROOTFS = ROOT / "rootfs"
TEMPLATES = ROOT / "templates"
