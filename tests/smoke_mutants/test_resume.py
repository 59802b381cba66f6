"""Mutants of checkpoint-resume: a part of the state is not saved, not loaded, or changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke_mutants.pretended import SCALER, anywhere, broken_by

RUN = ["loss_error", "weight_error", "buffer_error", "moment_error"]
NOTHING = "lambda *inputs, **options: None"
HALF_FILE = """
import torch
real = torch.save
def halved(value):
    if isinstance(value, dict):
        return {key: halved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [halved(item) for item in value]
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.half().float()
    return value
torch.save = lambda value, file: real(halved(value), file)
"""
MUTANTS = {
    "sound": ("", []),
    "model": (f"import torch\ntorch.nn.Module.load_state_dict = {NOTHING}\n", [*RUN, "counts_differ"]),
    "optimizer": (
        f"import torch\ntorch.optim.Optimizer.load_state_dict = {NOTHING}\n",
        [*RUN, "counts_differ", "rates_differ"],
    ),
    "scaler": (
        SCALER + f"amp.GradScaler.load_state_dict = {NOTHING}\n",
        ["scale_ratio", "growth_difference"],
    ),
    "scaler's count of steps": (
        SCALER
        + "real = amp.GradScaler.load_state_dict\n"
        + "amp.GradScaler.load_state_dict = lambda self, state: real(self, state | {'_growth_tracker': 0})\n",
        ["growth_difference"],
    ),
    "schedule": (
        f"import torch\ntorch.optim.lr_scheduler.StepLR.load_state_dict = {NOTHING}\n",
        [*RUN, "rates_differ"],
    ),
    "random numbers of the CPU": (f"import torch\ntorch.set_rng_state = {NOTHING}\n", [*RUN, "draws_differ"]),
    "random numbers of the GPU": (
        f"import torch\ntorch.cuda.set_rng_state = {NOTHING}\n",
        [*RUN, "draws_differ"],
    ),
    "a file in half precision": (HALF_FILE, ["changed_in_the_file", *RUN]),
}


# The fake GPU has the random numbers of the CPU.
ONLY_ON_GPU = "random numbers of the GPU"


@anywhere
@pytest.mark.parametrize("name", MUTANTS)
def test_checkpoint_resume_and_its_mutants(name: str, pretend: bool, tmp_path: Path) -> None:
    mutant, values = MUTANTS[name]
    if pretend and name == ONLY_ON_GPU:
        values = []
    assert broken_by(mutant, "checkpoint-resume", tmp_path, pretend=pretend) == values
