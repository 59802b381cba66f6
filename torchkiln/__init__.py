"""Builds, tests and publishes PyTorch GPU container images.

docs/project-folder.md describes the functions.
"""

__version__ = "0.1.0"

from torchkiln.api import CellName, Project, build, build_project, explain, lock, publish, verify

__all__ = [
    "CellName",
    "Project",
    "__version__",
    "build",
    "build_project",
    "explain",
    "lock",
    "publish",
    "verify",
]
