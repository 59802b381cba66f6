#!/usr/bin/env python3
"""Writes the generated parts of both READMEs and of docs/ from matrix, facts, locks and the commands' output.

A generated part is between `<!-- generated: WHAT -->` and `<!-- end -->`. WHAT is `grid`,
`numbers`, `folders` (of torchkiln), `switches` (of a container), `projects` (of real-projects.json),
`trainings` (of real-projects-gpu.jsonl), or
`transcript NAME` (recorded by tools/transcripts.py). The rows of test modules (tools/attacks.py) are, too.
`--check` writes nothing and exits with 5 if anything is stale.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import markdown  # noqa: E402
from bench.markdown import table  # noqa: E402
from tools import attacks, layout, real_projects  # noqa: E402
from tools.grid import grid  # noqa: E402
from torchkiln.util.files import write_atomic  # noqa: E402
from torchkiln.util.places import ROOTFS  # noqa: E402

PAGES = (
    ROOT / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "examples" / "projects" / "MEASURED.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("architecture", "attacks", "grid", "image", "reference", "smoke", "status")
    ),
)
TRANSCRIPTS = ROOT / "docs" / "transcripts"
NUMBERS = ROOT / "docs" / "numbers.json"


def filled(text: str) -> str:
    """*text* with every generated part replaced."""
    return attacks.filled(markdown.filled(text, _generated))


def _generated(what: str) -> str:
    if what == "grid":
        return grid()
    if what == "folders":
        return layout.folders()
    if what == "numbers":
        return numbers(json.loads(NUMBERS.read_bytes()))
    if what == "projects":
        return real_projects.page()
    if what == "trainings":
        return real_projects.trainings()
    if what == "switches":
        return switches(_settings())
    if what.startswith("transcript "):
        recorded = (TRANSCRIPTS / f"{what.removeprefix('transcript ')}.txt").read_text()
        return f"```console\n{recorded}```\n"
    raise SystemExit(f"unknown generated part {what!r}")


def _settings() -> list[tuple[str, str, str]]:
    """The settings of a container, as its `help` lists them."""
    code = "import json; from workplace.settings import switches; print(json.dumps(switches()))"
    # In a new process with -B, so that Python creates no __pycache__ in rootfs/.
    place = f"import sys; sys.path.append({str(ROOTFS / 'opt/torchkiln')!r})"
    return json.loads(_stdout([sys.executable, "-IBc", f"{place}; {code}"]))


def _stdout(argv: Sequence[str]) -> str:
    """The stdout of a command; its stderr is printed only if it fails."""
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        done.check_returncode()
    return done.stdout


def numbers(document: dict[str, Any]) -> str:
    """The measured figures of docs/numbers.json that no other page has."""
    shown = [row for row in document["rows"] if "page" not in row]
    rows = [[row["what"], row["value"], row["how"]] for row in shown]
    return f"{document['machine']}\n\n" + table(["what", "measured", "how to reproduce"], rows)


def switches(variables: Iterable[tuple[str, str, str]]) -> str:
    """The environment variables of a container: name, default, meaning."""
    rows = [[f"`{name.replace(', ', '`, `')}`", default, meaning] for name, default, meaning in variables]
    return table(["variable", "default", ""], rows)


def main() -> int:
    """Write the generated parts of all pages; with --check compare them."""
    texts = {page: page.read_text() for page in PAGES}
    made = {page: filled(text) for page, text in texts.items()}
    stale = [path for path in made if made[path] != texts[path]]
    if "--check" not in sys.argv[1:]:
        for page in stale:
            write_atomic(page, made[page].encode())
    elif stale:
        names = ", ".join(str(page.relative_to(ROOT)) for page in stale)
        sys.stderr.write(f"{names}: generated parts are stale\nhint: run: make golden\n")
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
