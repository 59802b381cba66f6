"""Write the golden files of this folder (`make golden`), rendered from the made-up lock of tests.planned."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hostile import table
from tests.hostile_documents import CASES, page_of, provoke
from tests.layers import layer_of, pretended_code, sha256
from tests.planned import PACKAGES, planned
from tests.unit.test_cli_grid import OUTPUTS, output
from torchkiln.docker.dockerfile import load_templates, render_folder
from torchkiln.model.operating_system import DEFAULT_OS, SYSTEMS
from torchkiln.plan.plan import to_json
from torchkiln.util.files import pretty_json, write_atomic
from torchkiln.util.places import ROOT, TEMPLATES

GOLDEN = Path(__file__).parent / "2.7.1-cuda12.1-cudnn9-runtime"
FOLDERS = {
    name: GOLDEN if name == DEFAULT_OS else GOLDEN.with_name(f"{GOLDEN.name}-{name}") for name in SYSTEMS
}
# A committed wheel, because the bytes that zipfile writes depend on the machine's zlib.
LAYER_WHEEL = Path(__file__).parent / "golden-1.0-py3-none-any.whl"
LAYER = Path(__file__).parent / "layer.json"
_GOLDEN_FILES = ("Dockerfile", "image.json")


def files(os_name: str = "debian12") -> dict[str, bytes]:
    """The golden files of an operating system, by name."""
    plan = planned(os_name=os_name)
    rendered = render_folder(plan, load_templates(TEMPLATES), PACKAGES)
    return {name: rendered[name] for name in _GOLDEN_FILES} | {"plan.json": pretty_json(to_json(plan))}


def layer_facts(wheel: Path) -> dict[str, object]:
    """The wheel's hash, and its layer with made-up byte-code."""
    _, written = layer_of([wheel], code=pretended_code)
    return {"wheel": sha256(wheel), **asdict(written)}


def hostile_documents() -> bytes:
    """The page tests/golden/hostile-documents.md: the messages for malformed documents."""
    results = {}
    for case in CASES:
        with TemporaryDirectory() as folder:
            results[case.name] = provoke(case, Path(folder).resolve())
    return page_of(results).encode()


if __name__ == "__main__":
    write_atomic(table.PAGE, table.page(table.messages(), table.pip_results()).encode())
    write_atomic(ROOT / "tests/golden/hostile-documents.md", hostile_documents())
    for name in OUTPUTS:
        write_atomic(Path(__file__).parent / name, output(name).encode())
    write_atomic(LAYER, pretty_json(layer_facts(LAYER_WHEEL)))
    for os_name, folder in FOLDERS.items():
        for name, data in files(os_name).items():
            write_atomic(folder / name, data)
