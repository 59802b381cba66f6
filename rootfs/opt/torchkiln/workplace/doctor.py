"""`doctor`: checks this machine for the image, one line per check: ok, warning or problem, and what to do."""

from __future__ import annotations

import argparse
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict

from workplace import checks, image, messages
from workplace.checks import Line
from workplace.driver import ask
from workplace.machine import look
from workplace.messages import TEXTS, message

PROBLEM = 1  # exit code: at least one problem. Warnings alone give 0.


def main(arguments: Sequence[str]) -> int:
    """Print the result of each check; return the exit code."""
    parser = argparse.ArgumentParser(prog="doctor", description=message("doctor.about"))
    parser.add_argument("--json", action="store_true", help=message("doctor.json"))
    options = parser.parse_args(arguments)
    if options.json:
        messages.use("en")  # for programs: the same in every language
    this_image = image.load()
    lines = checks.run_all(this_image, ask(), look())
    problems = sum(line.state == "problem" for line in lines)
    if options.json:
        found = {"image": this_image.tag, "problems": problems, "lines": [asdict(line) for line in lines]}
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_format(line) for line in lines))
        counted = f"problems.{problems}"
        print("\n" + message(counted if counted in TEXTS else "problems", count=problems))
    return PROBLEM if problems else 0


def _format(line: Line) -> str:
    state, about = message(f"state.{line.state}"), message(f"about.{line.about}")
    text = f"{_padded(state, 8)} {_padded(about, 10)} {line.found}"
    return f"{text}\n{'':<19} {line.remedy}" if line.remedy else text


def _padded(text: str, columns: int) -> str:
    """*text*, and spaces up to *columns* of a terminal, where Chinese characters have two."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return text + " " * (columns - len(text) - wide)
