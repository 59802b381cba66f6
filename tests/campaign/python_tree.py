"""The files of a base's Python: Debian's python3, its loader and libraries, and some modules.

The modules are those that torchkiln's byte-code compilation imports.

A base's Python runs in a sandbox with only the base's files. So a script that starts the host's Python would
not work there.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_MODULES = (
    "encodings.utf_8, encodings.ascii, encodings.latin_1, hashlib, importlib.util, os, struct, warnings"
)
_LIST_FILES = f"""
import json, sys, {_MODULES}
files = [one.__file__ for one in sys.modules.values() if getattr(one, "__file__", None)]
print(json.dumps([os.path.dirname(os.__file__), *files]))
"""


def python_tree() -> dict[str, tuple[int, bytes]]:
    """The files: path from the root → mode and content."""
    program = Path("/usr/bin/python3").resolve()  # not this process's Python, which may need a libpython
    listed = subprocess.run(
        [program, "-I", "-S", "-B", "-c", _LIST_FILES], capture_output=True, text=True, check=True
    )
    stdlib, *modules = (Path(file).resolve() for file in json.loads(listed.stdout))
    found = {"usr/bin/python3.11": (0o755, program.read_bytes())}
    for path in (path for path in modules if path.is_relative_to(stdlib)):
        found[f"usr/lib/python3.11/{path.relative_to(stdlib)}"] = (0o644, path.read_bytes())
    for path in {library for file in (program, *modules) for library in _needed(file)}:
        found[f"{_LIBRARIES}/{path.name}"] = (0o755, path.resolve().read_bytes())
    return found


def _needed(file: Path) -> list[Path]:
    """The libraries that a program or an extension module loads, including its loader."""
    if file.suffix == ".py":
        return []
    output = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", output)]
