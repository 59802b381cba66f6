"""`python -m gpu_walk RESULTS.json` in an image: calls every CUDA library, and 500 operators of torch.

torch's operator database imports `expecttest`, which is not in the image: add it to PYTHONPATH.
`python -m tools.gpu_walk.compare FULL.json THIN.json` compares the results of two images.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from gpu_walk.libraries import LIBRARIES
from gpu_walk.results import result_of
from gpu_walk.startup import startup

COUNT, SEED, CHUNK = 500, 2026, 50
AT_ONCE = 6  # processes: after an illegal access, a process cannot use the GPU any more, but others can


def main(target: str) -> None:
    """Write the results of all calls to *target*, JSON."""
    started = startup()
    begin = time.monotonic()
    parts = [*LIBRARIES, *(str(first) for first in range(0, COUNT, CHUNK))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        calls = {name: result for part in pool.map(_in_a_process, parts) for name, result in part.items()}
    found = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
        "seconds": round(time.monotonic() - begin, 1),
        "startup": started,
        "calls": calls,
    }
    with open(target, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=0, sort_keys=True)
    failed = sum("error" in result for result in calls.values())
    print(f"{len(calls)} calls on {found['gpu']}, {failed} with an error, {found['seconds']} s")


def _in_a_process(part: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gpu_walk", "--part", part]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    results = dict(json.loads(line) for line in done.stdout.splitlines())
    if done.returncode:
        results[f"{part} end"] = {"error": f"exit {done.returncode}"}
    return results


def print_part(part: str) -> None:
    """Call the library *part*, or the operators from number *part* on; print names and results."""
    if part in LIBRARIES:
        for name, call in LIBRARIES[part]():
            print(json.dumps([f"{part} {name}", result_of(call)]), flush=True)
        return
    # Imported late: after this import, torch's flags cannot be set, but the libraries' calls set flags.
    from gpu_walk.operators import operators

    for name, result in operators(COUNT, SEED, slice(int(part), int(part) + CHUNK)):
        print(json.dumps([f"operator {name}", result]), flush=True)


if __name__ == "__main__":
    print_part(sys.argv[2]) if sys.argv[1] == "--part" else main(sys.argv[1])
