"""Write the goldens of this folder (`make golden`): what the made-up lock of tests.planned renders to."""

from __future__ import annotations

from pathlib import Path

from torchkiln.files import write_atomic
from torchkiln.places import TEMPLATES
from torchkiln.render import load_templates, render_folder

from tests.planned import PACKAGES, planned

GOLDEN = Path(__file__).parent / "2.7.1-cuda12.1-cudnn9-runtime"
_KEPT = ("Dockerfile", "image.json", "plan.json")


def files() -> dict[str, bytes]:
    """What the golden files should hold, by name."""
    rendered = render_folder(planned(), load_templates(TEMPLATES), PACKAGES)
    return {name: rendered[name] for name in _KEPT}


if __name__ == "__main__":
    for name, data in files().items():
        write_atomic(GOLDEN / name, data)
