"""Measures every switch alone and together against FP32, each in a process of its own, into one JSON file.

python -m recipes.measure --output /out            # one GPU, some minutes
python -m recipes.measure --output /out --gpus 2   # also DDP and FSDP on two
python -m recipes.measure --output /tmp/out --tiny --device cpu
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recipes.rows import FIRST, ROWS, SCALING, WATERFALL, Row, words_of

SCHEMA = 1
IMAGE = Path("/etc/torchkiln/image.json")  # what an image of torchkiln says about itself
FIGURES = ("samples_per_s", "timed_steps", "peak_bytes", "reserved_bytes", "scale", "losses")
_REFUSED = "unavailable: "  # how train.py begins the line
PACKAGES = Path(__file__).resolve().parent.parent


def main(words: Sequence[str] | None = None) -> int:
    """Measure all rows. The file is written anew after each: a run that is stopped leaves what it has."""
    given = _options(words)
    rows = [*ROWS, *(_scaled(given.gpus) if given.gpus > 1 else ())]
    if given.only:
        rows = [row for row in rows if row.name in given.only or row.group in given.only]
    place = Path(given.output)
    place = place if place.suffix == ".json" else place / "recipes.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    began, found = time.monotonic(), _head(given)
    for number, row in enumerate(rows, 1):
        left = given.budget - (time.monotonic() - began)
        print(f"[{number}/{len(rows)}] {row.group}: {row.name} ... ", end="", flush=True)
        result = (
            measured(row, given, min(given.limit, left))
            if left > 0
            else _empty(row, "no time", "the rows before took all of --budget")
        )
        found["environment"] = found["environment"] or result.pop("environment")
        result.pop("environment", None)
        found["rows"].append(result)
        found["seconds"] = round(time.monotonic() - began, 1)
        place.with_suffix(".part").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        place.with_suffix(".part").replace(place)
        print(sentence(result), flush=True)
    print(f"{place}: {found['seconds']:.0f} s")
    return 0 if any(row["outcome"] == "measured" for row in found["rows"]) else 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", required=True, help="a folder, or a file NAME.json")
    parser.add_argument("--gpus", type=int, default=1, help="more than 1: also DDP and FSDP on so many")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small models, to try this program")
    parser.add_argument("--steps", type=int, default=10, help="of each run; the first two are not timed")
    parser.add_argument("--only", nargs="+", help="names of rows or groups (alone, together, images, gpus)")
    parser.add_argument("--limit", type=float, default=120, help="seconds for each row")
    parser.add_argument(
        "--budget", type=float, default=900, help="seconds for all; rows after that are left out"
    )
    parser.add_argument(
        "--image", default="", help="the image's tag, if /etc/torchkiln/image.json does not have it"
    )
    return parser.parse_args(words)


def _scaled(gpus: int) -> Iterator[Row]:
    return (row._replace(gpus=gpus if row.gpus > 1 else 1) for row in SCALING)


def _head(given: argparse.Namespace) -> dict[str, Any]:
    """All of the record but its rows."""
    image: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        image = json.loads(IMAGE.read_text("utf-8"))
    return {
        "schema": SCHEMA,
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "image": given.image or image.get("tag"),
        "size": "tiny" if given.tiny else "base",
        "steps": given.steps,
        "driver": _driver(),
        "environment": None,
        "first": FIRST,
        "waterfall": list(WATERFALL),
        "seconds": 0.0,
        "rows": [],
    }


def _driver() -> str | None:
    """The version of NVIDIA's driver; from the kernel, because an image need not have nvidia-smi."""
    with contextlib.suppress(OSError):
        for word in Path("/proc/driver/nvidia/version").read_text("utf-8").split():
            if word[:1].isdigit() and "." in word:
                return word
    return None


def measured(row: Row, given: argparse.Namespace, limit: float) -> dict[str, Any]:
    """The result of a run in a new process: its memory is counted from zero, a crash ends only this row."""
    words = words_of(row, tiny=given.tiny, steps=given.steps, device=given.device)
    result = _empty(row, "failed", "no report")
    with tempfile.TemporaryDirectory(prefix="recipes-") as folder:
        report = Path(folder) / "report.json"
        began = time.monotonic()
        code, errors = _run([*launcher(row), *words, "--report", str(report)], Path(folder), limit)
        result["seconds"] = round(time.monotonic() - began, 1)
        result["command"] = shlex.join([*launcher(row, shown=True), *words])
        if report.is_file():
            content = json.loads(report.read_text("utf-8"))
            result |= {name: content[name] for name in ("outcome", "message")}
            result |= {name: content[name] for name in (*FIGURES, "environment") if name in content}
        if code is None:
            result |= {"outcome": "failed", "message": f"stopped after {limit:.0f} s"}
        elif code and result["outcome"] in ("failed", "measured"):
            kind = "unavailable" if code == 3 or _REFUSED in errors else "failed"
            result |= {"outcome": kind, "message": _reason(errors) or f"exit status {code}"}
    return result


def launcher(row: Row, *, shown: bool = False) -> list[str]:
    """The start of the command; torchrun by its module, for several GPUs, on a free port of this machine."""
    python = "python" if shown else sys.executable
    if row.gpus == 1:
        return [python, "-m", "recipes.train"]
    address = ["--master-addr", "127.0.0.1", "--master-port", "29500" if shown else str(_free_port())]
    return [
        python,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(row.gpus),
        *address,
        "-m",
        "recipes.train",
    ]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _run(command: Sequence[str], folder: Path, limit: float) -> tuple[int | None, str]:
    """Exit status (None: it ran out of time and was ended, with all its children) and stderr."""
    path = os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH"))))
    environ = {"OMP_NUM_THREADS": "1"} if "torch.distributed.run" in command else {}
    with open(folder / "errors", "w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        return code, errors.read()


def _reason(errors: str) -> str:
    """The line that says why a process ended: the first one that names an error, of whichever process."""
    lines = [re.sub(r"^\[rank\d+\]:\s*", "", line.strip()) for line in errors.splitlines()]
    refused = [line.partition(_REFUSED)[2] for line in lines if _REFUSED in line]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (refused or named or [line for line in lines if line][-1:] or [""])[0][:500]


def _empty(row: Row, outcome: str, message: str) -> dict[str, Any]:
    values: dict[str, Any] = {"name": row.name, "group": row.group, "gpus": row.gpus, "command": ""}
    values |= {"outcome": outcome, "message": message, "seconds": 0.0, "environment": None}
    return values | dict.fromkeys(FIGURES) | {"losses": []}


def sentence(result: dict[str, Any]) -> str:
    """A row for the terminal."""
    if result["outcome"] != "measured":
        return f"{result['outcome']}: {result['message']}"
    peak = f"{result['peak_bytes'] / (1 << 30):.2f} GiB, " if result["peak_bytes"] else ""
    loss = f"{result['losses'][-1]:.4f}" if result["losses"] else "not finite"
    return f"{peak}{result['samples_per_s']:.1f} samples/s, loss {loss} ({result['seconds']:.0f} s)"


if __name__ == "__main__":
    sys.exit(main())
