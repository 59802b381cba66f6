"""Stub programs for tests of workflows: each logs its arguments and writes the files that later steps read.

The stub `torchkiln` runs quick commands without network really (REAL). `_kiln` replaces all other commands.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

RUN = """import sys
from tests.servers.ci_tools import note, smoke, state
note("run.py", *sys.argv[1:])
smoke(sys.argv)
sys.exit(10 if (state() / "fails").exists() else 0)
"""
REAL = (["ci", "matrix"], ["base", "show"])


def state() -> Path:
    """The folder with the tools' state."""
    return Path(os.environ["CI_TOOLS_STATE"])


def note(*words: str) -> None:
    """Append a line to the log."""
    with (state() / "log").open("a") as log:
        log.write(json.dumps(words) + "\n")


def value(words: Sequence[str], option: str) -> str:
    """The value after *option*."""
    return words[words.index(option) + 1]


def smoke(words: Sequence[str]) -> None:
    """Write the output files of a smoke run."""
    for option in {"--report", "--junit", "--markdown"} & set(words):
        Path(value(words, option)).write_text(f"what {option} has")
    if "--key" in words:
        Path(value(words, "--report")).with_suffix(".dsse.json").write_text("signed")


def bundle(place: Path) -> None:
    """Write a bundle with this module's run.py."""
    with tarfile.open(place, "w") as archive:
        for name, data in {"run.py": RUN.encode(), "layout/index.json": b"{}"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _kiln(words: list[str]) -> int:
    if any(words[: len(real)] == real for real in REAL) or words[0] in os.environ.get("CI_TOOLS_REAL", ""):
        os.execv(sys.executable, [sys.executable, "-m", "torchkiln", *words])
    match words:
        case [command, *_] if os.environ.get("CI_TOOLS_FAIL", "nothing") in " ".join(words):
            return {"build": 6, "gate": 7}.get(command, 1)
        case ["build", *_]:
            Path("dist").mkdir(exist_ok=True)
        case ["smoke", "run", *_] if "--bundle" in words:
            bundle(Path(value(words, "--bundle")))
        case ["smoke", "run", *_]:
            smoke(words)
        case ["lock", *_] if "--upgrade" in words and (state() / "newer").exists():
            from tests.workflow_scene import upgrade

            upgrade(Path("images"))
        case ["matrix", "add", "torch", "newest", "--smoke"] if (state() / "released").exists():
            from tests.workflow_scene import release

            release(Path())
        case ["verify", *_]:
            return int((state() / "tampered").exists())
    return 0


def _gh(words: list[str]) -> int:
    proposal = state() / "proposal"
    match words:
        case ["pr", "list", *_] if proposal.exists():
            sys.stdout.write("7\n")
        case ["pr", "create" | "edit", *_]:
            proposal.write_text(Path(value(words, "--body-file")).read_text())
    return 0


def _make(words: list[str]) -> int:
    if words[-1] == "setup":
        programs = Path(value(words, "-C") if "-C" in words else ".") / ".venv/bin"
        programs.mkdir(parents=True)
        (programs / "torchkiln").symlink_to(state().parent / "tools/torchkiln")
    if words == ["docs"]:
        Path("dist/site").mkdir(parents=True)
    return 0


def main(name: str, *words: str) -> int:
    """Behave like the program *name* with the arguments *words*; returns the exit code."""
    if name == "docker" and "--password-stdin" in words:
        note(name, *words, "<", sys.stdin.read())
        return 0
    note(name, *words)
    if name == "sudo":
        rest = [word for word in words if not word.startswith("--preserve-env")]
        os.execvp(rest[0], rest)
    if name == "docker" and words[0] == "run":
        return int(os.environ.get("CI_TOOLS_SCRIPT_ENDS", "0"))
    return {"torchkiln": _kiln, "gh": _gh, "make": _make}.get(name, lambda _: 0)(list(words))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
