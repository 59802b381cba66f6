"""Write tests/hostile/wheels.md: torchkiln's message and pip's result for each kind of wheel.

`python -m tests.hostile.table` (part of `make golden`) runs pip on each kind.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from tests.hostile import GROUPS, KINDS, REFUSED, SPEC
from tests.layers import layer_of, sha256
from tests.realpip import RealPip, pip_folder
from tests.wheels import write_wheel
from torchkiln.errors import BadWheel
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT

PAGE = ROOT / "tests/hostile/wheels.md"
FUZZ = ROOT / "tests/hostile/fuzz.json"
ACCEPTED = "accepted"
SEPARATOR = "; "  # between kinds in the same row of the table

HEAD = """# Hostile wheels

Wheels are untrusted input. This page lists {all} kinds of malformed or malicious wheels, each made from a
valid wheel by one change.

- {refused} kinds are refused: the build exits with 6, the message names the wheel and the reason, and no
  layer, wheel or image is left.
- {accepted} kinds are unusual but unambiguous: they are accepted, and a test compares the layer with the
  files that pip installs.

The third column is the result of pip, in the version that the locks pin, with the same file. pip accepts
{stricter} of the {refused} refused kinds, because it reads zips with the lenient `zipfile` and does not
compare files with RECORD. torchkiln refuses them, because their content differs from their metadata, or
because other tools read them differently.

`tests/hostile/` makes the wheels. `tests/unit/test_hostile_wheels.py` compares torchkiln and pip with this
page. It also reads all wheels in one process whose address space is limited to 128 MiB more than a valid
wheel needs.

## Bounds

| what | limit | largest of torch 2.7.1's 127 wheels |
| --- | --- | --- |
| entries of a wheel | 200,000 | 11,010 |
| bytes of its directory | 32 MiB | 1.4 MB |
| folders | 50,000 | 960 |
| unpacked bytes | 20 GB | 1.6 GB |
| compression ratio of the wheel, if it unpacks to more than 1 GB | 100 | 7.5 |
| METADATA; WHEEL, entry_points.txt; RECORD | 4; 1; 16 MiB | 57 kB; 2.4 kB; 1.2 MB |
| a Python source | 16 MiB | 1.2 MB |
| total size of the scripts that have at most 1 MiB each | 64 MiB | - |

Decompression stops at the size in the zip's directory. The compression ratio of a single entry is not
limited: a library in Pillow's wheel has a ratio of 224.
"""


def messages() -> dict[str, str]:
    """Kind → the reason in torchkiln's message; ACCEPTED if the wheel is accepted."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        valid = write_wheel(SPEC, Path(scratch) / "valid")
        for name, kind in KINDS.items():
            wheel = kind.write(valid, Path(scratch) / "kind")
            try:
                layer_of([wheel])
                found[name] = ACCEPTED
            except BadWheel as error:
                found[name] = error.reason
    return found


def pip_results() -> dict[str, str]:
    """Kind → pip's result."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        valid = write_wheel(SPEC, Path(scratch) / "valid")
        pip = RealPip(pip_folder(Path(scratch)))
        for number, (name, kind) in enumerate(KINDS.items()):
            folder = Path(scratch) / str(number)
            wheel = kind.write(valid, folder / "wheels")
            code, output = pip.attempt([wheel], folder / "root", f"bad==1.0 --hash=sha256:{sha256(wheel)}\n")
            found[name] = ACCEPTED if code == 0 else "traceback" if "Traceback" in output else "refused"
        pip.close()
    return found


def page(of_torchkiln: dict[str, str], of_pip: dict[str, str]) -> str:
    """The text of tests/hostile/wheels.md."""
    stricter = sum(of_pip[name] == ACCEPTED for name in REFUSED)
    accepted = len(KINDS) - len(REFUSED)
    text = [HEAD.format(all=len(KINDS), refused=len(REFUSED), accepted=accepted, stricter=stricter)]
    for group, kinds in GROUPS.items():
        text += [f"## {group}\n", "| kind | torchkiln | pip |", "| --- | --- | --- |"]
        same: dict[tuple[str, str], list[str]] = {}
        for name in kinds:
            same.setdefault((_cell(of_torchkiln[name]), of_pip[name]), []).append(_cell(name))
        text += [f"| {SEPARATOR.join(names)} | {ours} | {pips} |" for (ours, pips), names in same.items()]
        text.append("")
    return "\n".join([*text, *_fuzzing()])


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Kind → (torchkiln's result, pip's result), read from the document *text*."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {name: (row[1], row[2]) for row in cells if len(row) == 3 for name in row[0].split(SEPARATOR)}


def _cell(text: str) -> str:
    """*text*, shortened in the middle and escaped for a table."""
    short = re.sub(r"(.)\1{9,}", r"\1\1\1…", text)
    if len(short) > 180:
        short = f"{short[:90]}…{short[-60:]}"
    return (
        short.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("<", "\\<")
        .replace("*", "\\*")
        .replace("`", "'")
    )


def _fuzzing() -> list[str]:
    """The figures of the last fuzzing campaign, if there was one."""
    if not FUZZ.exists():
        return []
    lines = [
        "## Fuzzing\n",
        "`python -m tests.fuzz zip --seconds 660 --record tests/hostile/fuzz.json` (atheris, while busy).\n",
    ]
    lines += ["| target | seed | seconds | runs | features | corpus | crashes |", "|" + " --- |" * 7]
    for target, run in json.loads(FUZZ.read_text()).items():
        keys = ("seed", "seconds", "runs", "features", "corpus", "crashes")
        lines.append(f"| {target} | " + " | ".join(f"{run[key]:,}" for key in keys) + " |")
    return [*lines, ""]


if __name__ == "__main__":
    write_atomic(PAGE, page(messages(), pip_results()).encode())
