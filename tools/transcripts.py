#!/usr/bin/env python3
"""Real runs of the main job and of its image → docs/transcripts/*.txt, which tools/readme.py puts into pages.

Run by hand, after a build, when what a user sees has changed: it wants the real packages, and for the image a
Docker engine, the one that answers or the tests' own. Paths of this machine are cut off; what is left out is
marked with an ellipsis.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.engine.fixture import reach  # noqa: E402
from tests.outward import outward  # noqa: E402
from tools.terminal import HOST, Terminal, terminal  # noqa: E402

FOLDER = ROOT / "docs" / "transcripts"
CELL = "--torch 2.7 --cuda 12.1"
VERSIONS = "import torch; print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version())"


def ran(arguments: list[str], *, both: bool) -> list[str]:
    """The lines that `python build.py` prints: on stdout, or on both streams as a terminal shows them."""
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
    """The head of the table of layers and its end."""
    return [*lines[:4], f"          … {len(lines) - 11} layers left out", *lines[-7:]]


def object_of(lines: list[str]) -> list[str]:
    """The object of --json, indented, with one layer."""
    told = json.loads(lines[-1])
    left = len(told["layers"]) - 1
    told["layers"][1:] = [f"… {left} more"]
    told["reused"][1:] = [f"… {len(told['reused']) - 1} more"]
    return json.dumps(told, indent=2, ensure_ascii=False).splitlines()


def cut(lines: list[str]) -> list[str]:
    """All lines, the long ones shortened."""
    return [line if len(line) <= 130 else line[:128] + " …" for line in lines]


RUNS: dict[str, tuple[str, list[str], bool, Callable[[list[str]], list[str]]]] = {
    "build": (CELL, CELL.split(), True, summary),
    "json": (f"{CELL} --json", [*CELL.split(), "--json", "--quiet"], False, object_of),
    "run": (
        f"run {CELL} -- python -c '{VERSIONS}'",
        ["run", *CELL.split(), "--", "python", "-c", VERSIONS],
        False,
        cut,
    ),
    "smoke": (f"smoke run {CELL}", ["smoke", "run", "--force", *CELL.split()], True, cut),
}


IMAGE = "pytorch-cuda:v2.7"
CONTAINER = "work"
START = (
    f"docker run -d --name {CONTAINER} -p 8888:8888 -p 2222:22 --shm-size=8g -v ./workspace:/workspace \\\n"
    f'      -e SSH_PUBLIC_KEY="$(cat ~/.ssh/id_ed25519.pub)" {IMAGE}'
)
OF_CONTAINERS = ("start", "ssh", "doctor", "doctor-of-another-user", "guard")
_UP = "is running at"  # JupyterLab
_PATIENCE = 60  # seconds until it must say so


def seen(shell: Terminal) -> Iterator[tuple[str, list[str]]]:
    """Each of OF_CONTAINERS, and its lines."""
    try:
        begun = [f"$ {START}", *shell.shows(START)]
        line = f"docker logs {CONTAINER}"
        log = logged(shell, line)
        told = [said for said in log if said.startswith("torchkiln: ")]
        left = f"… {len(log) - len(told)} lines of sshd and JupyterLab left out"
        yield "start", [*begun, f"$ {line}", *cut(told), left]
        line = f"ssh -p 2222 user@{HOST}"
        typed = ("python -c 'import torch; print(torch.__version__)'", "exit")
        yield "ssh", [f"$ {line}", *cut(shell.session(line, typed))]
        line = f"docker exec {CONTAINER} /opt/torchkiln/entrypoint doctor"
        yield "doctor", [f"$ {line}", *cut(shell.shows(line))]
    finally:
        shell.shows(f"docker rm --force --volumes {CONTAINER}")
    line = f"docker run --rm --user 4711:4711 -v ./workspace:/workspace {IMAGE} doctor; echo $?"
    yield "doctor-of-another-user", [f"$ {line}", *cut(shell.shows(line))]
    line = f"docker run -t --rm {IMAGE} pip install torch==2.6.0"
    yield "guard", [f"$ {line}", *refusal(cut(shell.shows(line)))]


def refusal(lines: list[str]) -> list[str]:
    """What pip refuses and why, without its advice, and what is said behind it."""
    behind = next(at for at, line in enumerate(lines) if line.startswith("torchkiln: "))
    advice = 1 + max(at for at, line in enumerate(lines) if "The user requested" in line)
    return [*lines[:advice], f"… {behind - advice} lines of advice left out", *lines[behind:]]


def logged(shell: Terminal, line: str) -> list[str]:
    """What *line* shows of the log once all is up, which is long after the machine was looked at."""
    for _ in range(_PATIENCE):
        log = shell.shows(line)
        if any(_UP in said for said in log):
            return log
        time.sleep(1)
    raise SystemExit("\n".join(["it did not come up:", *log]))


def record(names: list[str]) -> None:
    """Write those of OF_CONTAINERS that are named; of the image as it is built now."""
    environ = reach(os.getpid())
    argv = [sys.executable, "build.py", *CELL.split(), "--load", "--quiet"]
    subprocess.run(argv, cwd=ROOT, env=dict(environ), stdout=subprocess.DEVNULL, check=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:  # the tests' own engine sees it too
        folder = Path(made)
        folder.chmod(0o755)
        with terminal(environ, outward(folder), folder) as shell:
            for name, lines in seen(shell):
                if name in names:
                    write(name, lines)


def write(name: str, lines: list[str]) -> None:
    """Keep the transcript *name*."""
    (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Write the transcripts that are named, or all."""
    names = sys.argv[1:] or [*RUNS, *OF_CONTAINERS]
    for name in names:
        if name not in OF_CONTAINERS:
            shown, arguments, both, shorten = RUNS[name]
            write(name, [f"$ python build.py {shown}", *shorten(ran(arguments, both=both))])
    if of_containers := [name for name in names if name in OF_CONTAINERS]:
        record(of_containers)


if __name__ == "__main__":
    main()
