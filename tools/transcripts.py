#!/usr/bin/env python3
"""Record the output of real commands in docs/transcripts/*.txt, which tools/readme.py puts into pages.

Run it after a build when the output of commands has changed. It needs the real packages and, for containers,
a Docker engine: the user's, or else the engine of the tests. Paths of this machine are removed; an ellipsis
marks omissions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.engine.fixture import reach  # noqa: E402
from tests.needs import outward  # noqa: E402
from tools.terminal import HOST, Terminal, terminal  # noqa: E402

FOLDER = ROOT / "docs" / "transcripts"
CELL = "--torch 2.7 --cuda 12.1"
VERSIONS = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"


def ran(arguments: list[str], *, both: bool) -> list[str]:
    """The lines that `python build.py` prints on stdout, or on both streams."""
    done = subprocess.run(
        [sys.executable, "build.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "130"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else None,
        text=True,
        check=True,
    )
    return [line.rstrip() for line in done.stdout.replace(f"{ROOT}{os.sep}", "").splitlines()]


def summary(lines: list[str]) -> list[str]:
    """The lines, with only the first and last rows of the table of layers, and of the results of checks."""
    *lines, digest = lines
    end = next((at for at, line in enumerate(lines) if line.startswith("smoke: ")), len(lines))
    built, tested = lines[:end], cut(lines[end:])
    if len(tested) > 4:
        tested = [*tested[:3], f"… {len(tested) - 4} lines left out", tested[-1]]
    left_out = f"          … {len(built) - 9} layers left out"
    return [*built[:3], left_out, *built[-6:], *tested, digest]


def object_of(lines: list[str]) -> list[str]:
    """The object of --json, indented, with one layer, one reused layer and one check."""
    content = json.loads(lines[-1])
    for key in ("layers", "reused"):
        content[key][1:] = [f"… {len(content[key]) - 1} more"]
    (check, outcome), *others = content["smoke"]["checks"].items()
    content["smoke"]["checks"] = {check: outcome, "…": f"{len(others)} more"}
    return json.dumps(content, indent=2, ensure_ascii=False).splitlines()


def cut(lines: list[str], width: int = 130) -> list[str]:
    """All lines, shortened to *width* characters."""
    return [line if len(line) <= width else line[: width - 2] + " …" for line in lines]


RUNS: dict[str, tuple[str, list[str], bool, Callable[[list[str]], list[str]]]] = {
    "build": (CELL, CELL.split(), True, summary),
    "json": (f"{CELL} --json", [*CELL.split(), "--json", "--quiet"], False, object_of),
    "run": (
        f"run {CELL} -- python -c '{VERSIONS}'",
        ["run", *CELL.split(), "--", "python", "-c", VERSIONS],
        False,
        cut,
    ),
    "smoke": (f"smoke run {CELL}", ["smoke", "run", "--force", *CELL.split()], True, partial(cut, width=80)),
}


IMAGE = "pytorch-cuda:v2.7"
CONTAINER = "work"
START = (
    f"docker run -d --name {CONTAINER} -p 8888:8888 -p 2222:22 --shm-size=8g -v ./workspace:/workspace \\\n"
    f'      -e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)" {IMAGE}'
)
OF_CONTAINERS = ("start", "ssh", "doctor")
_READY = "is running at"  # JupyterLab's message
_TIMEOUT = 60  # seconds until it must appear


def container_transcripts(shell: Terminal) -> Iterator[tuple[str, list[str]]]:
    """The name and lines of each of OF_CONTAINERS."""
    try:
        started = [f"$ {START}", *shell.shows(START)]
        line = f"docker logs {CONTAINER}"
        log = logged(shell, line)
        own = [message for message in log if message.startswith("torchkiln: ")]
        omitted = f"… {len(log) - len(own)} lines of sshd and JupyterLab left out"
        yield "start", [*started, f"$ {line}", *cut(own), omitted]
        line = f"ssh -p 2222 user@{HOST}"
        typed = ("python -c 'import torch; print(torch.__version__)'", "exit")
        yield "ssh", [f"$ {line}", *cut(shell.session(line, typed))]
        line = f"docker exec {CONTAINER} doctor"
        yield "doctor", [f"$ {line}", *cut(shell.shows(line))]
    finally:
        shell.shows(f"docker rm --force --volumes {CONTAINER}")


def logged(shell: Terminal, line: str) -> list[str]:
    """The log that *line* prints, once all services have started."""
    for _ in range(_TIMEOUT):
        log = shell.shows(line)
        if any(_READY in message for message in log):
            return log
        time.sleep(1)
    raise SystemExit("\n".join([f"JupyterLab did not start within {_TIMEOUT} seconds:", *log]))


def record(names: list[str]) -> None:
    """Write the named transcripts of OF_CONTAINERS, of the image as it is built now."""
    environ = reach(os.getpid())
    argv = [sys.executable, "build.py", *CELL.split(), "--load", "--no-smoke", "--quiet"]
    subprocess.run(argv, cwd=ROOT, env=dict(environ), stdout=subprocess.DEVNULL, check=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:  # the tests' engine can mount it, too
        folder = Path(made)
        folder.chmod(0o755)
        with terminal(environ, outward(folder), folder) as shell:
            for name, lines in container_transcripts(shell):
                if name in names:
                    write(name, lines)


def write(name: str, lines: list[str]) -> None:
    """Write the transcript *name*."""
    (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Write the named transcripts, or all."""
    names = sys.argv[1:] or [*RUNS, *OF_CONTAINERS]
    for name in names:
        if name not in OF_CONTAINERS:
            shown, arguments, both, shorten = RUNS[name]
            write(name, [f"$ python build.py {shown}", *shorten(ran(arguments, both=both))])
    if of_containers := [name for name in names if name in OF_CONTAINERS]:
        record(of_containers)


if __name__ == "__main__":
    main()
