"""The kinds -> docs/hostile-wheels.md: what ours tells of each, and what pip does with the same file.

`python -m tests.hostile.table` (part of `make golden`) really runs pip on each of them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.hostile import GROUPS, KINDS, REFUSED, SPEC
from tests.layers import layer_of, sha256
from tests.realpip import RealPip, pip_folder
from tests.wheels import write_wheel
from torchkiln.errors import BadWheel
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT

PAGE = ROOT / "docs" / "hostile-wheels.md"
FUZZ = ROOT / "docs" / "fuzz.json"
TAKES = "taken"

HEAD = """# Hostile wheels

A wheel comes from elsewhere, and a build reads it before anybody else has. Below are {all} kinds of wheels
that are not as they should be. Each is made of one honest wheel by one change. {refused} are refused: the
build ends with exit code 6, names the wheel and the reason, and leaves no layer, no wheel and no image
behind. {taken} are odd but have one meaning: they are taken, and a test sees that the layer holds what pip
installs.

The third column is what the pip of the locks does with the same file, seen by running it. Of the {refused}
that we refuse pip takes {stricter}: it reads zips as `zipfile` does, which forgives much, and does not
compare files with RECORD. Where pip takes what we refuse, that is meant: such a wheel either lies about its
bytes, or would mean something else to another reader.

`tests/hostile/` makes them, `tests/unit/test_hostile_wheels.py` and `test_hostile_wheels_against_pip.py`
hold ours to this page. The first also reads all of them in one process that may have 128 MiB of addresses
more than an honest wheel took.

## Bounds

| what | at most | the largest among torch 2.7.1's 127 wheels |
| --- | --- | --- |
| entries of a wheel | 200,000 | 11,010 |
| bytes of its directory | 32 MiB | 1.4 MB |
| folders | 50,000 | 960 |
| unpacked bytes | 20 GB | 1.6 GB |
| unpacked, if more than 1 GB, for each byte of the wheel | 100 | 7.5 |
| METADATA; WHEEL, entry_points.txt; RECORD | 4; 1; 16 MiB | 57 kB; 2.4 kB; 1.2 MB |
| a Python source | 16 MiB | 1.2 MB |
| scripts of up to 1 MiB, together | 64 MiB | - |

The sizes in the directory are binding: what inflates to more is cut off there. One entry alone may have a
high ratio: a library in Pillow's wheel has 224.
"""


def told() -> dict[str, str]:
    """Kind → the reason that ours gives; TAKES if none."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        honest = write_wheel(SPEC, Path(scratch) / "honest")
        for name, kind in KINDS.items():
            wheel = kind.write(honest, Path(scratch) / "kind")
            try:
                layer_of([wheel])
                found[name] = TAKES
            except BadWheel as error:
                found[name] = error.reason
    return found


def pips() -> dict[str, str]:
    """Kind → what pip does with it."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        honest = write_wheel(SPEC, Path(scratch) / "honest")
        pip = RealPip(pip_folder(Path(scratch)))
        for number, (name, kind) in enumerate(KINDS.items()):
            folder = Path(scratch) / str(number)
            wheel = kind.write(honest, folder / "wheels")
            code, talk = pip.attempt([wheel], folder / "root", f"bad==1.0 --hash=sha256:{sha256(wheel)}\n")
            found[name] = (
                TAKES if code == 0 else "stops with a traceback" if "Traceback" in talk else "refused"
            )
        pip.close()
    return found


def page(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """The document."""
    stricter = sum(theirs[name] == TAKES for name in REFUSED)
    taken = len(KINDS) - len(REFUSED)
    text = [HEAD.format(all=len(KINDS), refused=len(REFUSED), taken=taken, stricter=stricter)]
    for group, kinds in GROUPS.items():
        text += [f"## {group}\n", "| kind | ours | pip |", "| --- | --- | --- |"]
        text += [f"| {_cell(name)} | {_cell(ours[name])} | {theirs[name]} |" for name in kinds]
        text.append("")
    return "\n".join([*text, *_fuzzing()])


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Kind → (ours, pip's) as the document *text* tells them."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: (row[1], row[2]) for row in cells if len(row) == 3}


def _cell(text: str) -> str:
    """*text* so that a table may hold it, short and plain."""
    short = text if len(text) <= 150 else text[:147] + "..."
    return (
        short.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "\\<")
        .replace("*", "\\*")
        .replace("`", "'")
    )


def _fuzzing() -> list[str]:
    """The last campaign's figures, if there was one."""
    if not FUZZ.exists():
        return []
    lines = [
        "## Fuzzing\n",
        "`python -m tests.fuzz zip --seconds 660 --record docs/fuzz.json` (atheris, on a busy machine).\n",
    ]
    lines += ["| target | seed | seconds | runs | features | corpus | crashes |", "|" + " --- |" * 7]
    for target, run in json.loads(FUZZ.read_text()).items():
        keys = ("seed", "seconds", "runs", "features", "corpus", "crashes")
        lines.append(f"| {target} | " + " | ".join(f"{run[key]:,}" for key in keys) + " |")
    return [*lines, ""]


if __name__ == "__main__":
    write_atomic(PAGE, page(told(), pips()).encode())
