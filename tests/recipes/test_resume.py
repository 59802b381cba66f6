"""A resumed run has the loss curve of an uninterrupted run, and reads the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.needs import nightly
from tests.recipes.scenes import scene, train
from tests.recipes.torch_python import needs_torch

pytestmark = needs_torch


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--precision", "fp32"], marks=nightly),
        ["--precision", "fp16"],
        pytest.param(["--model", "resnet"], marks=nightly),
    ],
    ids=" ".join,
)
def test_a_resumed_run_has_the_same_curve(words: Sequence[str], tmp_path: Path) -> None:
    """The losses are bitwise equal, also across the end of an epoch (seven batches)."""
    small = "data.COUNT = 60"
    whole = train("--steps", "12", *words, before=small)["losses"]
    file = str(tmp_path / "run.pt")
    first = train("--steps", "5", "--save", file, *words, before=small)["losses"]
    rest = train("--steps", "12", "--resume", file, *words, before=small)["losses"]
    assert first + rest == whole


@pytest.mark.parametrize(
    "forgotten", ["step", *(pytest.param(name, marks=nightly) for name in ("optimizer", "scaler"))]
)
def test_without_a_part_of_the_checkpoint_the_curve_differs(forgotten: str, tmp_path: Path) -> None:
    """Mutants of the test above: the optimizer's state, the position in the data, the scaler's factor."""
    words = ["--precision", "fp16", "--init-scale", str(2.0**30)]
    whole = train("--steps", "24", *words)["losses"]
    file = tmp_path / "run.pt"
    train("--steps", "16", "--save", str(file), *words)
    change = {
        "optimizer": "content['optimizer']['state'] = {}",
        "step": "content['step'] = 15",
        "scaler": f"content['scaler']['scale'] = {2.0**30}",
    }[forgotten]
    scene(f"content = torch.load({str(file)!r})\n{change}\ntorch.save(content, {str(file)!r})")
    rest = train("--steps", "24", "--resume", str(file), *words)["losses"]
    assert rest[-8:] != whole[-8:]


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "run.pt")
    train("--steps", "1", "--save", file)
    code = f"""
try:
    train.run(parse(["--device", "cpu", "--resume", {file!r}, "--seed", "1", "--batch", "4"]))
except Unavailable as error:
    result = str(error)
"""
    assert scene(code) == f"--resume {file}: made with seed 0, batch 8"


def test_an_interrupted_save_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """If a run is killed while it writes a checkpoint, the last complete checkpoint stays readable."""
    file = tmp_path / "run.pt"
    train("--steps", "1", "--save", str(file))
    before = file.read_bytes()
    code = f"""
def killed(content, part):
    open(part, "wb").write(b"half")
    raise KeyboardInterrupt
torch.save = killed
try:
    train.run(parse(["--device", "cpu", "--steps", "2", "--save", {str(file)!r}]))
except KeyboardInterrupt:
    result = True
"""
    assert scene(code) is True
    assert file.read_bytes() == before


def test_the_order_of_samples_is_that_of_the_step() -> None:
    """It is the same with or without workers, and from batch 9 on; each epoch has a different order."""
    code = """
from itertools import islice
data.COUNT = 60
def order(start, count, **switches):
    found = islice(data.batches(Settings(**switches), alone, cpu, start), count)
    return [inputs.sum(1).tolist() for inputs, _ in found]
whole = order(0, 14)
result = [order(0, 14, workers=2) == whole, order(9, 5) == whole[9:], sorted(whole[:7]) == sorted(whole[7:])]
"""
    assert scene(code) == [True, True, False]


def test_data_of_files(tmp_path: Path) -> None:
    """The bytes of a file, and a folder of images with a stub for Pillow."""
    (tmp_path / "text").write_bytes(bytes(range(256)))
    for name in ("cat/a.png", "dog/b.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    code = f"""
import sys, types, numpy
class Opened:
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def convert(self, mode): return self
    def resize(self, size): return numpy.full((*size, 3), 7, numpy.uint8)
pillow = types.ModuleType("PIL")
pillow.Image = types.SimpleNamespace(open=lambda file: Opened())
sys.modules["PIL"] = pillow
text = data.dataset(Settings(data={str(tmp_path / "text")!r}))
images = data.dataset(Settings(model="resnet", data={str(tmp_path)!r}))
inputs, targets = text[1]
result = [len(text), inputs[:2].tolist(), targets[:2].tolist()]
image = images[0][0]
result += [len(images), [int(images[at][1]) for at in (0, 1)], list(image.shape), int(image.max())]
"""
    assert scene(code) == [7, [32, 33], [33, 34], 2, [0, 1], [3, 32, 32], 7]
