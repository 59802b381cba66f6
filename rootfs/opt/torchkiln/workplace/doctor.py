"""`doctor`: this machine as the image sees it, a line a matter: ok, warning or problem, and what to do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from workplace import checks, image
from workplace.checks import Line
from workplace.driver import ask
from workplace.machine import look

PROBLEM = 1  # exit code: something is broken. Warnings leave it at 0.


def main(arguments: Sequence[str]) -> int:
    """Print what is found; the exit code."""
    parser = argparse.ArgumentParser(prog="doctor", description="What this machine lacks for this image.")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    asked = parser.parse_args(arguments)
    known = image.load()
    lines = checks.all_of(known, ask(), look())
    problems = sum(line.state == "problem" for line in lines)
    if asked.json:
        told = {"image": known.tag, "problems": problems, "lines": [asdict(line) for line in lines]}
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(_shown(line) for line in lines))
        print(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'}")
    return PROBLEM if problems else 0


def _shown(line: Line) -> str:
    told = f"{line.state:<8} {line.about:<10} {line.found}"
    return f"{told}\n{'':<19} {line.remedy}" if line.remedy else told
