"""Builds, tests and publishes PyTorch GPU container images.

docs/library.md describes the functions.
"""

__version__ = "0.1.0"

# The first import of a subpackage binds its name here. These three are imported before the functions of the
# same names, so that the names stay bound to the functions.
from torchkiln import build as _build_package  # noqa: F401
from torchkiln import lock as _lock_package  # noqa: F401
from torchkiln import publish as _publish_package  # noqa: F401
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
