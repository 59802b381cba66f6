#!/usr/bin/env python3
"""The door: `python build.py --torch 2.7 --cuda 12.1` is `torchkiln build --torch 2.7 --cuda 12.1`."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run torchkiln with this Python, or with .venv's where this one lacks what it needs (else exit 8)."""
    sys.path.insert(0, str(HERE))
    try:
        from torchkiln.cli import main as run
    except ImportError as error:
        python = HERE / ".venv" / "bin" / "python"
        if Path(sys.prefix).resolve() == python.parent.parent or not python.exists():
            print(f"error: {error.name} is not installed", "hint: run: make setup", sep="\n", file=sys.stderr)
            sys.exit(8)
        os.execv(python, [str(python), *sys.argv])
    run()


if __name__ == "__main__":
    main()
