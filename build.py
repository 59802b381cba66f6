#!/usr/bin/env python3
"""The door: `python build.py --torch 2.7 --cuda 12.1` is `torchkiln build --torch 2.7 --cuda 12.1`."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until torchkiln listens: no traceback of an import

import importlib.util  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
NEEDED = ("click", "deflate", "filelock", "isal", "jinja2", "jsonschema", "packaging")
ALSO_NEEDED = (
    *(() if sys.version_info >= (3, 14) else ("backports.zstd",)),
    "msgspec",
    "platformdirs",
    "pypi_simple",
    "requests",
    "rich",
    "uv",
    "yaml",
)


def is_there(name: str) -> bool:
    """Whether the module *name* can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its package
        return False


def main() -> None:
    """Run torchkiln with .venv's Python where there is one, else with this one if it has what is needed."""
    python = VENV / "bin" / "python"
    # os.access: it is False where .venv is another user's, for whom this Python may do.
    if Path(sys.prefix).resolve() != VENV.resolve() and os.access(python, os.X_OK):
        os.execv(python, [str(python), *sys.argv])
    if missing := [name for name in (*NEEDED, *ALSO_NEEDED) if not is_there(name)]:
        print(
            f"error: not installed: {', '.join(missing)}", "hint: run: make setup", sep="\n", file=sys.stderr
        )
        sys.exit(8)
    sys.path.insert(0, str(HERE))
    from torchkiln.cli import main as run

    run()


if __name__ == "__main__":
    main()
