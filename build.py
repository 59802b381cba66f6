#!/usr/bin/env python3
"""Runs torchkiln from a checkout: `python build.py OPTIONS` is `torchkiln build OPTIONS`."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until torchkiln handles it: no traceback during an import

import importlib.util  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
MODULES = (
    *("click", "deflate", "isal", "jinja2", "jsonschema", "msgspec", "packaging", "platformdirs"),
    *("pypi_simple", "requests", "rich", "uv", "yaml"),
    *(() if sys.version_info >= (3, 14) else ("backports.zstd",)),
)


def is_installed(name: str) -> bool:
    """Whether the module *name* can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


def main() -> None:
    """Run torchkiln with the Python of .venv if there is one, else with this one if it has the modules."""
    python = VENV / "bin" / "python"
    # os.access is False if .venv belongs to another user and cannot be used; this Python may be enough then.
    if Path(sys.prefix).resolve() != VENV.resolve() and os.access(python, os.X_OK):
        os.execv(python, [str(python), *sys.argv])
    if missing := [name for name in MODULES if not is_installed(name)]:
        sys.stderr.write(f"error: modules are not installed: {', '.join(missing)}\nhint: run: make setup\n")
        sys.exit(8)
    sys.path.insert(0, str(HERE))
    from torchkiln.cli import main as run

    run()


if __name__ == "__main__":
    main()
