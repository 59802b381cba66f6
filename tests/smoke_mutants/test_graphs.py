"""Mutants of graphs: replays that do nothing, or not all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import broken, check, needs_gpus

NO_REPLAY = "import torch\ntorch.cuda.CUDAGraph.replay = lambda self: None\n"
# Only the first replay of each graph runs.
ONCE = """
import torch
real, seen = torch.cuda.CUDAGraph.replay, set()
def replay(self):
    if id(self) not in seen:
        seen.add(id(self))
        real(self)
torch.cuda.CUDAGraph.replay = replay
"""
# The capture runs the call, and records nothing.
EAGER = """
import contextlib, torch
torch.cuda.graph = lambda graph, **options: contextlib.nullcontext()
torch.cuda.CUDAGraph.replay = lambda self: None
"""
SAME_DROPOUT = """
import torch
real = torch.cuda.CUDAGraph.replay
def replay(self):
    torch.manual_seed(0)
    real(self)
torch.cuda.CUDAGraph.replay = replay
"""
GRAPHED_IS_OFF = """
import torch
real = torch.cuda.make_graphed_callables
def graphed(layer, inputs):
    made = real(layer, inputs)
    return lambda *rows: made(*rows) * 1.01
torch.cuda.make_graphed_callables = graphed
"""
ALL = ["unchanged_by_replay", "largest_replay_error", "change_between_inputs", "step_error"]
AMP = ["amp_error", "amp_step_error"]
MUTANTS = {
    "sound": ("", set()),
    "no replay": (NO_REPLAY, {*ALL, *AMP, "replays_with_equal_dropout", "graphed_callable_error"}),
    "only the first replay": (ONCE, {"unchanged_by_replay", "largest_replay_error", "step_error", *AMP}),
    "eager instead of a capture": (EAGER, {"captured_kernels_ran", *ALL}),
    "the same random numbers": (SAME_DROPOUT, {"replays_with_equal_dropout"}),
    "a graphed layer is off": (GRAPHED_IS_OFF, {"graphed_callable_error", "graphed_callable_gradient_error"}),
}


@needs_gpus(1)
@pytest.mark.parametrize("name", MUTANTS)
def test_graphs_and_its_mutants(name: str, tmp_path: Path) -> None:
    mutant, values = MUTANTS[name]
    result = check("graphs", tmp_path, mutant)
    assert result["outcome"] == ("failed" if values else "passed"), result["message"]
    assert values <= set(broken(result)) if values else result["message"] == ""
