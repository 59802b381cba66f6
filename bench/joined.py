"""One wheel → its layer, then that layer joined into one gzip member: seconds of each, and sizes.

    python -m bench.joined WHEEL [ROUNDS]

Both in one process on one core, in turn; every byte is looked at by both. No .pyc files.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from torchkiln.model.layer import Blob
from torchkiln.oci.join import join
from torchkiln.oci.layer import LayerWriter
from torchkiln.recipe import PREFIX, WHEEL_EPOCH
from torchkiln.wheel.install import Scheme
from torchkiln.wheel.source import WheelFile
from torchkiln.wheel.splice import splice

Seconds = tuple[float, float]  # by the clock, of a core


def measure(wheel: Path, rounds: int) -> dict[str, object]:
    """Medians of *rounds*; sizes in bytes."""
    locked = hashlib.sha256(wheel.read_bytes()).hexdigest()  # and the wheel is in memory
    spliced: list[Seconds] = []
    joined: list[Seconds] = []
    with tempfile.TemporaryDirectory() as folder:
        many, one = Path(folder, "many"), Path(folder, "one")
        for _ in range(rounds):
            plain, seconds = _timed(lambda: _splice(wheel, locked, many))
            spliced.append(seconds)
            single, seconds = _timed(lambda: _join(many, one))
            joined.append(seconds)
            assert single.diff_id == plain.diff_id
    return {
        "wheel": wheel.name,
        "wheel_bytes": wheel.stat().st_size,
        "unpacked_bytes": plain.unpacked,
        "spliced": {"bytes": plain.size, **_medians(spliced)},
        "joined": {"bytes": single.size, **_medians(joined)},
    }


def _splice(wheel: Path, locked: str, out: Path) -> Blob:
    with out.open("wb", buffering=1 << 20) as file, WheelFile(wheel, wheel.stat().st_size) as source:
        layer = LayerWriter(file, mtime=WHEEL_EPOCH)
        scheme = Scheme(prefix=PREFIX, python="3.11")
        splice(source, wheel.name, locked, layer, scheme, source=lambda *_: None, bytecode=lambda: iter(()))
        return layer.finish()


def _join(many: Path, one: Path) -> Blob:
    with many.open("rb", buffering=0) as source, one.open("wb") as out:
        return join(source, out)


def _timed(work: Callable[[], Blob]) -> tuple[Blob, Seconds]:
    clock, core = time.perf_counter(), time.process_time()
    done = work()
    return done, (time.perf_counter() - clock, time.process_time() - core)


def _medians(rounds: list[Seconds]) -> dict[str, float]:
    clock, core = (round(statistics.median(column), 2) for column in zip(*rounds, strict=True))
    return {"seconds": clock, "core_seconds": core}


if __name__ == "__main__":
    told = measure(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
