"""`python -m bench.start_node FILE`: mount an image from a share, and run a command in it.

FILE has the JSON object `images` (EROFS images of the layers, lowest first, or one squashfs), `env`, `argv`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from torchkiln.model.digest import Digest
from torchkiln.runtimes.command import Program
from torchkiln.runtimes.mounted import LayerImage, MountedLayers
from torchkiln.runtimes.rootfs import RootfsRuntime
from torchkiln.runtimes.verified_root import stamp_of


def main(file: str) -> int:
    """Run it; the exit code is that of the command."""
    asked = json.loads(Path(file).read_bytes())
    program = Program(argv=tuple(asked["argv"]), env=asked["env"])
    images = [Path(name) for name in asked["images"]]
    if images[0].suffix == ".erofs":
        layers = tuple(
            LayerImage(path=path, diff_id=Digest(path.stem), stamp=stamp_of(path.stat()), sha256="")
            for path in images
        )
        return RootfsRuntime().run(MountedLayers(layers=layers), program, capture=False).code
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "squashfs", "-o", "loop,ro", str(images[0]), folder], check=True)
        try:
            return RootfsRuntime().run(Path(folder), program, capture=False).code
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
