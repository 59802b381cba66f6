"""`doctor`: checks this machine for the image, one line per check: ok, warning or problem, and what to do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from workplace import checks, image
from workplace.checks import Line
from workplace.driver import ask
from workplace.machine import look

PROBLEM = 1  # exit code: at least one problem. Warnings alone give 0.


def main(arguments: Sequence[str]) -> int:
    """Print the result of each check; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="doctor", description="Check this machine for this image: driver, GPUs, memory, services."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    this_image = image.load()
    lines = checks.run_all(this_image, ask(), look())
    problems = sum(line.state == "problem" for line in lines)
    if options.json:
        found = {"image": this_image.tag, "problems": problems, "lines": [asdict(line) for line in lines]}
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_format(line) for line in lines))
        print(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'}")
    return PROBLEM if problems else 0


def _format(line: Line) -> str:
    text = f"{line.state:<8} {line.about:<10} {line.found}"
    return f"{text}\n{'':<19} {line.remedy}" if line.remedy else text
