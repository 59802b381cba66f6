"""`python -m bench.thin_sizes`: builds thin images of several torch releases, and writes their sizes.

The sizes are written to docs/thin-sizes.json; `--page` only writes table and chart of docs/thin.md from that
file. Downloads four sets of wheels (12 GB) and needs 15 GB of free space at a time; 25 minutes on two cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.markdown import filled, table
from bench.plot import Bar, bars
from torchkiln.locks.lock import load_locked
from torchkiln.store.store import Store, cache_root
from torchkiln.util.files import write_atomic
from torchkiln.util.places import ROOT

CELLS = (("2.4.1", "12.1"), ("2.7.1", "12.1"), ("2.8.0", "12.1"), ("2.11.0", "13.0"))
GPUS = ("7.5", "8.0", "8.6", "9.0", "12.0")
RECORD, PAGE, CHART = (ROOT / "docs" / name for name in ("thin-sizes.json", "thin.md", "thin-sizes.svg"))
UNAVAILABLE = 4  # exit code: no wheel has code for that GPU


def measured() -> Iterator[dict[str, Any]]:
    """Rows with the compressed bytes of the image for all GPUs, and of both thin images for one GPU."""
    for torch, cuda in CELLS:
        with tempfile.TemporaryDirectory(prefix="thin-sizes-", dir=cache_root().parent) as scratch:
            folder = Path(scratch)
            _copy_base(torch, cuda, folder / "cache")
            shutil.copytree(ROOT / "images", folder / "images")
            full = _bytes(folder, "--torch", torch, "--cuda", cuda)
            for gpu in GPUS:
                words = ("--torch", torch, "--cuda", cuda, "--gpus", gpu)
                own = _bytes(folder, *words, "--own-use")
                row = {"torch": torch, "cuda": cuda, "gpu": gpu, "full": full, "own_use": own}
                yield row | {"thin": _bytes(folder, *words) if own else None}


def _copy_base(torch: str, cuda: str, cache: Path) -> None:
    """Copy the base, so that it is not built again."""
    [lock] = (ROOT / "images").glob(f"{torch}-cuda{cuda}-cudnn*-runtime/lock.json")
    digest = load_locked(ROOT / "images", lock.parent.name).base.digest
    source, target = Store(cache_root()).blob(digest), Store(cache).blob(digest)
    target.parent.mkdir(parents=True)
    shutil.copy2(source, target)


def _bytes(folder: Path, *words: str) -> int | None:
    """Build an image and delete it; its compressed bytes, or None if there is no image for these GPUs."""
    layout = folder / "layout"
    argv = [sys.executable, str(ROOT / "build.py"), *words, "--images", str(folder / "images"), "--json"]
    environ = os.environ | {"TORCHKILN_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [*argv, "--quiet", "--output", str(layout)], env=environ, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    shutil.rmtree(layout, ignore_errors=True)
    if done.returncode == UNAVAILABLE:
        return None
    done.check_returncode()
    size: int = json.loads(done.stdout)["compressed_bytes"]
    return size


def sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table: for each release the full image, and for each GPU "thin / own use"."""
    lines = []
    for torch, cuda in CELLS:
        mine = {row["gpu"]: row for row in rows if (row["torch"], row["cuda"]) == (torch, cuda)}
        cells = [
            f"{row['thin'] / 1e9:.2f} / {row['own_use'] / 1e9:.2f}" if row["thin"] else "no code"
            for row in map(mine.__getitem__, GPUS)
        ]
        lines.append([f"{torch} × {cuda}", f"{next(iter(mine.values()))['full'] / 1e9:.2f}", *cells])
    return table(["torch × CUDA", "all GPUs", *GPUS], lines)


def chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """The sizes for capability 9.0, as SVG."""
    kinds = {"full": "all GPUs", "thin": "9.0", "own_use": "9.0, own use"}
    found = [
        Bar(label=f"{row['torch']} × {row['cuda']}, {name}", value=size, low=size, high=size, unit="GB")
        for row in rows
        if row["gpu"] == "9.0"
        for kind, name in kinds.items()
        for size in [row[kind] / 1e9]
    ]
    return bars(
        "Compressed size of images, gzip", "for all GPUs, and for compute capability 9.0 (H100, H200)", found
    )


def write_page() -> None:
    """Write the chart, and the table in docs/thin.md."""
    rows = json.loads(RECORD.read_bytes())["rows"]
    write_atomic(CHART, chart(rows).encode())
    write_atomic(PAGE, filled(PAGE.read_text(), lambda _: sizes(rows)).encode())


def main() -> None:
    """Measure unless there is `--page`; then write the page."""
    if "--page" not in sys.argv[1:]:
        rows = []
        for row in measured():
            print(row, flush=True)
            rows.append(row)
        text = ",\n".join(json.dumps(row) for row in rows)
        write_atomic(RECORD, f'{{"rows": [\n{text}\n]}}\n'.encode())
    write_page()


if __name__ == "__main__":
    main()
