"""Mutants of checkpoint, offload, memory and torchscript: no memory is saved, or the results differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.smoke_mutants.mutant import check, needs_torch
from tests.smoke_mutants.pretended import anywhere, broken_by, fails_with

ONLY_CALLS = """
import torch.utils.checkpoint as module
module.checkpoint = lambda function, *arguments, **options: function(*arguments)
"""
DRAWS_AGAIN = """
import torch.utils.checkpoint as module
real = module.checkpoint
def checkpoint(*arguments, **options):
    return real(*arguments, **(options | {"preserve_rng_state": False}))
module.checkpoint = checkpoint
"""
STAYS_THERE = """
import torch
graph = torch.autograd.graph
graph.save_on_cpu = lambda **options: graph.saved_tensors_hooks(lambda one: one, lambda one: one)
"""
BRINGS_ZEROS = """
import torch
graph = torch.autograd.graph
def pack(tensor):
    return tensor.device, torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
def unpack(packed):
    return torch.zeros(packed[1].shape, dtype=packed[1].dtype, device=packed[0])
graph.save_on_cpu = lambda **options: graph.saved_tensors_hooks(pack, unpack)
"""
LEAKS = """
import torch
real, kept = torch.Tensor.backward, []
def backward(self, **options):
    kept.append(self)
    real(self, **(options | {"retain_graph": True}))
torch.Tensor.backward = backward
"""
KEEPS_CACHE = "import torch\ntorch.cuda.empty_cache = lambda: None\n"
NO_AUTOCAST = """
import torch
class Off(torch.autocast):
    def __init__(self, device, **options):
        super().__init__(device, **(options | {"enabled": False}))
torch.autocast = Off
"""
OTHER_WEIGHTS = """
import copy, torch
real = torch.jit.script
def script(module):
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        parameter.data.mul_(1.01)
    return real(other)
torch.jit.script = script
"""
# A trace records only one side of a branch.
ONLY_TRACES = """
import torch
def script(module):
    return torch.jit.trace(module, torch.rand(64, 64, device="cuda"), check_trace=False)
torch.jit.script = script
"""
LOADS_OTHERS = """
import torch
real = torch.jit.load
def load(*arguments, **options):
    module = real(*arguments, **options)
    for parameter in module.parameters():
        parameter.data.mul_(1.01)
    return module
torch.jit.load = load
"""

MUTANTS = {
    "checkpoint-sound": ("", []),
    "checkpoint-only calls the function": (ONLY_CALLS, ["calls", "peak_ratio"]),
    "checkpoint-draws dropout again": (DRAWS_AGAIN, ["gradient_error"]),
    "offload-sound": ("", []),
    "offload-stays on the GPU": (STAYS_THERE, ["peak_ratio"]),
    "offload-brings zeros back": (BRINGS_ZEROS, ["gradient_error"]),
    "memory-sound": ("", []),
    "memory-keeps every step's activations": (LEAKS, ["growth", "reserved_growth"]),
    "memory-keeps its cache": (KEEPS_CACHE, ["given_back"]),
    "memory-autocast off": (NO_AUTOCAST, ["peak_ratio"]),
    "torchscript-sound": ("", []),
    "torchscript-other weights": (
        OTHER_WEIGHTS,
        [
            f"{side}_{name}"
            for side in ("high", "low")
            for name in ("error", "gradient_error", "loaded_error")
        ],
    ),
    "torchscript-only traces": (ONLY_TRACES, ["low_error", "low_gradient_error", "low_loaded_error"]),
    "torchscript-loads others": (LOADS_OTHERS, ["high_loaded_error", "low_loaded_error"]),
}


@anywhere
@pytest.mark.parametrize("name", MUTANTS)
def test_it_passes_and_each_mutant_breaks_its_values(name: str, pretend: bool, tmp_path: Path) -> None:
    mutant, values = MUTANTS[name]
    assert broken_by(mutant, name.split("-")[0], tmp_path, pretend=pretend) == values


@needs_torch
@pytest.mark.parametrize("id", ["checkpoint", "offload", "memory", "torchscript"])
def test_it_fails_without_a_gpu(id: str, tmp_path: Path) -> None:
    """No check falls back to the CPU; a torch without CUDA counts as a mutant."""
    finding = check(id, tmp_path, CUDA_VISIBLE_DEVICES="")
    assert finding["outcome"] == "failed"
    assert re.search("CUDA|NVIDIA", finding["message"])


@anywhere
def test_torchscript_fails_if_scripting_is_disabled(pretend: bool, tmp_path: Path) -> None:
    """With PYTORCH_JIT=0, torch.jit.script returns the module itself."""
    message = fails_with("", "torchscript", tmp_path, pretend=pretend, PYTORCH_JIT="0")
    assert message.splitlines()[0] == "torch.jit.script gave no ScriptModule"
