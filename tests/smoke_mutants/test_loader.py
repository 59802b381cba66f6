"""Mutants of loader: memory that is not pinned, copies that wait, no workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import broken, check, needs_gpus, needs_torch, without_gpu
from tests.smoke_mutants.pretended import PRETEND

PINS_NOTHING = "import torch\ntorch.Tensor.pin_memory = lambda self, *device: self"
# Copies behave as if the caller had not passed non_blocking=True.
WAITS = (
    "import torch\nreal = torch.Tensor.copy_\n"
    "torch.Tensor.copy_ = lambda self, source, non_blocking=False: real(self, source)"
)
# torch itself creates the object of an existing stream with keywords.
ONE_STREAM = (
    "import torch\nreal = torch.cuda.Stream\n"
    "torch.cuda.Stream = lambda **known: real(**known) if known else torch.cuda.current_stream()"
)


def loader(options: str) -> str:
    """A mutant whose DataLoader replaces the caller's options by *options*."""
    return (
        "import torch.utils.data as data\nreal = data.DataLoader\n"
        f"data.DataLoader = lambda rows, **options: real(rows, **(options | dict({options})))"
    )


NO_WORKERS = loader("num_workers=0, multiprocessing_context=None")
NO_PINNING = loader("pin_memory=False")
OTHER_ORDER = loader("shuffle=True")
# A GPU without streams: each call returns when its work is done.
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
    finding = check("loader", tmp_path)
    assert (finding["outcome"], finding["message"]) == ("passed", "")


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
def test_loader_fails_with_a_mutant(mutant: str, names: list[str], tmp_path: Path) -> None:
    finding = check("loader", tmp_path, mutant)
    assert finding["outcome"] == "failed"
    assert broken(finding) == names


@needs_gpus(1)
def test_loader_fails_if_pinning_does_nothing(tmp_path: Path) -> None:
    """Whether a copy of pageable memory waits depends on the driver."""
    finding = check("loader", tmp_path, PINS_NOTHING)
    assert finding["outcome"] == "failed"
    assert {"pinned", "batches_pinned"} <= set(broken(finding))


@needs_torch
@without_gpu
@pytest.mark.parametrize(
    ("mutant", "names"),
    [("", []), (NO_WORKERS, ["workers"]), (OTHER_ORDER, ["batches_wrong"])],
    ids=["sound", "no workers", "other order"],
)
def test_loader_on_the_cpu_fails_in_the_values_of_a_gpu(
    mutant: str, names: list[str], tmp_path: Path
) -> None:
    finding = check("loader", tmp_path, PRETEND + NO_STREAMS + mutant)
    of_gpu = {"pinned", "returned_before_the_copy", "ended_during_a_kernel", "batches_pinned"}
    assert set(broken(finding)) == of_gpu | set(names)


def blocking(method: str) -> str:
    """A mutant in which *method* of a tensor ignores non_blocking."""
    return (
        f"import torch\nreal = torch.Tensor.{method}\n"
        f"def {method}(self, *to, **options):\n"
        "    to = [item is not True and item for item in to]\n"  # a module passes it by position
        "    options = {name: value for name, value in options.items() if name != 'non_blocking'}\n"
        "    return real(self, *to, **options)\n"
        f"torch.Tensor.{method} = {method}\n"
    )


LATE = """
import torch
real = torch.Tensor.cuda
torch.Tensor.cuda = lambda self, *device, **options: real(self, *device, **options).zero_()
"""
FIRST = "returned_before_the_copy"
TRANSFERS = {
    "sound": ("", [], ""),
    "to(non_blocking=True) waits": (blocking("to"), [FIRST], "tensor.to(cuda) is False"),
    "cuda(non_blocking=True) waits": (blocking("cuda"), [FIRST], "tensor.cuda() is False"),
    "copy_(non_blocking=True) waits": (WAITS, [FIRST], "copy_ to the GPU is False"),
    "memory that is not pinned": (PINS_NOTHING, [FIRST], "tensor.to(cuda) is False"),
    "a copy that does not arrive": (LATE, ["wrong"], "tensor.cuda()"),
}


@needs_gpus(1)
@pytest.mark.parametrize("name", TRANSFERS)
def test_transfers_and_its_mutants(name: str, tmp_path: Path) -> None:
    mutant, values, call = TRANSFERS[name]
    result = check("transfers", tmp_path, mutant)
    assert broken(result) == values
    assert call in result["message"]
