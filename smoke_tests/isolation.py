"""Start Python without the start-up code of the image, and find the image's packages all the same.

`python -I -S` runs no .pth file, no sitecustomize and no usercustomize. But then the folders of packages are
not on sys.path, and sys.prefix is not the virtual environment's: `add_packages` sets both, as site does.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

# These are never loaded from the image.
PYTEST = frozenset({"pytest", "_pytest", "pluggy", "iniconfig", "py"})
# Variables that make the loader, Python or pytest run other code.
_PREFIXES = ("LD_", "PYTEST_", "PYTHON", "GLIBC_TUNABLES")
# On some hosts LD_LIBRARY_PATH has the driver's folder. torchkiln on the host reports an image that sets it.
_OF_HOST = "LD_LIBRARY_PATH"


def flags() -> list[str]:
    """The options for a Python that is isolated as this one is."""
    return ["-I", *(["-S"] if sys.flags.no_site else []), "-B"]


def add_packages() -> None:
    """Set sys.prefix and add the folders of packages to sys.path, if this Python was started with -S."""
    if not sys.flags.no_site:
        return
    settings = _pyvenv(Path(sys.executable).parent)
    if settings is not None:
        sys.prefix = sys.exec_prefix = settings.pop("")
    import site  # with -S the import only defines functions

    folders = site.getsitepackages([sys.prefix])
    if settings is not None and settings.get("include-system-site-packages") == "true":
        folders += site.getsitepackages([sys.base_prefix])
    sys.path += [path for path in dict.fromkeys(folders) if os.path.isdir(path) and path not in sys.path]


def _pyvenv(programs: Path) -> dict[str, str] | None:
    """The settings in pyvenv.cfg, and under "" the environment's folder; None: no virtual environment."""
    for folder in (programs, programs.parent):
        try:
            lines = (folder / "pyvenv.cfg").read_text("utf-8").splitlines()
        except OSError:
            continue
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {key.strip().lower(): value.strip().lower() for key, _, value in pairs} | {"": str(folder)}
    return None


class HarnessFinder:
    """Finds the modules of pytest in *folder*, before sys.path is searched."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder; None for modules that are not pytest's."""
        if path is not None or name not in PYTEST:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._folder])


def add_pytest(folder: str) -> None:
    """Import pytest from *folder* even if the image has pytest; other modules only if the image lacks
    them."""
    sys.meta_path.insert(0, HarnessFinder(folder))
    sys.path.append(folder)


def remove_unexpected(environ: MutableMapping[str, str], expected: Mapping[str, str] | None) -> None:
    """Delete variables that make a process run other code, unless they have the *expected* value.

    :param expected: the image's variables by its lock; None: without an image, only pytest's are deleted.
    """
    for name, value in list(environ.items()):
        dangerous = name.startswith(_PREFIXES if expected is not None else "PYTEST_")
        if dangerous and name != _OF_HOST and (expected or {}).get(name) != value:
            del environ[name]
