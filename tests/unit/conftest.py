"""`import workplace` is the package that runs inside images, as it lies below rootfs/."""

import sys
from importlib import import_module
from pkgutil import iter_modules

from torchkiln.util.places import ROOTFS

_FOLDER = ROOTFS / "opt/torchkiln/workplace"


def _bring() -> None:
    """All of it at once, so that no __pycache__ comes to lie beside it."""
    sys.path.append(str(_FOLDER.parent))
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    for module in iter_modules([str(_FOLDER)]):
        if module.name != "__main__":
            import_module(f"workplace.{module.name}")
    sys.dont_write_bytecode = kept


_bring()
