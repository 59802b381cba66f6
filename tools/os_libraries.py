"""Write torchkiln/data/os_libraries.json: which OS package has a shared library, from the archives' Contents.

    .venv/bin/python -m tools.os_libraries debian12=bookworm.gz debian13=trixie.gz ubuntu22.04=jammy.gz ...

The files are `dists/SUITE/main/Contents-amd64.gz` of Debian and `dists/SUITE/Contents-amd64.gz` of Ubuntu.
The libraries are those of the present file, and names that are given in addition (libX11.so.6).
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).parent.parent / "torchkiln" / "data" / "os_libraries.json"
_LINE = re.compile(r"(?:usr/)?lib/(?:x86_64-linux-gnu/)?(?P<name>[^/ ]+\.so[.\d]*)\s+(?P<places>\S+)")
_LATER = re.compile(r"(?:^|/)(?:lib)?[a-z0-9.+-]*(?:-dev|-dbg|-cross)$")


def packages(path: Path, names: set[str]) -> dict[str, str]:
    """The package that has each of *names* in the archive whose Contents are *path*."""
    found: dict[str, str] = {}
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            match = _LINE.match(line)
            if match and match["name"] in names:
                own = [place.rpartition("/")[2] for place in match["places"].split(",")]
                own += [found[match["name"]]] if match["name"] in found else []
                found[match["name"]] = min(
                    (one for one in own if not _LATER.search(one)), key=_rank, default=""
                )
    return {name: package for name, package in found.items() if package}


def _rank(package: str) -> tuple[bool, int, str]:
    return not package.startswith("lib"), len(package), package


def main() -> None:
    """Rewrite the file."""
    contents = dict(one.split("=") for one in sys.argv[1:] if "=" in one)
    data = json.loads(FILE.read_text())
    names = {*data["libraries"], *(one for one in sys.argv[1:] if "=" not in one)}
    by_os = {os: packages(Path(path), names) for os, path in contents.items()}
    libraries = {}
    for name in sorted(names):
        found = {os: by_os[os][name] for os in contents if name in by_os[os]}
        if found:
            everywhere = len(found) == len(contents) and len({*found.values()}) == 1
            libraries[name] = found[min(found)] if everywhere else found
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in libraries.items())
    head = json.dumps({**data, "libraries": {}}, indent=1).removesuffix("{}\n}")
    FILE.write_text(f"{head}{{\n{rows}\n }}\n}}\n")


if __name__ == "__main__":
    main()
