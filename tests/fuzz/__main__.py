"""`python -m tests.fuzz TARGET`: run the fuzz target with atheris, print figures, save crashing inputs."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchkiln.util.files import pretty_json, write_atomic
from torchkiln.util.places import ROOT

_RUN = re.compile(r"^#(?P<runs>\d+)\s+\w+\s.*ft: (?P<features>\d+) corp: (?P<corpus>\d+)/", re.MULTILINE)
_HANG = 20  # maximum seconds for an input


def run(target: str, *, seed: int, runs: int = -1, seconds: int = 0) -> dict[str, int | str]:
    """Fuzz *target* for *runs* or *seconds*; returns its figures, and the message of a crash."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        options = {"seed": seed, "runs": runs, "max_total_time": seconds, "timeout": _HANG, "max_len": 8192}
        argv = [sys.executable, "-m", "tests.fuzz.child", target]
        argv += [f"-{name}={value}" for name, value in options.items()]
        argv += ["-rss_limit_mb=1024", f"-artifact_prefix={scratch}/", str(corpus)]
        # libFuzzer limits ru_maxrss, which a process inherits from its parent: here a small shell.
        argv = ["sh", "-c", '"$@"; exit $?', "sh", *argv]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", cwd=ROOT, check=False)
        crashed = [path.read_bytes().hex() for path in Path(scratch).glob("*-*") if path.is_file()]
    lines = list(_RUN.finditer(done.stderr))
    assert lines or crashed, done.stderr[-2000:]
    last = lines[-1].groupdict() if lines else {"runs": "0", "features": "0", "corpus": "0"}
    figures: dict[str, int | str] = {"seed": seed, "seconds": round(time.monotonic() - started)}
    figures |= {key: int(value) for key, value in last.items()}
    figures["crashes"] = len(crashed) if crashed else int(done.returncode != 0)
    if figures["crashes"]:
        figures |= {"input": crashed[0] if crashed else "", "stderr": done.stderr[-4000:]}
    return figures


def main() -> int:
    """Fuzz the target of the command line; returns 0 if no input crashed it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=("zip", "layer", "tar", "documents", "pages", "fatbin"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--record", type=Path, help="a JSON file to which the target's figures are added")
    arguments = parser.parse_args()
    figures = run(arguments.target, seed=arguments.seed, runs=arguments.runs, seconds=arguments.seconds)
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    if arguments.record:
        recorded = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
        write_atomic(arguments.record, pretty_json({**recorded, arguments.target: figures}))
    return 1 if figures["crashes"] else 0


if __name__ == "__main__":
    sys.exit(main())
