"""Where the repository's own files lie: torchkiln runs from its checkout, beside rootfs/ and templates/."""

from __future__ import annotations

from pathlib import Path

# The package is installed editable, so the folder above it is the checkout. What goes into images is kept
# outside the package on purpose: they are read and changed by people who never open the Python code.
ROOT = Path(__file__).resolve().parents[2]
ROOTFS = ROOT / "rootfs"
TEMPLATES = ROOT / "templates"
