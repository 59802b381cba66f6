"""Makes importable the package `workplace` in rootfs/, which runs inside images."""

import sys
from importlib import import_module
from pkgutil import iter_modules

from torchkiln.util.places import ROOTFS

_FOLDER = ROOTFS / "opt/torchkiln/workplace"


def _import_package() -> None:
    """Import every module at once, so that Python writes no __pycache__ below rootfs/."""
    sys.path.append(str(_FOLDER.parent))
    previous, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    for module in iter_modules([str(_FOLDER)]):
        if module.name != "__main__":
            import_module(f"workplace.{module.name}")
    sys.dont_write_bytecode = previous


_import_package()
