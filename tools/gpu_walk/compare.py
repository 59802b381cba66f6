"""`python -m tools.gpu_walk.compare FULL.json THIN.json`: compares the results of two images on one GPU."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KINDS = ("identical", "close", "different")
_CLOSE = 1e-3  # relative difference of sums of absolute values; float16 with atomic additions differs less


def verdict(full: Mapping[str, Any], thin: Mapping[str, Any]) -> str:
    """How the results of the same call in both images differ: one of KINDS."""
    if "error" in full or "error" in thin:
        return "identical" if full == thin else "different"
    if full["shapes"] != thin["shapes"]:
        return "different"
    if full["sha256"] == thin["sha256"]:
        return "identical"
    return "close" if math.isclose(full["sum"], thin["sum"], rel_tol=_CLOSE, abs_tol=1e-6) else "different"


def main(full_file: str, thin_file: str) -> int:
    """Print a summary, the calls that differ, and the times of fresh processes; return 1 if a call
    differs."""
    full, thin = (json.loads(Path(file).read_text()) for file in (full_file, thin_file))
    names = sorted(full["calls"].keys() | thin["calls"].keys())
    missing = {"error": "not called"}
    verdicts = {
        name: verdict(full["calls"].get(name, missing), thin["calls"].get(name, missing)) for name in names
    }
    print(f"{full['gpu']}, torch {full['torch']}")
    for library in sorted({name.split()[0] for name in names}):
        mine = [name for name in names if name.split()[0] == library]
        counts = Counter(verdicts[name] for name in mine)
        errors = sum("error" in full["calls"].get(name, missing) for name in mine)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        print(f"{library}: {len(mine)} calls, {kinds}; {errors} with an error in the full image")
    different = [name for name in names if verdicts[name] == "different"]
    for name in different:
        print(f"different: {name}: {full['calls'].get(name)} {thin['calls'].get(name)}")
    for mode, figure in itertools.product(full["startup"], full["startup"]["LAZY"][0]):
        both = [statistics.median(run[figure] for run in side["startup"][mode]) for side in (full, thin)]
        print(f"{mode} {figure}: full {both[0]:.3f}, thin {both[1]:.3f}")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
