"""Prints the libraries that the loader does not find, as JSON. Runs in an image, next to the smoke suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from smoke_tests.elf import read_elf
from smoke_tests.linkage import read_linkage, sonames
from smoke_tests.probe import probe

PREFIX = Path(sys.prefix)


def main() -> None:
    """Print one JSON object."""
    found = read_linkage(PREFIX)
    users = users_of({Path(file).name for file, _ in found.unfound}) if found.unfound else {}
    missing = [pair for pair in found.unfound if not found_by_users(*pair, users)]
    missing += found.unfound_programs
    loaded, fault = list[str](), ""
    if missing:
        try:
            loaded = sorted(sonames(probe("loaded")))  # by `import torch`
        except AssertionError as error:
            fault = str(error)
    values = {"missing": missing, "loaded": loaded, "import_torch": fault, "versions": found.unversioned}
    sys.stdout.write(json.dumps(values) + "\n")


def found_by_users(file: str, soname: str, users: Mapping[str, list[Path]]) -> bool:
    """Whether the loader finds *soname* from each library that needs *file*; False if none needs it.

    The DT_RPATH of a library also applies to the libraries that its dependencies need. For example, the
    libraries in scipy.libs have no DT_RPATH, but the libraries that load them have one.
    """
    needing = users.get(Path(file).name, [])
    return bool(needing) and all(soname in closure(path) for path in needing)


def users_of(names: set[str]) -> dict[str, list[Path]]:
    """The libraries that need a library in *names*, by its name."""
    found: dict[str, list[Path]] = {}
    for path in _libraries():
        elf = read_elf(path)
        for name in names.intersection(elf.needed if elf else ()):
            found.setdefault(name, []).append(path)
    return found


def closure(path: Path) -> set[str]:
    """The names of all libraries that the loader finds for *path*."""
    own = read_elf(Path(os.path.realpath(sys.executable)))
    assert own is not None, sys.executable
    assert own.interpreter, sys.executable
    done = subprocess.run(
        [own.interpreter, str(path)],
        env=os.environ | {"LD_TRACE_LOADED_OBJECTS": "1"},  # as ldd does
        capture_output=True,
        text=True,
        check=False,
    )
    pairs = (line.strip().partition(" => ") for line in done.stdout.splitlines())
    return {name for name, arrow, place in pairs if arrow and not place.startswith("not found")}


def _libraries() -> Iterator[Path]:
    for folder, _, names in os.walk(PREFIX):
        for name in names:
            path = Path(folder, name)
            if ".so" in name and path.is_file() and not path.is_symlink():
                yield path


if __name__ == "__main__":
    main()
