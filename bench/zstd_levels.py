"""Measure the size and time of layers with zstd at several levels and windows.

    python -m bench.zstd_levels LAYER ... [--levels 3,6,3+ldm24]

LAYER is a gzip blob, as in the cache's blobs/sha256/. A level is a number, or NUMBER+ldmLOG for
long-distance matching in a window of 2 to the power LOG bytes. Uses one thread, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from torchkiln.oci.compression import GZIP

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_PIECE = 1 << 20
_Parameter = zstd.CompressionParameter


def measure(layer: Path, level: str) -> dict[str, object]:
    """The sizes, and the core-seconds of compression and decompression."""
    number, _, log = level.partition("+ldm")
    options: dict[int, int] = {_Parameter.compression_level: int(number)}
    if log:
        options |= {_Parameter.enable_long_distance_matching: 1, _Parameter.window_log: int(log)}
    compressor = zstd.ZstdCompressor(options=options)
    reader = zstd.ZstdDecompressor()
    unpacked = size = back = 0
    writing = reading = 0.0
    with GZIP.open(layer) as tar:
        while piece := tar.read(_PIECE):
            unpacked += len(piece)
            began = time.thread_time()
            part = compressor.compress(piece)
            done = time.thread_time()
            back += len(reader.decompress(part))
            writing, reading = writing + done - began, reading + time.thread_time() - done
            size += len(part)
    part = compressor.flush()
    assert back + len(reader.decompress(part)) == unpacked
    return {
        "layer": layer.name[:12],
        "level": level,
        "unpacked": unpacked,
        "gzip": layer.stat().st_size,
        "zstd": size + len(part),
        "core_seconds": round(writing, 2),
        "core_seconds_back": round(reading, 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("layers", nargs="+", type=Path)
    parser.add_argument("--levels", default="1,3,6,9,3+ldm24,3+ldm27")
    options = parser.parse_args()
    for path in options.layers:
        for level in options.levels.split(","):
            sys.stdout.write(json.dumps(measure(path, level)) + "\n")
            sys.stdout.flush()
