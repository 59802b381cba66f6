"""Mutants of loader: memory that is not pinned, copies that wait, workers that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import broken, check, needs_gpus, needs_torch, without_gpu
from tests.smoke_mutants.pretended import PRETEND

PINS_NOTHING = "import torch\ntorch.Tensor.pin_memory = lambda self, *device: self"
# As though the caller had not said non_blocking=True.
WAITS = (
    "import torch\nreal = torch.Tensor.copy_\n"
    "torch.Tensor.copy_ = lambda self, source, non_blocking=False: real(self, source)"
)
# torch itself makes the object for a stream that is there by keywords.
ONE_STREAM = (
    "import torch\nreal = torch.cuda.Stream\n"
    "torch.cuda.Stream = lambda **known: real(**known) if known else torch.cuda.current_stream()"
)


def loader(options: str) -> str:
    """A mutant whose DataLoader has other *options* than were asked for."""
    return (
        "import torch.utils.data as data\nreal = data.DataLoader\n"
        f"data.DataLoader = lambda rows, **options: real(rows, **(options | dict({options})))"
    )


NO_WORKERS = loader("num_workers=0, multiprocessing_context=None")
NO_PINNING = loader("pin_memory=False")
OTHER_ORDER = loader("shuffle=True")
# A GPU without streams: all is done when the call returns.
NO_STREAMS = """
import contextlib

class Done:
    record = synchronize = lambda self: None
    query = lambda self: True

torch.cuda.Event = torch.cuda.Stream = Done
torch.cuda.stream = contextlib.nullcontext
torch.cuda._sleep = lambda cycles: None
torch.cuda.synchronize = lambda: None
torch.Tensor.pin_memory = lambda self, *device: self
"""


@needs_gpus(1)
def test_loader_passes_in_a_sound_environment(tmp_path: Path) -> None:
    told = check("loader", tmp_path)
    assert (told["outcome"], told["message"]) == ("passed", "")


@needs_gpus(1)
@pytest.mark.parametrize(
    ("mutant", "names"),
    [
        (WAITS, ["returned_before_the_copy"]),
        (ONE_STREAM, ["ended_during_a_kernel"]),
        (NO_WORKERS, ["workers"]),
        (NO_PINNING, ["batches_pinned"]),
        (OTHER_ORDER, ["batches_wrong"]),
    ],
    ids=["non_blocking ignored", "one stream for all", "no workers", "loader does not pin", "other order"],
)
def test_loader_fails_where(mutant: str, names: list[str], tmp_path: Path) -> None:
    told = check("loader", tmp_path, mutant)
    assert told["outcome"] == "failed"
    assert broken(told) == names


@needs_gpus(1)
def test_loader_fails_where_pinning_does_nothing(tmp_path: Path) -> None:
    """What a copy of memory that can be paged out waits for is the driver's affair."""
    told = check("loader", tmp_path, PINS_NOTHING)
    assert told["outcome"] == "failed"
    assert {"pinned", "batches_pinned"} <= set(broken(told))


@needs_torch
@without_gpu
@pytest.mark.parametrize(
    ("mutant", "names"),
    [("", []), (NO_WORKERS, ["workers"]), (OTHER_ORDER, ["batches_wrong"])],
    ids=["sound", "no workers", "other order"],
)
def test_loader_on_the_cpu_fails_in_what_only_a_gpu_has(
    mutant: str, names: list[str], tmp_path: Path
) -> None:
    told = check("loader", tmp_path, PRETEND + NO_STREAMS + mutant)
    of_gpu = {"pinned", "returned_before_the_copy", "ended_during_a_kernel", "batches_pinned"}
    assert set(broken(told)) == of_gpu | set(names)
