"""The small cell of `tests.cells`, built by `build.build`; also a program, for builds in other processes.

    python -m tests.company FOLDER LAYOUT REF BYTES WHEEL...

builds the named wheels of FOLDER/wheels in FOLDER/cache, and prints digest, fetched files, reused layers.
The fake index sends BYTES of a wheel every 30 ms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from tests import cells
from tests.unpublished import FakeIndex
from torchkiln.engine import build as build_module
from torchkiln.engine import build as builder
from torchkiln.engine import wheel_layers
from torchkiln.engine.cache_claims import build_needs
from torchkiln.engine.environment import Environment
from torchkiln.engine.image import BuildResult
from torchkiln.matrix import facts, matrix
from torchkiln.model.layer import LayerFormat
from torchkiln.model.progress import Fetcher, Silent
from torchkiln.plan import layers
from torchkiln.store.store import Store
from torchkiln.util.places import ROOT


@contextmanager
def small_scale(wheels: Sequence[Path]) -> Iterator[None]:
    """Within this context, each wheel of 100 kB or more gets a layer, and builds use the host's Python."""
    with ExitStack() as patches:
        for module, name, value in (
            (layers, "BIG_WHEEL", 100_000),
            (build_module, "plan_locked", lambda *_: cells.planned_cell(wheels)),
            (wheel_layers, "interpreter", lambda *_: cells.HostPython()),
        ):
            patches.enter_context(patch.object(module, name, value))
        yield


def build(
    wheels: Sequence[Path],
    cache: Path,
    layout: Path,
    fetcher: Fetcher,
    *,
    ref: str = "",
    store: Store | None = None,
    layer_format: LayerFormat = "gzip",
) -> BuildResult:
    """Build a cell of *wheels* in *cache* into *layout*, as `torchkiln build` does."""
    store = store or Store(cache)
    known = facts.load()
    with small_scale(wheels):
        locked = cells.planned_cell(wheels).locked
        cells.put_base(locked.base, store)
        return builder.build(
            locked,
            matrix.read(ROOT / "matrix.yaml", known),
            known,
            layout,
            Environment(store=store, fetcher=fetcher, observer=Silent()),
            options=builder.BuildOptions(refs=(ref,) if ref else (), layer_format=layer_format),
        )


def needs(wheels: Sequence[Path]) -> frozenset[str]:
    """The cache items that a build of *wheels* declares to need."""
    with small_scale(wheels):
        return build_needs(cells.planned_cell(wheels))


def start(
    folder: Path, layout: Path, ref: str, wheels: Sequence[str], *, piece: int = 30_000
) -> subprocess.Popen[bytes]:
    """Start this module as a program; its fake index sends *piece* bytes of a wheel every 30 ms."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.company", str(folder), str(layout), ref, str(piece), *wheels],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": os.defpath},
    )


def _print(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> None:
    folder, layout, ref, piece, *names = sys.argv[1:]
    wheels = sorted(
        path for path in (Path(folder) / "wheels").glob("*.whl") if path.name.split("-")[0] in names
    )
    index = FakeIndex(wheels, piece=int(piece), pause=0.03)
    store = Store(Path(folder) / "cache", on_wait=lambda holder: _print(f"waiting for {holder}"))
    built = build(wheels, store.root, Path(layout), index, ref=ref, store=store)
    result = {"digest": built.image.manifest, "fetched": index.fetched, "reused": built.reused}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
